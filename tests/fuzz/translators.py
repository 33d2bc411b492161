"""Damage of translators: graphs, files of pairs, and vocabularies of a Marian folder."""

from __future__ import annotations

import dataclasses
import json
import random
import shutil
from pathlib import Path

import onnx

import small
from checkpoints.hub.test_translator import ours
from checkpoints.test_pieces import PIECES, written
from cli_models import LETTERS, letter_tokenizer
from fuzz.kinds import damage_properties, kind
from fuzz.mutations import damage_file, damage_json
from fuzz.runner import command, whole
from t2r_export.checkpoints import checkpoint
from t2r_export.config.model import ModelConfig
from t2r_export.model.transformer import Transformer
from t2r_runtime import Beam, Translator
from t2r_runtime.errors import T2RError

GRAPH, PAIRS = "translator.onnx", "pairs.tsv"
LINES = [
    ["export", "translator.pt", "x.onnx", "--prefill", "--source-length", "9"],
    ["evaluate", "translator.pt", PAIRS],
    ["evaluate", GRAPH, PAIRS, "--bleu", "2"],
    ["finetune", "translator.pt", "x.pt", "--pairs", PAIRS, "--steps", "1", "--stages", "task", "--pair-tokens", "64"],
]


def make(folder: Path) -> None:
    """A translator, its graphs, pairs, and a softmax translator as a Marian folder with pieces."""
    vocabulary = len(LETTERS) + 1
    base, cut = small.TRANSLATORS["cross_mixed"], {"vocab_size": vocabulary}
    _saved(folder / "translator.pt", dataclasses.replace(base, **cut))
    whole("export", folder / "translator.pt", folder / GRAPH, "--prefill")
    (folder / PAIRS).write_text("".join(f"{letter} hen\tone {letter}.\n" for letter in LETTERS[:26]))
    _saved(folder / "teacher.pt", ours("marian", **cut))
    whole("save", folder / "teacher.pt", folder / "marian", "--as", "marian")
    (folder / "marian" / "tokenizer.json").unlink()
    for side in ("source", "target"):
        (folder / "marian" / f"{side}.spm").write_bytes(written())
    pieces = [text for text, *_ in PIECES] + ["<pad>"]
    names = pieces + [f"extra{n}" for n in range(vocabulary - len(pieces))]
    (folder / "marian" / "vocab.json").write_text(json.dumps({name: n for n, name in enumerate(names)}))


def _saved(path: Path, config: ModelConfig) -> None:
    checkpoint.save(path, Transformer(config.build()).eval(), letter_tokenizer(), {})


def translates(graph: Path) -> str:
    """A graph that opens must translate, or raise a T2RError."""
    try:
        translator = Translator(graph)
        list(translator.translate([[1, 2, 3], [4]], Beam(2, max_tokens=3)))
    except T2RError as error:
        print(error)
        return "refused"
    return "accepted"


def _graphs(base: Path, here: Path) -> list[Path]:
    for file in base.glob(f"{GRAPH}*"):
        shutil.copy(file, here)
    return sorted(here.iterdir())


@kind
def translator_bytes(base: Path, here: Path, chance: random.Random) -> str:
    damage_file(chance, chance.choice(_graphs(base, here)))
    return translates(here / GRAPH)


@kind
def translator_data(base: Path, here: Path, chance: random.Random) -> str:
    file = chance.choice([path for path in _graphs(base, here) if path.suffix == ".onnx"])
    model = onnx.load(file, load_external_data=False)
    damage_properties(chance, model)
    file.write_bytes(model.SerializeToString())
    return translates(here / GRAPH)


@kind
def pairs(base: Path, here: Path, chance: random.Random) -> str:
    shutil.copy(base / PAIRS, here)
    damage_file(chance, here / PAIRS)
    return command("evaluate", base / "translator.pt", PAIRS)


@kind
def pieces(base: Path, here: Path, chance: random.Random) -> str:
    shutil.copytree(base / "marian", here / "marian")
    file = here / "marian" / chance.choice(("source.spm", "target.spm", "vocab.json"))
    if file.suffix == ".json" and chance.randrange(2):
        file.write_text(json.dumps(damage_json(chance, json.loads(file.read_text()))))
    else:
        damage_file(chance, file)
    ending = command("convert", "marian", "swapped.pt", "--mixer", "linear:feature_size=3")
    return ending if ending != "accepted" else command("export", "swapped.pt", GRAPH) and translates(here / GRAPH)
