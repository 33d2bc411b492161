"""One reader of graphs: every verb refuses the same damage with the same message and exit code 2."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from safetensors.torch import save_file

import small
from t2r_export.checkpoints import checkpoint
from t2r_export.cli import main
from t2r_export.config.export import ExportConfig
from t2r_export.export import export
from test_imports import HEAVY, loaded_by

VERBS: dict[str, Callable[[Path, Path], list[object]]] = {
    "quantize": lambda graph, _: ["quantize", graph, graph.with_name("out.onnx"), "--scheme", "w8"],
    "verify": lambda graph, model: ["verify", model, graph, "--steps", 2],
    "inspect": lambda graph, _: ["inspect", graph],
    "save": lambda graph, _: ["save", graph, graph.with_name("out.onnx"), "--as", "compiled", "--provider", "qnn"],
    "generate": lambda graph, _: ["generate", graph, "--ids", "1,2,3", "--max-tokens", 2],
    "evaluate": lambda graph, _: ["evaluate", graph, Path(__file__)],
    "translate": lambda graph, _: ["translate", graph],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    checkpoint.save(folder / "m.pt", small.model(), None, {})
    export(checkpoint.load(folder / "m.pt"), folder / "g.onnx", ExportConfig(prefill=True))
    return folder


def edited(change: Callable[[onnx.ModelProto], None]) -> Callable[[Path], None]:
    """An edit that applies `change` to the step graph."""

    def edit(folder: Path) -> None:
        model = onnx.load(folder / "g.onnx", load_external_data=False)
        change(model)
        (folder / "g.onnx").write_bytes(model.SerializeToString())

    return edit


def says(key: str, value: Any) -> Callable[[Path], None]:
    """An edit that sets a metadata value of the step graph."""

    def change(model: onnx.ModelProto) -> None:
        kept = {p.key: p.value for p in model.metadata_props}
        del model.metadata_props[:]
        helper.set_model_props(model, {**kept, f"t2r.{key}": json.dumps(value)})

    return edited(change)


def data(folder: Path) -> Path:
    (file,) = folder.glob("*.data")
    return file


def outside(model: onnx.ModelProto) -> None:
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = f"../{entry.value}"


def without_a_state(folder: Path) -> None:
    props = {p.key: p.value for p in onnx.load(folder / "g.onnx", load_external_data=False).metadata_props}
    says("states", json.loads(props["t2r.states"])[1:])(folder)


# damage to the files, and the start of every verb's message
REFUSED_BY_THE_RUNTIME: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (lambda f: data(f).unlink(), "expected the weights g.onnx."),
    "weights cut off": (lambda f: data(f).write_bytes(data(f).read_bytes()[:2000]), "expected an ONNX graph that ONNX"),
    "weights elsewhere": (edited(outside), "expected an ONNX graph that ONNX Runtime accepts; received External data"),
    "no companion": (lambda f: [c.unlink() for c in f.glob("*.prefill.onnx")], "expected the prefill graph g.onnx."),
    "states {}": (says("states", {}), "expected metadata as the contract defines it; received no list as states"),
    "a state dropped": (without_a_state, "expected the inputs and outputs that the graph's metadata lists; received "),
    "vocab_size 1.5": (
        says("vocab_size", 1.5),
        "expected metadata as the contract defines it; received a bad value",
    ),
    "no graph": (lambda f: (f / "g.onnx").write_bytes(b"no graph"), "expected an ONNX graph that ONNX Runtime accepts"),
    "a model.pt": (lambda f: torch.save({}, f / "g.onnx"), "expected an exported graph; received the checkpoint "),
    "safetensors": (
        lambda f: save_file({"w": torch.ones(2)}, f / "g.onnx"),
        "expected an exported graph; received the checkpoint ",
    ),
}


def not_finite(value: float) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        bias = next(t for t in model.graph.initializer if t.name == "norm.bias")
        array = numpy_helper.to_array(bias).copy()
        array[-1] = value
        bias.CopyFrom(numpy_helper.from_array(array, bias.name))

    return change


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(bytes(content))


# damage that only some verbs detect: the runtime does not, as it would have to read every weight
REFUSED_BY_THE_READER: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit": (lambda f: flipped(data(f)), "to match the hash in its name; received other content: a damaged"),
    "a weight is NaN": (edited(not_finite(np.nan)), "expected finite weights in "),
    "a weight is infinite": (edited(not_finite(-np.inf)), "expected finite weights in "),
}


def ends(verb: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and stderr."""
    before = {file.name for file in folder.iterdir()}
    code = main([str(word) for word in VERBS[verb](folder / "g.onnx", folder / "m.pt")])
    assert {file.name for file in folder.iterdir()} == before
    return code, capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("damage", REFUSED_BY_THE_RUNTIME)
def test_damaged_graph_same_message_in_all_verbs(
    damage: str, verb: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "copy"))
    do, message = REFUSED_BY_THE_RUNTIME[damage]
    do(folder)
    code, said = ends(verb, folder, capsys)
    assert (code, said[: len(message) + 5]) == (2, f"t2r: {message}")
    assert said.count("\n") == 1


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"generate", "evaluate", "translate"}))
@pytest.mark.parametrize("damage", REFUSED_BY_THE_READER)
def test_snapshot_crc_checked(
    damage: str, verb: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "copy"))
    do, message = REFUSED_BY_THE_READER[damage]
    do(folder)
    code, said = ends(verb, folder, capsys)
    assert code == 2
    assert message in said
    assert said.count("\n") == 1


def test_folder_instead_of_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text("{}")
    assert main(["generate", str(tmp_path / "hf")]) == 2
    assert capsys.readouterr().err.endswith(f"export it first: t2r-export {tmp_path}/hf hf.onnx\n")


def test_graph_instead_of_checkpoint(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(made / "g.onnx"), str(made / "h.onnx")]) == 2
    assert f"expected a checkpoint; received the exported graph {made / 'g.onnx'}; name the model" in (
        capsys.readouterr().err
    )


def test_valid_graph_has_no_other_message(made: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(made / "g.onnx")]) == 0
    assert capfd.readouterr().err == ""


def test_a_graph_is_described_without_torch(made: Path) -> None:
    program = f"from t2r_export.cli import main; assert main(['inspect', {str(made / 'g.onnx')!r}]) == 0"
    assert loaded_by(program) & HEAVY == {"onnx", "onnxruntime"}
