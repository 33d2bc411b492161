"""Build the models of a recipe: a TOML file that names the text, the teacher and the training of each student.

A recipe names a text and a teacher (a checkpoint, or a tokenizer and a model to train from random weights), and the
students to make from it. `build` runs `t2r convert` and `t2r finetune` for each in a work folder and keeps finished
files: a build that was stopped continues where it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from t2r_export.checkpoints import checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.recipe import Recipe, StudentPlan, Training, read_recipe
from t2r_export.config.students import reason, student_mixer
from t2r_export.convert import convert, provenance
from t2r_export.export import export, read_by_beam
from t2r_export.files import write_bytes
from t2r_export.finetune import FinetuneReport, finetune
from t2r_export.model.initialize import initialize
from t2r_export.training.data import read_documents, split_documents
from t2r_export.training.pairs import read_archived, read_pairs, split_groups, write_pairs
from t2r_export.translations import write_translations
from t2r_export.vocabulary import train_pair_tokenizer, train_tokenizer
from t2r_runtime.files import unwritable

PIECE = 8192  # sources whose translations stand in one file


@dataclass(frozen=True)
class Student:
    """One model of a build and how it compares with its teacher on the test part of the text."""

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
        data: the folder that the recipe's texts and source are in.

    Raises:
        UserError: what t2r_export.config.recipe refuses, files that are not there, or a folder that cannot be made.
    """
    plan = read_recipe(recipe)
    plan.check_files(data)
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(work, error) from error
    shared = _shared(plan, data, work)
    teacher = data / plan.source if plan.source is not None else _teacher(plan, shared, work, on_progress)
    students = []
    for student in plan.students:
        said = {"pairs": _said(student, teacher, shared, work, on_progress)} if student.sequence_beam else {}
        students.append(_student(student, teacher, {**shared, **said}, work, on_progress))
        results = [{**asdict(s), "path": s.path.name} for s in students]
        write_bytes(work / "results.json", (json.dumps(results, indent=1) + "\n").encode())
    return students


def _shared(plan: Recipe, data: Path, work: Path) -> dict[str, Any]:
    """Options of FinetuneConfig that all runs share: what is read. The parts of pairs are written to `work` first."""
    if plan.pairs is None:
        return {
            "data": tuple(data / text for text in plan.texts),
            "separator": plan.separator,
            "valid_share": plan.shares.valid,
            "test_share": plan.shares.test,
        }
    files = {name: work / f"{name}.tsv" for name in ("train", "valid", "test")}
    if not all(path.exists() for path in files.values()):
        pairs = read_archived(data / plan.pairs.file, plan.pairs.member, (plan.pairs.source, plan.pairs.target))
        parts = split_groups(pairs, plan.pairs.valid_groups, plan.pairs.test_groups)
        for name, path in files.items():
            write_pairs(path, getattr(parts, name))
    return {"pairs": (files["train"],), "valid": files["valid"], "test": files["test"]}


def _tokenizer(plan: Recipe, shared: Mapping[str, Any]) -> str:
    """Of the part that is trained on, of `plan.vocab_size` tokens."""
    assert plan.vocab_size is not None
    if plan.pairs is not None:
        return train_pair_tokenizer([pair for path in shared["pairs"] for pair in read_pairs(path)], plan.vocab_size)
    documents = [document for path in shared["data"] for document in read_documents(path, plan.separator)]
    return train_tokenizer(split_documents(documents, plan.shares)[0], plan.vocab_size)


def _teacher(plan: Recipe, shared: Mapping[str, Any], work: Path, on_progress: Callable[[str], object]) -> Path:
    """Train the recipe's softmax model from random weights. `shared` are options of FinetuneConfig: what is read."""
    assert plan.model is not None and plan.teacher is not None
    path, start = work / "teacher.pt", work / "start.pt"
    if path.exists():
        return path
    if not start.exists():
        checkpoint.save(start, initialize(plan.model, seed=0), _tokenizer(plan, shared), {"origin": "random weights"})
    on_progress(f"training the teacher: {path}")
    _finetune(start, path, shared, plan.teacher, None)
    return path


def _said(
    plan: StudentPlan, teacher: Path, shared: Mapping[str, Any], work: Path, on_progress: Callable[[str], object]
) -> tuple[Path, ...]:
    """Files of the training pairs' sources with the teacher's own translations (Kim and Rush 2016, arXiv 1606.07947).

    A piece is written at once, so that a build that was stopped goes on with the next.
    """
    sources = [source for path in shared["pairs"] for source, _ in read_pairs(path)]
    beam, files = plan.sequence_beam, list[Path]()
    graph = work / f"teacher.beam{beam}.onnx"
    for first in range(0, len(sources), PIECE):
        path = work / f"train.beam{beam}.{first}.tsv"
        files.append(path)
        if path.exists():
            continue
        if not graph.exists():
            loaded = checkpoint.load(teacher)
            export(loaded, graph, ExportConfig(top_k=read_by_beam(loaded.config, beam)))
        on_progress(f"what the teacher says of sources {first + 1:,} and on, of {len(sources):,}: {path}")
        write_translations(graph, path, sources[first : first + PIECE], beam)
    return tuple(files)


def _student(
    plan: StudentPlan, teacher: Path, shared: Mapping[str, Any], work: Path, on_progress: Callable[[str], object]
) -> Student:
    name = plan.name
    path, swapped, done = work / f"{name}.pt", work / f"{name}.converted.pt", work / f"{name}.json"
    if done.exists() and path.exists():
        return Student(**{**json.loads(done.read_text()), "path": path})
    if not swapped.exists():
        loaded = checkpoint.load(teacher)
        for line in loaded.notes:
            on_progress(f"note: {line}")
        mixer, chosen = student_mixer(plan.kind, plan.options, loaded.config)
        if chosen:
            on_progress(f"note: {name}: {reason(chosen)}")
        model = convert(loaded.model, mixer, plan.layers, plan.seed, plan.cross)
        if plan.random:
            model = initialize(model.config, plan.seed)
        history = provenance(loaded, **plan.convert)
        checkpoint.save(swapped, model, loaded.tokenizer, history, loaded.source_tokenizer)
    on_progress(f"training the student {name}: {path}")
    report = _finetune(swapped, path, shared, plan.training, teacher)
    assert report.teacher is not None
    student = Student(name, path, report.teacher.nats, report.after.nats, report.tokens, report.seconds)
    write_bytes(done, json.dumps({**asdict(student), "path": path.name}).encode())
    return student


def _finetune(
    model: Path, output: Path, shared: Mapping[str, Any], training: Training, teacher: Path | None
) -> FinetuneReport:
    options = {"model": model, "output": output, "teacher": teacher, **shared, **training.options}
    config = FinetuneConfig(plan=training.plan, force=True, **options)
    return finetune(replace(config, resume=config.state_path.exists()))
