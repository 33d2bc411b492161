"""Recipes: TOML files that describe data, a teacher and its students. Imports without torch.

A table per section lists its keys; combinations are checked by the configs made of them. Recipes are untrusted and can
only name files in the data folder and models in the work folder.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from t2r_export.config.finetune import SEPARATOR, Shares
from t2r_export.config.plain import from_plain
from t2r_export.config.recipe_students import StudentPlan, Training, read_students, read_training
from t2r_export.config.recipe_values import (
    NUMBER,
    TABLE,
    TABLES,
    TEXT,
    TEXTS,
    WHOLE,
    Keys,
    check,
    inside,
    texts,
    value,
    wrong,
)
from t2r_export.config.uniform import UniformConfig
from t2r_export.config.validation import MAX_SIZE, size
from t2r_export.paths import existing_model, text_files
from t2r_runtime.errors import UserError, printable
from t2r_runtime.files import existing_file
from t2r_runtime.text.texts import read_text

TOP: Keys = {
    "text": TEXTS,
    "pairs": TABLE,
    "separator": TEXT,
    "valid_share": NUMBER,
    "test_share": NUMBER,
    "source": TEXT,
    "tokenizer": TABLE,
    "model": TABLE,
    "teacher": TABLE,
    "student": TABLES,
}
LEAST_VOCABULARY = 257  # every byte, and the token between documents
TOKENIZER: Keys = {"vocab_size": WHOLE}
PAIRS: Keys = {
    **dict.fromkeys(("file", "member", "held_out", "train"), TEXT),
    **dict.fromkeys(("source", "target", "valid_groups", "test_groups"), WHOLE),
    "more": TABLES,
}
MORE: Keys = {"file": TEXT, **dict.fromkeys(("source", "target", "label"), WHOLE), "without": TEXTS}
MAX_COLUMN = 1 << 10


@dataclass(frozen=True)
class MorePairs:
    """Another file of sentence pairs."""

    file: str
    source: int = 0  # columns
    target: int = 1
    label: int | None = None  # column with the source of a pair
    without: tuple[str, ...] = ()  # labels to skip

    def __post_init__(self) -> None:
        for name in ("source", "target", *(["label"] if self.label is not None else [])):
            size(name, getattr(self, name), MAX_COLUMN, least=0)
        if self.without and self.label is None:
            raise UserError("the column `label` for `without`", "none", "name the column, or remove `without`")


@dataclass(frozen=True)
class PairsPlan:
    """Sentence pairs in two columns of a text file in a zip archive, and the number of groups per part."""

    file: str
    member: str
    source: int = 0  # columns
    target: int = 1
    valid_groups: int = 2000
    test_groups: int = 2000
    more: tuple[MorePairs, ...] = ()
    held_out: str | None = None  # file beside the recipe; its sentences are excluded from all parts
    train: str | None = None  # file of pairs to train on in place of the train part, such as augmented ones

    def __post_init__(self) -> None:
        for name in ("source", "target"):
            size(name, getattr(self, name), MAX_COLUMN, least=0)
        for name in ("valid_groups", "test_groups"):
            size(name, getattr(self, name))


@dataclass(frozen=True)
class Recipe:
    """A text or pairs, a teacher and students. The teacher is `source`, or a `model` trained with a new tokenizer.

    With `source`, `model` is the base that students change.

    Tokenizer, teacher and students share the same split of the data.
    """

    texts: tuple[str, ...]
    separator: str
    shares: Shares
    source: str | None
    vocab_size: int | None
    model: UniformConfig | None
    teacher: Training | None
    students: tuple[StudentPlan, ...]
    pairs: PairsPlan | None = None
    folder: Path = Path()  # folder of the recipe

    @property
    def held_out(self) -> Path | None:
        """The file of held-out pairs."""
        return None if self.pairs is None or self.pairs.held_out is None else self.folder / self.pairs.held_out

    def check_files(self, data: Path) -> None:
        """Raise UserError if a file is missing in the folder `data`, or the held-out pairs beside the recipe."""
        if self.texts:
            text_files([data / text for text in self.texts])
        if self.pairs is not None:
            existing_file(data / self.pairs.file, "the recipe's archive of pairs")
            for more in self.pairs.more:
                existing_file(data / more.file, "the recipe's further pairs")
            if self.pairs.train is not None:
                existing_file(data / self.pairs.train, "the recipe's pairs to train on")
        if self.held_out is not None:
            existing_file(self.held_out, "the pairs that the recipe holds out")
        if self.source is not None:
            existing_model(data / self.source)


def read_recipe(path: Path) -> Recipe:
    """Read a recipe from a TOML file.

    Raises:
        UserError: an unreadable file, or an unknown, missing or invalid key or value; names file and section.
    """
    try:
        data = tomllib.loads(read_text(path, f"a recipe in {path}"))
    except UserError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"a recipe in {path}", printable(error), "pass a TOML file; see models/storyteller") from error
    made = ("tokenizer", "model", "teacher") if "source" not in data else ()
    check(data, TOP, ("pairs" if "pairs" in data else "text", "student", *made), str(path))
    if "pairs" in data and "text" in data:
        raise wrong(str(path), "a text, or pairs", "both")
    read = {"pairs" if "pairs" in data else "data": (Path("nowhere"),)}
    students = read_students(data["student"], str(path), read, data.get("model"))
    if "pairs" not in data and any(student.sequence_beam for student in students):
        raise wrong(str(path), "pairs, whose sources a teacher translates", "a sequence_beam and a text")
    if "pairs" in data and any(student.prune for student in students):
        raise wrong(str(path), "a text, by which students are pruned", "pairs")
    others = [name for name in ("source", "tokenizer", "teacher") if name in data]
    if "source" in data and len(others) > 1:
        raise wrong(str(path), "a source, or a tokenizer, a model and a teacher", ", ".join(others))
    vocabulary = _vocabulary(data["tokenizer"], f"[tokenizer] of {path}") if made else None
    model = value(f"[model] of {path}", from_plain, UniformConfig, data["model"], "model") if "model" in data else None
    if vocabulary is not None and model is not None and model.vocab_size < vocabulary:
        expected = f"a vocab_size of at least {vocabulary} as in [tokenizer]"
        raise wrong(f"[model] of {path}", expected, str(model.vocab_size))
    return Recipe(
        texts(data["text"], f"text in {path}") if "text" in data else (),
        data.get("separator", SEPARATOR),
        value(str(path), lambda: Shares(*(data.get(f"{n}_share", getattr(Shares, n)) for n in ("valid", "test")))),
        inside(data["source"], f"source in {path}") if "source" in data else None,
        vocabulary,
        model,
        read_training({"stages": "task", **data["teacher"]}, f"[teacher] of {path}", read) if made else None,
        students,
        _pairs(data["pairs"], f"[pairs] of {path}") if "pairs" in data else None,
        path.parent,
    )


def _pairs(data: Mapping[str, Any], where: str) -> PairsPlan:
    check(data, PAIRS, ("file", "member"), where)
    for key in ("file", *(["train"] if "train" in data else [])):
        inside(data[key], f"{key} in {where}")
    held_out = data.get("held_out")
    if held_out is not None and (PurePath(held_out).name != held_out or "\0" in held_out or held_out == ".."):
        raise wrong(where, "the name of a file beside the recipe as held_out", repr(held_out))
    more = tuple(_more(table, f"more in {where}") for table in data.get("more", []))
    return value(where, lambda: PairsPlan(**{**data, "more": more}))


def _more(data: Any, where: str) -> MorePairs:
    if not isinstance(data, dict):
        raise wrong(where, "a list of tables", printable(repr(data), 60))
    check(data, MORE, ("file",), where)
    inside(data["file"], f"file in {where}")
    without = data.get("without", [])
    labels = [without] if isinstance(without, str) else without
    if not all(isinstance(label, str) for label in labels):
        raise wrong(where, TEXTS[1], printable(repr(without), 60))
    return value(where, lambda: MorePairs(**{**data, "without": tuple(labels)}))


def _vocabulary(data: Mapping[str, Any], where: str) -> int:
    check(data, TOKENIZER, TOKENIZER, where)
    value(where, size, "vocab_size", data["vocab_size"], MAX_SIZE, LEAST_VOCABULARY)
    return int(data["vocab_size"])
