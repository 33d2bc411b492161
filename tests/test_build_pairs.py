"""Recipes of pairs: translators, held-out pairs, and sequence distillation."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

import small
from t2r_export.build import build
from t2r_export.checkpoints import checkpoint
from t2r_export.config.mixers import LinearConfig
from t2r_export.data.pairs import read_pairs
from t2r_export.quality.translations import translate_by_graph
from t2r_runtime.errors import UserError

PAIRS = """
[pairs]
file = "pairs.zip"
member = "deu.txt"
source = 1
target = 0
valid_groups = 3
test_groups = 5

[tokenizer]
vocab_size = 270

[model]
vocab_size = 270
width = 12
attention = { heads = 2, kv_heads = 2, head_size = 6 }
ffn_size = 20
layers = [{ kind = "softmax" }, { kind = "softmax" }]
crosses = [{ kind = "softmax" }, { kind = "softmax" }]
encoder = { layers = [{ kind = "softmax" }], attention = { heads = 2, kv_heads = 2, head_size = 6 }, ffn_size = 20 }
position = "sinusoidal"
start_tokens = [0]
eos_tokens = [0]

[teacher]
steps = "4"
lr = "1e-2"
pair_tokens = 100
label_smoothing = 0.1

[[student]]
name = "one"
convert = { feature_size = 4, cross = { feature_size = 7 } }
finetune = { stages = "transfer,distill", steps = "2,3", pair_tokens = 100 }
"""

COLOURS, BEASTS = ("rot", "blau", "alt", "jung"), ("Hund", "Kater", "Hahn", "Fuchs", "Wolf", "Esel")


@pytest.fixture
def pairs_place(tmp_path: Path) -> Path:
    lines = [f"{b} {c}\t{c} {b}\tby somebody\n" for b in BEASTS for c in COLOURS]
    with zipfile.ZipFile(tmp_path / "pairs.zip", "w") as archive:
        archive.writestr("deu.txt", "".join(lines * 2))
    (tmp_path / "recipe.toml").write_text(PAIRS)
    return tmp_path


def test_recipe_of_pairs_builds_translators(pairs_place: Path) -> None:
    place = pairs_place
    (student,) = build(place / "recipe.toml", place / "work", place)
    parts = {name: read_pairs(place / "work" / f"{name}.tsv") for name in ("train", "valid", "test")}
    assert {name: len(pairs) for name, pairs in parts.items()} == {"train": 16, "valid": 3, "test": 5}
    assert parts["train"][0][0] in {f"{c} {b}" for b in BEASTS for c in COLOURS}
    made = checkpoint.load(student.path)
    assert small.mixers(made.config) == [LinearConfig(4)] * 2
    assert small.mixers(made.config, "crosses") == [LinearConfig(7)] * 2
    assert made.provenance["finetune"][-1]["pair_tokens"] == 100
    assert made.provenance["convert"]["cross"] == {"feature_size": 7}
    assert student.teacher_nats > 0


def test_further_pairs_and_pairs_that_stay_unseen(pairs_place: Path) -> None:
    place, more = pairs_place, 'more = [{ file = "more.tsv", label = 2, without = "odd" }]\nheld_out = "unseen.tsv"\n'
    lines = [f"neu {number}\tnew {number}\t{'odd' if number % 2 else 'even'}\n" for number in range(8)]
    (place / "more.tsv").write_text("".join(lines))
    (place / "unseen.tsv").write_text("Neu, 2!\tsomething\tkind\nirgendwas\tHund Rot.\tkind\n")
    (place / "recipe.toml").write_text(PAIRS.replace("[tokenizer]", more + "\n[tokenizer]", 1))
    said: list[str] = []
    build(place / "recipe.toml", place / "work", place, said.append)
    pairs = [pair for name in ("train", "valid", "test") for pair in read_pairs(place / "work" / f"{name}.tsv")]
    new = sorted(pair for pair in pairs if pair[0].startswith("neu"))
    assert new == [("neu 0", "new 0"), ("neu 4", "new 4"), ("neu 6", "new 6")]
    assert len(pairs) == 24 - 1 + 3 and ("rot Hund", "Hund rot") not in pairs
    assert any(line.startswith("note: skipped 2 pairs that share a sentence with ") for line in said)
    (place / "unseen.tsv").write_text("anders\tother\n")
    with pytest.raises(UserError, match="held-out pairs"):
        build(place / "recipe.toml", place / "work", place)


def test_file_to_train_on(pairs_place: Path) -> None:
    """Models are trained on its pairs; tokenizer and parts are those of the archive."""
    place = pairs_place
    (place / "two.tsv").write_text("rot Hund\tHund rot\nrot Katze\tKatze rot\n")
    (place / "recipe.toml").write_text(PAIRS.replace("[tokenizer]", 'train = "two.tsv"\n\n[tokenizer]', 1))
    (student,) = build(place / "recipe.toml", place / "work", place)
    assert len(read_pairs(place / "work" / "train.tsv")) == 16
    assert checkpoint.load(student.path).provenance["finetune"][-1]["files"] == ["two.tsv"]
    (place / "two.tsv").write_text("rot Hund\tHund rot\n")
    with pytest.raises(UserError, match="pairs to train on"):
        build(place / "recipe.toml", place / "work", place)


def test_files_of_the_recipe_have_to_be_there(pairs_place: Path) -> None:
    missing = {
        'held_out = "u.tsv"': "holds out",
        'more = [{ file = "m.tsv" }]': "further pairs",
        'train = "t.tsv"': "pairs to train on",
        'train = "../t.tsv"': "the name of a file in the data folder",
    }
    for line, what in missing.items():
        (pairs_place / "recipe.toml").write_text(PAIRS.replace("[tokenizer]", line + "\n[tokenizer]", 1))
        with pytest.raises(UserError, match=what):
            build(pairs_place / "recipe.toml", pairs_place / "work", pairs_place)


def test_sequence_distillation(pairs_place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An existing piece of the translated pairs is not made again."""
    monkeypatch.setattr("t2r_export.build.PIECE", 11)
    said = '\n[[student]]\nname = "two"\nweights = "random"\nsequence_beam = 3\n'
    recipe = pairs_place / "recipe.toml"
    recipe.write_text(PAIRS + said + 'convert = { feature_size = 5 }\nfinetune = { stages = "task", steps = "2" }\n')
    work = pairs_place / "work"
    students = build(recipe, work, pairs_place)
    assert [s.name for s in students] == ["one", "two"]
    pieces = [work / f"train.beam3.{first}.tsv" for first in (0, 11)]
    sources = [source for source, _ in read_pairs(work / "train.tsv")]
    pairs = [pair for piece in pieces for pair in read_pairs(piece)]
    spoken = dict(
        zip(sources, translate_by_graph(work / "teacher.beam3.onnx", sources, 3, print, copy=False), strict=True)
    )
    assert len(pairs) == len(sources) and all(target == " ".join(spoken[source].split()) for source, target in pairs)
    learned = checkpoint.load(students[1].path).provenance["finetune"][-1]["files"]
    assert learned == [piece.name for piece in pieces]
    pieces[1].unlink()
    kept = pieces[0].stat().st_mtime_ns
    (work / "two.json").unlink()
    build(recipe, work, pairs_place)
    assert [pair for piece in pieces for pair in read_pairs(piece)] == pairs and pieces[0].stat().st_mtime_ns == kept
