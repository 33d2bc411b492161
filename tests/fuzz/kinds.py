"""The kinds of damage: a damaged file or call, and what is done with it.

`KINDS` is the table: a kind is one function. Each gets the base folder, its own empty folder and a random source, and
returns an ending of runner.ENDINGS.
"""

from __future__ import annotations

import json
import random
import shutil
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from archives import CHANGES, appended
from fuzz.mutations import VALUES, damage_bytes, damage_file, damage_json, damage_words
from fuzz.runner import command
from t2r_export.checkpoints.adapter import KEY
from t2r_runtime import Decoder, Tokenizer
from t2r_runtime.errors import T2RError

Kind = Callable[[Path, Path, random.Random], str]
KINDS: dict[str, Kind] = {}


def kind(function: Kind) -> Kind:
    KINDS[function.__name__] = function
    return function


def runs(graph: Path) -> str:
    """A written graph must run; accepting one that does not is the worst ending."""
    try:
        Decoder(graph).step(0)
    except Exception as error:
        print(repr(error))
        return "runtime refuses"
    return "accepted"


@kind
def hf_config(base: Path, here: Path, chance: random.Random) -> str:
    family = chance.choice(("llama", "gpt2"))
    shutil.copytree(base / family, here / "hf")
    files = sorted((here / "hf").glob("*.json"))
    path = here / "hf" / "config.json" if chance.random() < 0.5 else chance.choice(files)
    path.write_text(json.dumps(damage_json(chance, json.loads(path.read_text()))))
    ending = command("convert", "hf", "swapped.pt", "--mixer", "linear:feature_size=3")
    return ending if ending != "accepted" else exported("swapped.pt")


@kind
def hf_files(base: Path, here: Path, chance: random.Random) -> str:
    shutil.copytree(base / chance.choice(("llama", "gpt2")), here / "hf")
    damage_file(chance, chance.choice(sorted(path for path in (here / "hf").rglob("*") if path.is_file())))
    ending = command("convert", "hf", "swapped.pt", "--mixer", "linear:feature_size=3")
    return ending if ending != "accepted" else exported("swapped.pt")


def exported(model: str) -> str:
    ending = command("export", model, "made.onnx")
    return ending if ending != "accepted" else runs(Path("made.onnx"))


@kind
def model_bytes(base: Path, here: Path, chance: random.Random) -> str:
    shutil.copy(base / "model.pt", here)
    damage_file(chance, here / "model.pt")
    return exported("model.pt")


@kind
def model_data(base: Path, here: Path, chance: random.Random) -> str:
    data = torch.load(base / "model.pt", weights_only=True)
    weights = data.pop("weights")
    data = damage_json(chance, data)
    if isinstance(data, dict):
        names = sorted(weights)
        for name in chance.sample(names, chance.choice((0, 0, 1))):
            shape, dtype = chance.choice(((0,), (3, 4), (1, 1, 1))), chance.choice((torch.float32, torch.int8))
            weights[name] = torch.zeros(shape, dtype=dtype)
        data["weights"] = weights
    torch.save(data, here / "model.pt")
    return exported("model.pt") if chance.randrange(3) else command("inspect", "model.pt")


@kind
def adapters(base: Path, here: Path, chance: random.Random) -> str:
    """Damage of the bytes, or of the metadata and a tensor's shape in a file that is well-formed."""
    path = Path(shutil.copy(base / "student.adapter", here))
    if chance.randrange(2):
        damage_file(chance, path)
    else:
        with safe_open(path, framework="pt") as file:
            data = json.loads(file.metadata()[KEY])
        tensors = load_file(path)
        for name in chance.sample(sorted(tensors), chance.choice((0, 0, 1))):
            tensors[chance.choice((name, f"{name}.A", "head.weight"))] = tensors.pop(name)[:1].clone()
        save_file(tensors, path, {KEY: json.dumps(damage_json(chance, data))})
    ending = command("export", path.name, "made.onnx", "--base", base / "source.pt")
    return ending if ending != "accepted" else runs(Path("made.onnx"))


def graph_verbs(chance: random.Random, graph: str) -> str:
    """Run a command that reads a graph; an accepted graph must run."""
    match chance.randrange(4):
        case 0:
            return command("inspect", graph)
        case 1:
            return command("generate", graph, "--ids", "1,2", "--max-tokens", "3")
        case 2:
            return command("verify", Path("model.pt"), graph, "--steps", "2")
        case _:
            ending = command("quantize", graph, "small.onnx", "--scheme", "w8")
            return ending if ending != "accepted" else runs(Path("small.onnx"))


def graph_folder(base: Path, here: Path) -> list[Path]:
    for file in base.glob("graph.onnx*"):
        shutil.copy(file, here)
    shutil.copy(base / "model.pt", here)
    return sorted(here.glob("graph.onnx*"))


@kind
def graph_bytes(base: Path, here: Path, chance: random.Random) -> str:
    graph_folder(base, here)
    damage_file(chance, here / "graph.onnx")
    return graph_verbs(chance, "graph.onnx")


@kind
def graph_data(base: Path, here: Path, chance: random.Random) -> str:
    graph_folder(base, here)
    model = onnx.load(here / "graph.onnx", load_external_data=False)
    match chance.randrange(5):
        case 0 | 1:
            damage_properties(chance, model)
        case 2:
            item = chance.choice([*model.graph.input, *model.graph.output])
            item.name += "x"
        case 3:
            node = chance.choice(model.graph.node)
            chance.choice((model.graph.node.remove, lambda n: setattr(n, "op_type", "Nonsense")))(node)
        case _:
            tensor = chance.choice(model.graph.initializer)
            if tensor.external_data:
                entry = chance.choice(tensor.external_data)
                entry.value = str(chance.choice(("../../etc/passwd", "-1", str(1 << 50), "", "graph.onnx", "7")))
            else:
                tensor.dims[:] = [chance.choice((0, 3, 1 << 40))]
    (here / "graph.onnx").write_bytes(model.SerializeToString())
    return graph_verbs(chance, "graph.onnx")


def damage_properties(chance: random.Random, model: onnx.ModelProto) -> None:
    """Change the value or name of one metadata key."""
    props = chance.choice(model.metadata_props)
    if chance.randrange(2):
        props.key += "x"
        return
    try:
        props.value = json.dumps(damage_json(chance, json.loads(props.value)))
    except ValueError:
        props.value = str(chance.choice(VALUES[:-5])).encode("utf-8", "replace").decode()


@kind
def companions(base: Path, here: Path, chance: random.Random) -> str:
    damage_file(chance, chance.choice(graph_folder(base, here)[1:]))
    return graph_verbs(chance, "graph.onnx")


@kind
def snapshot(base: Path, here: Path, chance: random.Random) -> str:
    graph_folder(base, here)
    shutil.copy(base / "saved.state", here)
    damage_file(chance, here / "saved.state")
    return command("generate", "graph.onnx", "--load-state", "saved.state", "--ids", "1", "--max-tokens", "2")


@kind
def tokenizer(base: Path, here: Path, chance: random.Random) -> str:
    whole = (base / "tokenizer.json").read_text()
    if chance.randrange(4):
        text = json.dumps(damage_json(chance, json.loads(whole)))
    else:
        text = damage_bytes(chance, whole.encode()).decode("utf-8", "replace")
    try:
        made = Tokenizer(text)
        made.decode(made.encode("once upon a time, é"))
    except T2RError as error:
        print(error)
        return "refused"
    return "accepted"


@kind
def text(base: Path, here: Path, chance: random.Random) -> str:
    name = chance.choice(("text.txt", "ids.npy"))
    shutil.copy(base / name, here)
    damage_file(chance, here / name)
    return command("evaluate", base / "model.pt", name, "--lengths", "8")


@kind
def recipe(base: Path, here: Path, chance: random.Random) -> str:
    shutil.copy(base / "text.txt", here)
    data = damage_json(chance, tomllib.loads((base / "recipe.toml").read_text()))
    shortened(data)
    (here / "recipe.toml").write_text(toml(data) if isinstance(data, dict) else "x")
    return command("build", "recipe.toml", "--work", "work", "--data", ".")


def shortened(data: Any) -> None:
    """Replace long-running recipe values by small ones: a training of a million rows is no fault."""
    if isinstance(data, list):
        for part in data:
            shortened(part)
    if isinstance(data, dict):
        for key, value in data.items():
            if value == 1 << 20 and not isinstance(value, bool):
                data[key] = 1 << 8
            shortened(value)
            if key in ("teacher", "finetune") and isinstance(value, dict):
                value.setdefault("steps", "1")


def toml(data: Any) -> str:
    """Plain data as an inline TOML document; values without a TOML form become strings."""

    def value(x: Any) -> str:
        if isinstance(x, dict):
            return "{" + ", ".join(f"{json.dumps(str(k))} = {value(v)}" for k, v in x.items()) + "}"
        if isinstance(x, list):
            return "[" + ", ".join(map(value, x)) + "]"
        if isinstance(x, float) and (x != x or x in (float("inf"), -float("inf"))):
            return "nan" if x != x else "inf" if x > 0 else "-inf"
        if isinstance(x, int) and not isinstance(x, bool) and abs(x) >= 1 << 63:
            return "9223372036854775807"
        return "''" if x is None else json.dumps(x)

    return "\n".join(f"{json.dumps(str(k))} = {value(v)}" for k, v in data.items())


@kind
def training_state(base: Path, here: Path, chance: random.Random) -> str:
    for file in (base / "run").iterdir():
        shutil.copy(file, here)
    damaged = chance.choice(("tuned.pt.training", "tuned.pt.training", "text.txt", "model.pt", None))
    if damaged is not None:  # else the run goes on
        damage_file(chance, here / damaged)
    words = json.loads((base / "run.json").read_text())
    return command(*words, "--resume")


@kind
def archive_members(base: Path, here: Path, chance: random.Random) -> str:
    """Archives that torch and Python may read differently, none of which may be accepted."""
    for file in (base / "run").iterdir():
        shutil.copy(file, here)
    damaged = here / chance.choice(("model.pt", "tuned.pt.training"))
    with zipfile.ZipFile(damaged) as archive:
        name = chance.choice(archive.namelist())
    other = "".join(chance.choice((letter.upper(), letter)) for letter in name)
    changes = [appended(other, chance.randbytes(9)), *(change for change, _ in CHANGES.values())]
    damaged.write_bytes(chance.choice(changes)(damaged.read_bytes()))
    ending = command(*json.loads((base / "run.json").read_text()), "--resume")
    return "silently wrong" if ending == "accepted" else ending


@kind
def arguments(base: Path, here: Path, chance: random.Random) -> str:
    graph_folder(base, here)
    for name in ("text.txt", "source.pt"):
        shutil.copy(base / name, here)
    lines = json.loads((base / "lines.json").read_text())
    words = damage_words(chance, chance.choice(lines))
    if words[:1] == ["finetune"] and "--steps" not in words:
        words += ["--steps", "1,1"]  # the default takes hours
    ending = command(*words)
    return "refused" if ending == "escaped with 130" else ending
