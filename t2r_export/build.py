"""Build the models of a recipe: a TOML file that names the text, the teacher and the training of each student.

A recipe names a text and a teacher (a checkpoint, or a tokenizer and a model to train from random weights), and the
students to make from it. `build` runs `t2r convert` and `t2r finetune` for each in a work folder and keeps finished
files: a build that was stopped continues where it was. A file that another recipe or text has made is never kept: see
t2r_export.made.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from t2r_export.checkpoints import checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.plain import to_plain
from t2r_export.config.recipe import Recipe, StudentPlan, Training, read_recipe
from t2r_export.config.students import reason, student_mixer
from t2r_export.convert import convert, provenance
from t2r_export.data.documents import Texts, parted
from t2r_export.data.pairs import read_archived, read_pairs, split_groups, write_pairs
from t2r_export.data.vocabulary import train_pair_tokenizer, train_tokenizer
from t2r_export.export import export, read_by_beam
from t2r_export.files import sha256, write_bytes
from t2r_export.finetune import FinetuneReport, finetune
from t2r_export.made import RECORD, Made, Of, content
from t2r_export.model.initialize import initialize
from t2r_export.paths import text_files
from t2r_export.quality.translations import write_translations
from t2r_runtime.files import locked, unwritable
from t2r_runtime.outputs import beside

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
    recipe: Path,
    work: Path,
    data: Path,
    on_progress: Callable[[str], object] = lambda line: None,
    anew: bool = False,
) -> list[Student]:
    """Make every model of `recipe` in the folder `work`, and `work/results.json` with their losses.

    Args:
        recipe: a TOML file; models/storyteller/recipe.toml is an example with every key.
        work: where the teacher, the students and their logs go.
        data: the folder that the recipe's texts and source are in.
        anew: make again what another recipe or text has made in `work`.

    Raises:
        UserError: what t2r_export.config.recipe refuses, files that are not there, a folder that cannot be made, one
            that another build writes to, or without `anew` one with files that this recipe would make differently.
    """
    plan = read_recipe(recipe)
    plan.check_files(data)
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(work, error) from error
    with locked(work / RECORD, wait=False):
        return Build(plan, data, work, Made(work, anew, on_progress), on_progress).run()


class Build:
    """A recipe on its way: each method makes a file, or keeps the one that is there."""

    def __init__(self, plan: Recipe, data: Path, work: Path, made: Made, on_progress: Callable[[str], object]) -> None:
        self.plan, self.data, self.work, self.made, self.on_progress = plan, data, work, made, on_progress

    def run(self) -> list[Student]:
        """Make all, and the table of results as it grows."""
        self.of, self.shared = self._read()
        self.teacher = self.data / self.plan.source if self.plan.source is not None else self._make_teacher()
        self.teacher_sha256 = content(self.teacher)
        for plan in self.plan.students:  # before the first of them is trained
            self.made.check(*self._entry(plan))
        students: list[Student] = []
        for plan in self.plan.students:
            students.append(self._student(plan))
            results = [{**asdict(s), "path": s.path.name} for s in students]
            write_bytes(self.work / "results.json", (json.dumps(results, indent=1) + "\n").encode())
        return students

    def _read(self) -> tuple[Of, dict[str, Any]]:
        """What all runs read: as an entry of the record, and as options of FinetuneConfig.

        The parts of pairs are written to the folder first.
        """
        plan, data, work = self.plan, self.data, self.work
        if plan.pairs is None:
            texts = {text: content(data / text) for text in plan.texts}
            options = {
                "separator": plan.separator,
                "valid_share": plan.shares.valid,
                "test_share": plan.shares.test,
            }
            return {"text": texts, "[top]": options}, {"data": tuple(data / text for text in plan.texts), **options}
        of = {"archive of pairs": sha256(data / plan.pairs.file), "[pairs]": asdict(plan.pairs)}
        files = {name: work / f"{name}.tsv" for name in ("train", "valid", "test")}
        kept = [self.made.keeps(path, of) for path in files.values()]  # each is asked, whatever the first says
        if not all(kept):
            pairs = read_archived(data / plan.pairs.file, plan.pairs.member, (plan.pairs.source, plan.pairs.target))
            parts = split_groups(pairs, plan.pairs.valid_groups, plan.pairs.test_groups)
            for name, path in files.items():
                write_pairs(path, getattr(parts, name))
        return of, {"pairs": (files["train"],), "valid": files["valid"], "test": files["test"]}

    def _tokenizer(self) -> str:
        """Of the part that is trained on, of `plan.vocab_size` tokens."""
        plan, shared = self.plan, self.shared
        assert plan.vocab_size is not None
        if plan.pairs is not None:
            pairs = [pair for path in shared["pairs"] for pair in read_pairs(path)]
            return train_pair_tokenizer(pairs, plan.vocab_size)
        documents = parted(Texts(text_files(shared["data"]), plan.separator), plan.shares)
        return train_tokenizer((document for part, document in documents if part == 0), plan.vocab_size)

    def _make_teacher(self) -> Path:
        """Train the recipe's softmax model from random weights."""
        plan = self.plan
        assert plan.model is not None and plan.teacher is not None
        path, start = self.work / "teacher.pt", self.work / "start.pt"
        begun = {**self.of, "[tokenizer]": {"vocab_size": plan.vocab_size}, "[model]": to_plain(plan.model)}
        if self.made.keeps(path, {**begun, "[teacher]": _described(plan.teacher)}, *_beside(path)):
            return path
        if not self.made.keeps(start, begun):
            history = {"origin": "random weights"}
            checkpoint.save(start, initialize(plan.model.build(), seed=0), self._tokenizer(), history)
        self.on_progress(f"training the teacher: {path}")
        self._finetune(start, path, plan.teacher, None)
        return path

    def _said(self, beam: int) -> tuple[Path, ...]:
        """Files of the training pairs' sources with the teacher's own translations (Kim and Rush 2016, arXiv
        1606.07947).

        A piece is written at once, so that a build that was stopped goes on with the next.
        """
        sources = [source for path in self.shared["pairs"] for source, _ in read_pairs(path)]
        files = list[Path]()
        graph = self.work / f"teacher.beam{beam}.onnx"
        for first in range(0, len(sources), PIECE):
            path = self.work / f"train.beam{beam}.{first}.tsv"
            files.append(path)
            if self.made.keeps(path, {**self.of, "teacher": self.teacher_sha256, "size of a piece": PIECE}):
                continue
            if not self.made.keeps(graph, {"teacher": self.teacher_sha256}, *beside(graph)):
                loaded = checkpoint.load(self.teacher)
                export(loaded, graph, ExportConfig(top_k=read_by_beam(loaded.config, beam)))
            self.on_progress(f"what the teacher says of sources {first + 1:,} and on, of {len(sources):,}: {path}")
            write_translations(graph, path, sources[first : first + PIECE], beam)
        return tuple(files)

    def _begun(self, plan: StudentPlan) -> Of:
        """What a student is made of before its training."""
        return {"teacher": self.teacher_sha256, "[convert]": {**plan.convert, "random": plan.random}}

    def _entry(self, plan: StudentPlan) -> tuple[Path, Of, Path, Path, Path]:
        """A student's file, what it is made of, its figures, and what its training leaves beside it."""
        path, done = (self.work / f"{plan.name}{end}" for end in (".pt", ".json"))
        training = {**_described(plan.training), "sequence_beam": plan.sequence_beam}
        return path, {**self.of, **self._begun(plan), "[finetune]": training}, done, *_beside(path)

    def _student(self, plan: StudentPlan) -> Student:
        name, swapped = plan.name, self.work / f"{plan.name}.converted.pt"
        path, of, done, *others = self._entry(plan)
        if self.made.keeps(path, of, done, *others) and done.exists():
            return Student(**{**json.loads(done.read_text()), "path": path})
        if not self.made.keeps(swapped, self._begun(plan)):
            self._convert(plan, swapped)
        said = {"pairs": self._said(plan.sequence_beam)} if plan.sequence_beam else {}
        self.on_progress(f"training the student {name}: {path}")
        report = self._finetune(swapped, path, plan.training, self.teacher, **said)
        assert report.teacher is not None
        student = Student(name, path, report.teacher.nats, report.after.nats, report.tokens, report.seconds)
        write_bytes(done, json.dumps({**asdict(student), "path": path.name}).encode())
        return student

    def _convert(self, plan: StudentPlan, out: Path) -> None:
        loaded = checkpoint.load(self.teacher)
        for line in loaded.notes:
            self.on_progress(f"note: {line}")
        mixer, chosen = student_mixer(plan.kind, plan.options, loaded.config)
        if chosen:
            self.on_progress(f"note: {plan.name}: {reason(chosen)}")
        model = convert(loaded.model, mixer, plan.layers, plan.seed, plan.cross)
        if plan.random:
            model = initialize(model.config, plan.seed)
        history = provenance(loaded, **plan.convert)
        checkpoint.save(out, model, loaded.tokenizer, history, loaded.source_tokenizer)

    def _finetune(
        self, model: Path, output: Path, training: Training, teacher: Path | None, **said: Any
    ) -> FinetuneReport:
        options = {"model": model, "output": output, "teacher": teacher, **self.shared, **said, **training.options}
        config = FinetuneConfig(plan=training.plan, force=True, **options)
        return finetune(replace(config, resume=config.state_path.exists()))


def _described(training: Training) -> dict[str, Any]:
    """A section of training as plain data, with what its stages have by default."""
    return {"stages": [asdict(stage) for stage in training.plan], **training.options}


def _beside(output: Path) -> tuple[Path, Path]:
    """The unfinished run and the log of an output."""
    config = FinetuneConfig(model=output, output=output)
    return config.state_path, config.log_path
