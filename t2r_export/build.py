"""Build the models of a recipe: a TOML file that names the text, the teacher and the training of each student.

A recipe names a text and a teacher (a checkpoint, or a tokenizer and a model to train from random weights), and the
students to make from it. `build` runs `t2r convert` and `t2r finetune` for each in a work folder and keeps finished
files: a build that was stopped continues where it was.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from t2r_export.checkpoints import checkpoint
from t2r_export.config.finetune import FinetuneConfig, parse_plan
from t2r_export.config.mixers import mixer_from_dict
from t2r_export.config.model import ModelConfig
from t2r_export.convert import convert, provenance
from t2r_export.files import write_bytes
from t2r_export.finetune import finetune
from t2r_export.model.initialize import initialize
from t2r_export.training.data import read_documents
from t2r_export.vocabulary import train_tokenizer, without_held_out
from t2r_runtime.errors import UserError

TOP = {"text", "source", "tokenizer", "model", "teacher", "student"}
STUDENT = {"name", "weights", "convert", "finetune"}


@dataclass(frozen=True)
class Student:
    """One model of a build and how it compares with its teacher on the held-out text."""

    name: str
    path: Path
    teacher_nats: float
    student_nats: float
    tokens: int
    seconds: float


def build(
    recipe: Path, work: Path, data: Path, on_progress: Callable[[str], object] = lambda line: None
) -> list[Student]:
    """Make every model of `recipe` in the folder `work`, and `work/results.json` with their losses.

    Args:
        recipe: a TOML file; models/storyteller/recipe.toml is an example with every key.
        work: where the teacher, the students and their logs go.
        data: the folder that the recipe's text and source are in.

    Raises:
        UserError: a recipe with unknown or missing keys, or files that are not there.
    """
    plan = _read(recipe)
    work.mkdir(parents=True, exist_ok=True)
    text = data / plan["text"]
    teacher = data / plan["source"] if "source" in plan else _teacher(plan, text, work, on_progress)
    students = []
    for options in plan["student"]:
        students.append(_student(options, teacher, text, work, on_progress))
        results = [{**asdict(s), "path": s.path.name} for s in students]
        write_bytes(work / "results.json", (json.dumps(results, indent=1) + "\n").encode())
    return students


def _teacher(plan: Mapping[str, Any], text: Path, work: Path, on_progress: Callable[[str], object]) -> Path:
    """Train the recipe's softmax model from random weights."""
    path, start = work / "teacher.pt", work / "start.pt"
    if path.exists():
        return path
    if not start.exists():
        documents = read_documents(text)
        tokenizer = train_tokenizer(without_held_out(documents), plan["tokenizer"]["vocab_size"])
        config = ModelConfig.from_dict(plan["model"])
        checkpoint.save(start, initialize(config, seed=0), tokenizer, {"origin": "random weights"})
    on_progress(f"training the teacher: {path}")
    _finetune(start, path, text, {"stages": "task", **plan["teacher"]}, None)
    return path


def _student(
    options: Mapping[str, Any], teacher: Path, text: Path, work: Path, on_progress: Callable[[str], object]
) -> Student:
    name = options["name"]
    path, swapped, done = work / f"{name}.pt", work / f"{name}.converted.pt", work / f"{name}.json"
    if done.exists() and path.exists():
        return Student(**{**json.loads(done.read_text()), "path": path})
    if not swapped.exists():
        loaded = checkpoint.load(teacher)
        for line in loaded.notes:
            on_progress(f"note: {line}")
        swap = dict(options["convert"])
        layers, seed = swap.pop("layers", "all"), swap.pop("seed", 0)
        start = initialize(loaded.model.config, seed) if options.get("weights") == "random" else loaded.model
        model = convert(start, mixer_from_dict({"kind": "linear", **swap}), layers, seed)
        checkpoint.save(swapped, model, loaded.tokenizer, provenance(loaded, **options["convert"]))
    on_progress(f"training the student {name}: {path}")
    report = _finetune(swapped, path, text, options["finetune"], teacher)
    assert report.teacher is not None
    student = Student(name, path, report.teacher.nats, report.after.nats, report.tokens, report.seconds)
    write_bytes(done, json.dumps({**asdict(student), "path": path.name}).encode())
    return student


def _finetune(model: Path, output: Path, text: Path, options: Mapping[str, Any], teacher: Path | None) -> Any:
    rest = dict(options)
    stages = parse_plan(rest.pop("stages"), rest.pop("steps", None), rest.pop("lr", None))
    config = FinetuneConfig(model=model, output=output, data=(text,), plan=stages, teacher=teacher, **rest)
    if config.state_path.exists():
        config = FinetuneConfig(**{**vars(config), "resume": True})
    return finetune(config)


def _read(recipe: Path) -> dict[str, Any]:
    try:
        plan = tomllib.loads(recipe.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"a recipe in {recipe}", str(error), "give a TOML file; see models/storyteller") from error
    needed = {"text", "student"} | ({"source"} if "source" in plan else {"tokenizer", "model", "teacher"})
    if not needed <= set(plan) <= TOP:
        raise UserError(
            f"the keys {', '.join(sorted(needed))} in {recipe}",
            f"missing {sorted(needed - set(plan)) or 'none'}, unknown {sorted(set(plan) - TOP) or 'none'}",
            "correct the recipe",
        )
    for student in plan["student"]:
        keys, weights = set(student), student.get("weights", "teacher")
        if not STUDENT - {"weights"} <= keys <= STUDENT or weights not in ("teacher", "random"):
            raise UserError(
                f"a student's keys {', '.join(sorted(STUDENT))}, with weights 'teacher' or 'random'",
                f"{', '.join(sorted(keys))}, weights {weights!r}",
                "correct the recipe",
            )
    return plan


def data_folder() -> Path:
    """Where texts and source checkpoints are: $T2R_DATA, or shared/data beside the project."""
    return Path(os.environ.get("T2R_DATA", Path("..", "shared", "data")))
