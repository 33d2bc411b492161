"""Students of recipes: how each is made, and its training. Imports without torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.layer_numbers import read_layers
from t2r_export.config.mixers import LinearConfig, MixerConfig
from t2r_export.config.needs import FINETUNE, check_needs
from t2r_export.config.options import options, within
from t2r_export.config.parts import JointConfig
from t2r_export.config.plain import from_plain, of_table
from t2r_export.config.pruning import KINDS as PRUNED
from t2r_export.config.pruning import PruneConfig
from t2r_export.config.recipe_values import FLAG, NUMBER, TABLE, TEXT, WHOLE, Keys, check, value, wrong
from t2r_export.config.stages import StagePlan, parse_plan
from t2r_export.config.students import student_mixer
from t2r_export.config.uniform import CROSSES, UniformConfig
from t2r_export.config.validation import size
from t2r_runtime.errors import printable

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
    """One student: its conversion, own `model` or pruning, and its training."""

    name: str
    random: bool  # random initial weights instead of the teacher's
    kind: str  # of the mixer
    options: Mapping[str, Any]  # of the mixer, for t2r_export.config.students
    layers: str
    seed: int
    cross: MixerConfig | JointConfig | None  # cross-attention of a translator; None: the teacher's
    convert: Mapping[str, Any]  # unparsed, for the provenance
    training: Training
    sequence_beam: int = 0  # sequence-level distillation with this beam width; 0: train on the pairs
    model: UniformConfig | None = None  # in place of a conversion
    prune: PruneConfig | None = None  # in place of a conversion
    of: str | None = None  # earlier student to prune; None: the teacher


def read_students(
    tables: list[Any], file: str, read: Mapping[str, Any], model: Mapping[str, Any] | None
) -> tuple[StudentPlan, ...]:
    """The sections [[student]] of a recipe.

    Args:
        file: the recipe, for messages.
        read: the data field of FinetuneConfig.
        model: the table [model], which students may change.
    """
    if not tables or not all(isinstance(table, dict) for table in tables):
        raise wrong(file, "a list of tables as student", printable(repr(tables), 60))
    students = tuple(
        _student(table, f"[[student]] {number} of {file}", read, model) for number, table in enumerate(tables, 1)
    )
    names = [student.name for student in students]
    for name in names:
        if names.count(name) > 1 or name in RESERVED:
            raise wrong(file, f"unique student names other than {', '.join(RESERVED)}", name)
    for number, student in enumerate(students):
        if student.of is not None and student.of not in names[:number]:
            raise wrong(f"{student.name} of {file}", "a student above it as `of`", printable(student.of, 60))
    return students


def _student(
    data: Mapping[str, Any], where: str, read: Mapping[str, Any], model: Mapping[str, Any] | None
) -> StudentPlan:
    check(data, STUDENT, ("name", "finetune"), where)
    name, weights = data["name"], data.get("weights", "teacher")
    if not NAME.fullmatch(name):
        raise wrong(where, "a name of letters, digits, - and _", repr(name))
    if weights not in WEIGHTS:
        raise wrong(where, f"weights of {' or '.join(WEIGHTS)}", repr(weights))
    ways = [way for way in ("convert", "model", "prune") if way in data]
    if len(ways) != 1 or ("seed" in data and "model" not in data) or ("of" in data and "prune" not in data):
        expected = "convert (with its seed inside), or model, or prune (with its `of`)"
        raise wrong(where, expected, ", ".join(sorted(data)))
    own = {
        "convert": lambda: _converted(data["convert"], f"convert in {where}"),
        "model": lambda: _reshaped(data, where, model),
        "prune": lambda: _pruned(data, where),
    }[ways[0]]()
    beam = data.get("sequence_beam", 0)
    value(where, lambda: size("sequence_beam", beam, MAX_BEAM, least=0))
    training = read_training(data["finetune"], f"finetune in {where}", read)
    return StudentPlan(name=name, random=weights == "random", training=training, sequence_beam=beam, **own)


def _converted(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields of a StudentPlan that is a conversion of its teacher."""
    swap = dict(table)
    rest: dict[str, Any] = {key: swap.pop(key) for key in ("layers", "seed", "cross") if key in swap}
    check(rest, {"layers": TEXT, "seed": WHOLE, "cross": TABLE}, (), where)
    layers, seed = rest.get("layers", "all"), rest.get("seed", 0)
    value(where, read_layers, layers)
    value(where, lambda: size("seed", seed, least=0))
    kind = swap.pop("kind", LinearConfig.kind)
    value(where, student_mixer, kind, swap)
    crosses = [{"kind": "linear", **rest["cross"]}] if "cross" in rest else []
    cross = next((value(where, of_table, CROSSES, one, "cross") for one in crosses), None)
    return {"kind": kind, "options": swap, "layers": layers, "seed": seed, "cross": cross, "convert": table}


def _reshaped(data: Mapping[str, Any], where: str, model: Mapping[str, Any] | None) -> dict[str, Any]:
    """The fields of a StudentPlan with its own model: [model] with changed keys."""
    if model is None:
        raise wrong(where, "the table [model], whose keys a student's model changes", "none")
    seed = data.get("seed", 0)
    value(where, lambda: size("seed", seed, least=0))
    made = value(f"model in {where}", from_plain, UniformConfig, {**model, **data["model"]}, "model")
    changes = {"model": data["model"], "seed": seed}
    return {**UNCONVERTED, "seed": seed, "convert": changes, "model": made}


def _pruned(data: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields of a StudentPlan that is pruned."""
    if stray := [key for key in ("weights", "sequence_beam") if key in data]:
        raise wrong(where, f"prune, or {stray[0]}", "both")
    check(data["prune"], dict.fromkeys(PRUNED, NUMBER), (), f"prune in {where}")
    made = value(f"prune in {where}", lambda: PruneConfig(**data["prune"]))
    changes = {key: data[key] for key in ("prune", "of") if key in data}
    return {**UNCONVERTED, "convert": changes, "prune": made, "of": data.get("of")}


def read_training(data: Mapping[str, Any], where: str, read: Mapping[str, Any]) -> Training:
    """A section [teacher], or finetune of [[student]]. Args: read: the data field of FinetuneConfig."""
    check(data, TRAINING, (), where)
    given = dict(data)
    words = [given.pop(key, None) for key in ("stages", "steps", "lr")]
    plan = value(where, parse_plan, *words)
    nowhere = Path("nowhere")
    config = value(where, lambda: FinetuneConfig(model=nowhere, output=nowhere, plan=plan, **read, **given))
    value(where, lambda: check_needs(FINETUNE, vars(config), given, within(FinetuneConfig)))
    return Training(plan, given)
