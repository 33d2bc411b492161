"""Trainings: a recipe changed over an existing build, evaluations of mismatched inputs, few tokens a step."""

from __future__ import annotations

import json
import random
import shutil
import tomllib
from pathlib import Path
from typing import Any

from cli_models import letter_tokenizer
from fuzz.kinds import kind, shortened, toml
from fuzz.mutations import damage_json
from fuzz.runner import SilentlyWrong, command, whole
from t2r_export.checkpoints import checkpoint

WORK = "built"
WORSE = 0.1  # nats per token that a training of a few steps may lose
SIZES = ("0", "1", "3", "4", "8", "31", "4096", "-1", "99999999999999999999", "x", "8,8", "4,4096")


def make(folder: Path) -> None:
    """A build of the recipe, a student of a trained teacher, and a model that does not know all of its tokenizer."""
    whole("build", folder / "recipe.toml", "--work", folder / WORK, "--data", folder)
    steps = ["--stages", "task", "--steps", "60", "--batch", "16", "--length", "8", "--lr", "0.01"]
    whole("finetune", folder / "source.pt", folder / "taught.pt", "--data", folder / "text.txt", *steps)
    whole("convert", folder / "taught.pt", folder / "student.pt", "--mixer", "linear:feature_size=3")
    loaded = checkpoint.load(folder / "model.pt")
    tokenizer = json.loads(letter_tokenizer())
    tokenizer["model"]["vocab"]["h"] = loaded.config.vocab_size + 7
    checkpoint.save(folder / "foreign.pt", loaded.model, json.dumps(tokenizer), loaded.provenance)


@kind
def changed_recipe(base: Path, here: Path, chance: random.Random) -> str:
    """A build over that of another recipe or text: refused, or equal to a fresh build."""
    shutil.copytree(base / WORK, here / WORK)
    text, data = (base / "text.txt").read_text(), tomllib.loads((base / "recipe.toml").read_text())
    if chance.randrange(4):
        data = damage_json(chance, data)
        shortened(data)
    else:
        text = text.replace("hen", chance.choice(("cat", "hen", "hens")))
    (here / "text.txt").write_text(text)
    (here / "recipe.toml").write_text(toml(data) if isinstance(data, dict) else "x")
    line = ["build", "recipe.toml", "--data", "."]
    ending = command(*line, "--work", WORK, *chance.choice(([], ["--anew"])))
    if ending != "accepted":
        return ending
    whole(*line, "--work", "fresh")
    return "accepted" if figures(here / WORK) == figures(here / "fresh") else "silently wrong"


def figures(work: Path) -> list[dict[str, Any]]:
    """The results of a build, without times."""
    rows = json.loads((work / "results.json").read_text())
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@kind
def small_batches(base: Path, here: Path, chance: random.Random) -> str:
    """A training on few tokens with every other option at its default: it ends, and its student is no worse."""
    shutil.copy(base / "text.txt", here)
    shape = ["--batch", chance.choice("123"), "--length", chance.choice(("2", "3", "8"))]
    steps = ["--steps", f"{chance.choice((1, 5, 40))},{chance.choice((1, 5, 40))}"]
    ending = command("finetune", base / "student.pt", "tuned.pt", "--data", "text.txt", *shape, *steps)
    if ending == "accepted":
        run = checkpoint.load(Path("tuned.pt")).provenance["finetune"][-1]
        before, after = (run["evaluation"][name] for name in ("student", "finetuned"))
        if after > before + WORSE:
            raise SilentlyWrong(f"{before} nats before, {after} after")
    return ending if ending == "accepted" else "silently wrong"


@kind
def evaluations(base: Path, here: Path, chance: random.Random) -> str:
    """Models, texts and options that may not match."""
    (here / "short.txt").write_text(chance.choice(("", " \n", "h", "once", "<|endoftext|>\n", "é\n<|endoftext|>\nh")))
    (here / "odd.tsv").write_text(
        chance.choice(("", "\t\n", "a\tb\n", "a hen\t\n", "a\n", "a\tb\tc\n", f"{'h' * 900}\th\n"))
    )
    for name in ("text.txt", "ids.npy", "pairs.tsv"):
        shutil.copy(base / name, here)
    model = base / chance.choice(("model.pt", "foreign.pt", "translator.pt", "graph.onnx", "translator.onnx", "llama"))
    text = chance.choice(("text.txt", "ids.npy", "pairs.tsv", "short.txt", "odd.tsv"))
    words: list[str] = []
    for option, values in (
        ("--lengths", SIZES),
        ("--eval-tokens", SIZES),
        ("--windows", SIZES),
        ("--part", ("train", "valid", "test", "all")),
        ("--split", ("test=0.01", "test=0.99", "test=0.5", "test=nan", "test=1")),
        ("--bleu", ("1", "3", "0", "4096")),
        ("--past-end", ("refuse", "clamp", "wrap:3", "wrap:0")),
    ):
        if not chance.randrange(12):
            words += [option, chance.choice(values)]
    if not text.endswith(".tsv") and chance.randrange(2):
        words += [
            "--lengths",
            "8",
            "--split",
            "test=0.5",
        ]
    if text.endswith(".tsv") and chance.randrange(2):
        words += ["--bleu", "2"]
    ending = command("evaluate", model, text, *words)
    return "refused" if ending == "escaped with 130" else ending
