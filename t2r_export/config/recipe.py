"""Recipes: TOML files that describe data, a teacher and its students. Imports without torch.

A table per section lists its keys; combinations are checked by the configs made of them. Recipes are untrusted and can
only name files in the data folder and models in the work folder.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, TypeVar

from t2r_export.config.finetune import SEPARATOR, FinetuneConfig, Shares
from t2r_export.config.layer_numbers import read_layers
from t2r_export.config.mixers import LinearConfig, MixerConfig
from t2r_export.config.needs import FINETUNE, check_needs
from t2r_export.config.options import options, within
from t2r_export.config.plain import from_plain, of_table
from t2r_export.config.pruning import KINDS as PRUNED
from t2r_export.config.pruning import PruneConfig
from t2r_export.config.stages import StagePlan, parse_plan
from t2r_export.config.students import student_mixer
from t2r_export.config.uniform import CROSSES, MergeConfig, UniformConfig
from t2r_export.config.validation import size
from t2r_export.paths import existing_model, text_files
from t2r_runtime.errors import UserError, printable
from t2r_runtime.files import existing_file
from t2r_runtime.text.texts import read_text

T = TypeVar("T")

# kinds of values: Python types (a bool is not a number), and a description
TEXT, WHOLE, FLAG = ((str,), "a text"), ((int,), "a whole number"), ((bool,), "true or false")
NUMBER, TABLE, TABLES = ((int, float), "a number"), ((dict,), "a table"), ((list,), "a list of tables")
TEXTS = ((str, list), "a text or a list of texts")
Keys = Mapping[str, tuple[tuple[type, ...], str]]

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
TOKENIZER: Keys = {"vocab_size": WHOLE}
PAIRS: Keys = {
    **dict.fromkeys(("file", "member", "held_out"), TEXT),
    **dict.fromkeys(("source", "target", "valid_groups", "test_groups"), WHOLE),
    "more": TABLES,
}
MORE: Keys = {"file": TEXT, **dict.fromkeys(("source", "target", "label"), WHOLE), "without": TEXTS}
MAX_COLUMN = 1 << 10
MAX_BEAM = 1 << 10
STUDENT: Keys = {
    **dict.fromkeys(("name", "weights", "of"), TEXT),
    **dict.fromkeys(("sequence_beam", "seed"), WHOLE),
    **dict.fromkeys(("convert", "model", "prune", "finetune"), TABLE),
}
KINDS = {"str": TEXT, "int": WHOLE, "int | None": WHOLE, "float": NUMBER, "bool": FLAG}
TRAINING: Keys = {  # [teacher] and finetune of [[student]]: options of `t2r finetune`
    **dict.fromkeys(("stages", "steps", "lr"), TEXT),
    **{
        name: KINDS[str(field.type)]
        for name, field in options(FinetuneConfig).items()
        if str(field.type) in KINDS and not field.metadata.get("shared")
    },
    "lora": FLAG,
}
WEIGHTS = ("teacher", "random")
UNCONVERTED = {"kind": "", "options": {}, "layers": "all", "seed": 0, "cross": None}  # of a StudentPlan
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
RESERVED = ("teacher", "start", "results", "train", "valid", "test")  # names that `build` uses


@dataclass(frozen=True)
class Training:
    """A training plan, and options of FinetuneConfig."""

    plan: tuple[StagePlan, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class StudentPlan:
    """One student: its conversion, its own `model`, or what is pruned, and its training."""

    name: str
    random: bool  # random initial weights instead of the teacher's
    kind: str  # of the mixer
    options: Mapping[str, Any]  # of the mixer, for t2r_export.config.students
    layers: str
    seed: int
    cross: MixerConfig | MergeConfig | None  # of a translator; None: the teacher's
    convert: Mapping[str, Any]  # unparsed, for the provenance
    training: Training
    sequence_beam: int = 0  # sequence-level distillation with this beam width; 0: train on the pairs
    model: UniformConfig | None = None  # in place of a conversion
    prune: PruneConfig | None = None  # in place of a conversion
    of: str | None = None  # the student above that is pruned; None: the teacher


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
    held_out: str | None = None  # file beside the recipe; its sentences are in no part

    def __post_init__(self) -> None:
        for name in ("source", "target"):
            size(name, getattr(self, name), MAX_COLUMN, least=0)
        for name in ("valid_groups", "test_groups"):
            size(name, getattr(self, name))


@dataclass(frozen=True)
class Recipe:
    """A text or pairs, a teacher and students. The teacher is `source`, or a `model` trained with a new tokenizer.

    With `source`, `model` is what students change.

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
    folder: Path = Path()  # of the recipe

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
        if self.held_out is not None:
            existing_file(self.held_out, "the pairs that the recipe holds out")
        if self.source is not None:
            existing_model(data / self.source)


def data_folder() -> Path:
    """The folder of texts and source checkpoints: $T2R_DATA, or ../shared/data."""
    return Path(os.environ.get("T2R_DATA", Path("..", "shared", "data")))


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
        raise UserError(f"a recipe in {path}", printable(error), "give a TOML file; see models/storyteller") from error
    made = ("tokenizer", "model", "teacher") if "source" not in data else ()
    _check(data, TOP, ("pairs" if "pairs" in data else "text", "student", *made), str(path))
    if "pairs" in data and "text" in data:
        raise _wrong(str(path), "a text, or pairs", "both")
    read = {"pairs" if "pairs" in data else "data": (Path("nowhere"),)}
    students = _students(data["student"], str(path), read, data.get("model"))
    if "pairs" not in data and any(student.sequence_beam for student in students):
        raise _wrong(str(path), "pairs, whose sources a teacher translates", "a sequence_beam and a text")
    if "pairs" in data and any(student.prune for student in students):
        raise _wrong(str(path), "a text, by which students are pruned", "pairs")
    others = [name for name in ("source", "tokenizer", "teacher") if name in data]
    if "source" in data and len(others) > 1:
        raise _wrong(str(path), "a source, or a tokenizer, a model and a teacher", ", ".join(others))
    return Recipe(
        _texts(data["text"], f"text in {path}") if "text" in data else (),
        data.get("separator", SEPARATOR),
        _value(str(path), lambda: Shares(*(data.get(f"{n}_share", getattr(Shares, n)) for n in ("valid", "test")))),
        _inside(data["source"], f"source in {path}") if "source" in data else None,
        _vocabulary(data["tokenizer"], f"[tokenizer] of {path}") if made else None,
        _value(f"[model] of {path}", from_plain, UniformConfig, data["model"], "model") if "model" in data else None,
        _training({"stages": "task", **data["teacher"]}, f"[teacher] of {path}", read) if made else None,
        students,
        _pairs(data["pairs"], f"[pairs] of {path}") if "pairs" in data else None,
        path.parent,
    )


def _pairs(data: Mapping[str, Any], where: str) -> PairsPlan:
    _check(data, PAIRS, ("file", "member"), where)
    _inside(data["file"], f"file in {where}")
    held_out = data.get("held_out")
    if held_out is not None and (PurePath(held_out).name != held_out or "\0" in held_out or held_out == ".."):
        raise _wrong(where, "the name of a file beside the recipe as held_out", repr(held_out))
    more = tuple(_more(table, f"more in {where}") for table in data.get("more", []))
    return _value(where, lambda: PairsPlan(**{**data, "more": more}))


def _more(data: Any, where: str) -> MorePairs:
    if not isinstance(data, dict):
        raise _wrong(where, "a list of tables", printable(repr(data), 60))
    _check(data, MORE, ("file",), where)
    _inside(data["file"], f"file in {where}")
    without = data.get("without", [])
    labels = [without] if isinstance(without, str) else without
    if not all(isinstance(label, str) for label in labels):
        raise _wrong(where, TEXTS[1], printable(repr(without), 60))
    return _value(where, lambda: MorePairs(**{**data, "without": tuple(labels)}))


def _vocabulary(data: Mapping[str, Any], where: str) -> int:
    _check(data, TOKENIZER, TOKENIZER, where)
    _value(where, size, "vocab_size", data["vocab_size"])
    return int(data["vocab_size"])


def _students(
    tables: list[Any], file: str, read: Mapping[str, Any], model: Mapping[str, Any] | None
) -> tuple[StudentPlan, ...]:
    """Args: model: the table [model], which students may change."""
    if not tables or not all(isinstance(table, dict) for table in tables):
        raise _wrong(file, "a list of tables as student", printable(repr(tables), 60))
    students = tuple(
        _student(table, f"[[student]] {number} of {file}", read, model) for number, table in enumerate(tables, 1)
    )
    names = [student.name for student in students]
    for name in names:
        if names.count(name) > 1 or name in RESERVED:
            raise _wrong(file, f"unique student names other than {', '.join(RESERVED)}", name)
    for number, student in enumerate(students):
        if student.of is not None and student.of not in names[:number]:
            raise _wrong(f"{student.name} of {file}", "a student above it as `of`", printable(student.of, 60))
    return students


def _student(
    data: Mapping[str, Any], where: str, read: Mapping[str, Any], model: Mapping[str, Any] | None
) -> StudentPlan:
    _check(data, STUDENT, ("name", "finetune"), where)
    name, weights = data["name"], data.get("weights", "teacher")
    if not NAME.fullmatch(name):
        raise _wrong(where, "a name of letters, digits, - and _", repr(name))
    if weights not in WEIGHTS:
        raise _wrong(where, f"weights of {' or '.join(WEIGHTS)}", repr(weights))
    ways = [way for way in ("convert", "model", "prune") if way in data]
    if len(ways) != 1 or ("seed" in data and "model" not in data) or ("of" in data and "prune" not in data):
        expected = "convert (with its seed inside), or model, or prune (with its `of`)"
        raise _wrong(where, expected, ", ".join(sorted(data)))
    own = _pruned(data, where) if "prune" in data else _reshaped(data, where, model) if "model" in data else None
    own = own or _converted(data["convert"], f"convert in {where}")
    beam = data.get("sequence_beam", 0)
    _value(where, lambda: size("sequence_beam", beam, MAX_BEAM, least=0))
    training = _training(data["finetune"], f"finetune in {where}", read)
    return StudentPlan(name=name, random=weights == "random", training=training, sequence_beam=beam, **own)


def _converted(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields of a StudentPlan that is a conversion of its teacher."""
    swap = dict(table)
    rest: dict[str, Any] = {key: swap.pop(key) for key in ("layers", "seed", "cross") if key in swap}
    _check(rest, {"layers": TEXT, "seed": WHOLE, "cross": TABLE}, (), where)
    layers, seed = rest.get("layers", "all"), rest.get("seed", 0)
    _value(where, read_layers, layers)
    _value(where, lambda: size("seed", seed, least=0))
    kind = swap.pop("kind", LinearConfig.kind)
    _value(where, student_mixer, kind, swap)
    crosses = [{"kind": "linear", **rest["cross"]}] if "cross" in rest else []
    cross = next((_value(where, of_table, CROSSES, one, "cross") for one in crosses), None)
    return {"kind": kind, "options": swap, "layers": layers, "seed": seed, "cross": cross, "convert": table}


def _reshaped(data: Mapping[str, Any], where: str, model: Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields of a StudentPlan that has a model of its own: keys of [model], changed."""
    if model is None:
        raise _wrong(where, "the table [model], whose keys a student's model changes", "none")
    seed = data.get("seed", 0)
    _value(where, lambda: size("seed", seed, least=0))
    made = _value(f"model in {where}", from_plain, UniformConfig, {**model, **data["model"]}, "model")
    said = {"model": data["model"], "seed": seed}
    return {**UNCONVERTED, "seed": seed, "convert": said, "model": made}


def _pruned(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields of a StudentPlan that is pruned."""
    if stray := [key for key in ("weights", "sequence_beam") if key in data]:
        raise _wrong(where, f"prune, or {stray[0]}", "both")
    _check(data["prune"], dict.fromkeys(PRUNED, NUMBER), (), f"prune in {where}")
    made = _value(f"prune in {where}", lambda: PruneConfig(**data["prune"]))
    said = {key: data[key] for key in ("prune", "of") if key in data}
    return {**UNCONVERTED, "convert": said, "prune": made, "of": data.get("of")}


def _training(data: Mapping[str, Any], where: str, read: Mapping[str, Any]) -> Training:
    """Args: read: the data field of FinetuneConfig."""
    _check(data, TRAINING, (), where)
    given = dict(data)
    words = [given.pop(key, None) for key in ("stages", "steps", "lr")]
    plan = _value(where, parse_plan, *words)
    nowhere = Path("nowhere")
    config = _value(where, lambda: FinetuneConfig(model=nowhere, output=nowhere, plan=plan, **read, **given))
    _value(where, lambda: check_needs(FINETUNE, vars(config), given, within(FinetuneConfig)))
    return Training(plan, given)


def _check(data: Mapping[str, Any], keys: Keys, needed: tuple[str, ...] | Keys, where: str) -> None:
    """Raise UserError unless `data` has all `needed` keys, and only `keys` with values of their kinds."""
    for key in data:
        if key not in keys:
            raise _wrong(where, f"the keys {', '.join(keys)}", f"the key {printable(key, 60)}")
    for key in needed:
        if key not in data:
            raise _wrong(where, f"the key {key}", "none")
    for key, value in data.items():
        types, kind = keys[key]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise _wrong(where, f"{key} to be {kind}", printable(repr(value), 60))


def _value(where: str, make: Callable[..., T], *arguments: Any) -> T:
    """Call `make`; its errors name the place in the recipe."""
    try:
        return make(*arguments)
    except UserError as error:
        raise _wrong(where, error.expected, error.received, error.do) from error
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise _wrong(where, "values of the documented kinds", printable(error)) from error


def _texts(value: str | list[Any], where: str) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not names or not all(isinstance(name, str) for name in names):
        raise _wrong(where, TEXTS[1], printable(repr(value), 60))
    return tuple(_inside(name, where) for name in names)


def _inside(name: str, where: str) -> str:
    """`name`, if it is a relative path without `..`."""
    path = PurePath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name:
        raise _wrong(where, "the name of a file in the data folder", repr(name))
    return name


def _wrong(where: str, expected: str, received: str, do: str = "correct the recipe") -> UserError:
    return UserError(f"in {where} {expected}", received, f"{do}; docs/finetuning.md has a recipe's keys")
