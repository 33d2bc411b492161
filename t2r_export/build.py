"""Build the models of a recipe: a TOML file with training data, a teacher and students.

The teacher is a checkpoint, or a tokenizer and a model to train from random weights. `build` converts and finetunes
each student in a work folder. Finished files are kept, so an interrupted build resumes; files made by another recipe or
from other data are never reused (t2r_export.checkpoints.build_record).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.build_record import BuildRecord, Origin, content
from t2r_export.config.export import ExportConfig
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.options import options
from t2r_export.config.plain import to_plain
from t2r_export.config.recipe import Recipe, read_recipe
from t2r_export.config.recipe_students import StudentPlan, Training
from t2r_export.config.students import reason, student_mixer
from t2r_export.convert import conversion, provenance, reshape
from t2r_export.data.corpus import read_corpus
from t2r_export.data.documents import Texts, parted
from t2r_export.data.pair_sources import read_plan
from t2r_export.data.pairs import read_pairs, split_groups, write_pairs
from t2r_export.data.vocabulary import train_pair_tokenizer, train_tokenizer
from t2r_export.export import export, read_by_beam
from t2r_export.files import sha256, write_bytes
from t2r_export.finetune import FinetuneReport, finetune
from t2r_export.model.initialize import initialize
from t2r_export.paths import RECORD, text_files
from t2r_export.pruning.prune import provenance as pruned
from t2r_export.pruning.prune import prune
from t2r_export.quality.translations import write_translations
from t2r_runtime.files import locked, unwritable
from t2r_runtime.outputs import beside

PIECE = 8192  # translated sources per file


@dataclass(frozen=True)
class Student:
    """A trained student, with its and its teacher's nats per token on the test part, and their standard errors.

    An error is None for a single window, or for a student built by an earlier version.
    """

    name: str
    path: Path
    teacher_nats: float
    student_nats: float
    tokens: int
    seconds: float
    teacher_error: float | None = None
    student_error: float | None = None


def build(
    recipe: Path,
    work: Path,
    data: Path,
    on_progress: Callable[[str], object] = lambda line: None,
    anew: bool = False,
) -> list[Student]:
    """Build all models of `recipe` in the folder `work`, and write their losses to `work/results.json`.

    Args:
        recipe: a TOML file; models/storyteller/recipe.toml is an example with every key.
        work: folder of the teacher, the students and their logs.
        data: folder of the recipe's data files.
        anew: replace files in `work` that have another origin.

    Raises:
        UserError: an invalid recipe, missing files, a folder that cannot be created or that another build uses, or
            files of another origin without `anew`.
    """
    plan = read_recipe(recipe)
    plan.check_files(data)
    try:
        work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(work, error) from error
    with locked(work / RECORD, wait=False):
        return Build(plan, data, work, BuildRecord(work, anew, on_progress), on_progress).run()


class Build:
    """A running build. Each method makes a file unless a current one exists."""

    def __init__(
        self, plan: Recipe, data: Path, work: Path, record: BuildRecord, on_progress: Callable[[str], object]
    ) -> None:
        self.plan, self.data, self.work, self.record, self.on_progress = plan, data, work, record, on_progress

    def run(self) -> list[Student]:
        """Make all models; results.json is updated after each student."""
        self.origin, self.shared = self._read()
        self.teacher = self.data / self.plan.source if self.plan.source is not None else self._make_teacher()
        self.teacher_sha256 = content(self.teacher)
        for plan in self.plan.students:  # fails before any training
            self.record.check(*self._entry(plan))
        students: list[Student] = []
        for plan in self.plan.students:
            students.append(self._student(plan))
            results = [{**asdict(s), "path": s.path.name} for s in students]
            write_bytes(self.work / "results.json", (json.dumps(results, indent=1) + "\n").encode())
        return students

    def _read(self) -> tuple[Origin, dict[str, Any]]:
        """The training data as an entry of the record, and as options of FinetuneConfig. Writes the parts of pairs."""
        plan, data, work = self.plan, self.data, self.work
        if plan.pairs is None:
            texts = {text: content(data / text) for text in plan.texts}
            options = {
                "separator": plan.separator,
                "valid_share": plan.shares.valid,
                "test_share": plan.shares.test,
            }
            return {"text": texts, "[top]": options}, {"data": tuple(data / text for text in plan.texts), **options}
        optional = ("more", "held_out", "train")  # files that are hashed below
        named = {name: value for name, value in asdict(plan.pairs).items() if value or name not in optional}
        origin: dict[str, Any] = {"archive of pairs": sha256(data / plan.pairs.file), "[pairs]": named}
        if plan.pairs.more:
            origin["more pairs"] = [sha256(data / more.file) for more in plan.pairs.more]
        if plan.held_out is not None:
            origin["held-out pairs"] = sha256(plan.held_out)
        if plan.pairs.train is not None:
            origin["pairs to train on"] = sha256(data / plan.pairs.train)
        files = {name: work / f"{name}.tsv" for name in ("train", "valid", "test")}
        current = [self.record.current(path, origin) for path in files.values()]  # records all three
        if not all(current):
            pairs, skipped = read_plan(plan.pairs, data, plan.held_out)
            if skipped:
                self.on_progress(f"note: skipped {skipped:,} pairs that share a sentence with {plan.held_out}")
            parts = split_groups(pairs, plan.pairs.valid_groups, plan.pairs.test_groups)
            for name, path in files.items():
                write_pairs(path, getattr(parts, name))
        return origin, {"pairs": (files["train"],), "valid": files["valid"], "test": files["test"]}

    def _tokenizer(self) -> str:
        """Train a tokenizer of `plan.vocab_size` tokens on the train part."""
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
        begun = {
            **self.origin,
            "[tokenizer]": {"vocab_size": plan.vocab_size},
            "[model]": to_plain(plan.model, short=True),
        }
        if self.record.current(path, {**begun, "[teacher]": _described(plan.teacher)}, *_beside(path)):
            return path
        if not self.record.current(start, begun):
            history = {"origin": "random weights"}
            checkpoint.save(start, initialize(plan.model.build(), seed=0), self._tokenizer(), history)
        self.on_progress(f"training the teacher: {path}")
        self._finetune(start, path, plan.teacher, None)
        return path

    def _translated(self, beam: int) -> tuple[Path, ...]:
        """Files of training sources with the teacher's translations (Kim and Rush 2016, arXiv 1606.07947).

        Each file has PIECE sources; an interrupted build continues with the next file.
        """
        sources = [source for path in self.shared["pairs"] for source, _ in read_pairs(path)]
        files: list[Path] = []
        graph = self.work / f"teacher.beam{beam}.onnx"
        for first in range(0, len(sources), PIECE):
            path = self.work / f"train.beam{beam}.{first}.tsv"
            files.append(path)
            if self.record.current(path, {**self.origin, "teacher": self.teacher_sha256, "size of a piece": PIECE}):
                continue
            if not self.record.current(graph, {"teacher": self.teacher_sha256}, *beside(graph)):
                loaded = checkpoint.load(self.teacher)
                export(loaded, graph, ExportConfig(top_k=read_by_beam(loaded.config, beam)))
            self.on_progress(f"translating from source {first + 1:,} of {len(sources):,} with the teacher: {path}")
            write_translations(graph, path, sources[first : first + PIECE], beam)
        return tuple(files)

    def _converted_origin(self, plan: StudentPlan) -> Origin:
        """Origin of a student before training."""
        made = {"teacher": self.teacher_sha256, "[convert]": {**plan.convert, "random": plan.random}}
        if plan.prune is not None:  # depends on the text, and on the origin of a pruned student
            others = [other for other in self.plan.students if other.name == plan.of]
            made |= {**self.origin, **{f"student {other.name}": self._entry(other)[1] for other in others}}
        return made if plan.model is None else {**made, "[model]": to_plain(plan.model, short=True)}

    def _entry(self, plan: StudentPlan) -> tuple[Path, Origin, Path, Path, Path]:
        """Arguments of `BuildRecord.check`: a student's file, origin, figures, training state and log."""
        path, done = (self.work / f"{plan.name}{end}" for end in (".pt", ".json"))
        training = {**_described(plan.training), "sequence_beam": plan.sequence_beam}
        return path, {**self.origin, **self._converted_origin(plan), "[finetune]": training}, done, *_beside(path)

    def _student(self, plan: StudentPlan) -> Student:
        name, swapped = plan.name, self.work / f"{plan.name}.converted.pt"
        path, origin, done, *others = self._entry(plan)
        if self.record.current(path, origin, done, *others) and done.exists():
            return Student(**{**json.loads(done.read_text()), "path": path})
        if not self.record.current(swapped, self._converted_origin(plan)):
            (self._convert if plan.prune is None else self._prune)(plan, swapped)
        pairs = {"pairs": self._translated(plan.sequence_beam)} if plan.sequence_beam else {}
        self.on_progress(f"training the student {name}: {path}")
        report = self._finetune(swapped, path, plan.training, self.teacher, **pairs)
        assert report.teacher is not None
        nats = report.teacher.nats, report.after.nats
        errors = [e.standard_error if math.isfinite(e.standard_error) else None for e in (report.teacher, report.after)]
        student = Student(name, path, *nats, report.tokens, report.seconds, *errors)
        write_bytes(done, json.dumps({**asdict(student), "path": path.name}).encode())
        return student

    def _convert(self, plan: StudentPlan, out: Path) -> None:
        loaded = checkpoint.load(self.teacher)
        for line in loaded.notes:
            self.on_progress(f"note: {line}")
        if plan.model is not None:
            made = reshape(loaded.model, plan.model.build(), plan.seed)
        else:
            mixer, chosen = student_mixer(plan.kind, plan.options, loaded.config)
            if chosen:
                self.on_progress(f"note: {plan.name}: {reason(chosen)}")
            made = conversion(loaded.model, mixer, plan.layers, plan.seed, plan.cross)
        model = initialize(made.model.config, plan.seed) if plan.random else made.model
        history = provenance(loaded, made.untrained, **plan.convert)
        checkpoint.save(out, model, loaded.tokenizer, history, loaded.source_tokenizer)

    def _prune(self, plan: StudentPlan, out: Path) -> None:
        assert plan.prune is not None
        loaded = checkpoint.load(self.teacher if plan.of is None else self.work / f"{plan.of}.pt")
        reading = self.plan.shares, self.plan.separator
        corpus = read_corpus(self.shared["data"], loaded.tokenizer, loaded.config, *reading)
        found = prune(loaded.model, plan.prune, corpus, self.on_progress)
        history = pruned(loaded, found, of=plan.of, text_sha256=corpus.sha256, shares=plan.prune.shares)
        checkpoint.save(out, found.model, loaded.tokenizer, history, loaded.source_tokenizer)

    def _finetune(
        self, model: Path, output: Path, training: Training, teacher: Path | None, **data: Any
    ) -> FinetuneReport:
        if self.plan.pairs is not None and self.plan.pairs.train is not None:
            data = {"pairs": (self.data / self.plan.pairs.train,), **data}
        options = {"model": model, "output": output, "teacher": teacher, **self.shared, **data, **training.options}
        config = FinetuneConfig(plan=training.plan, force=True, **options)
        return finetune(replace(config, resume=config.state_path.exists() or output.exists()))


def _described(training: Training) -> dict[str, Any]:
    """What determines the result of a training section, as plain data with the defaults of its stages."""
    fields = options(FinetuneConfig)
    decisive = {
        name: value for name, value in training.options.items() if fields[name].metadata.get("result", "always")
    }
    return {"stages": [asdict(stage) for stage in training.plan], **decisive}


def _beside(output: Path) -> tuple[Path, Path]:
    """Paths of the training state and the log of an output."""
    config = FinetuneConfig(model=output, output=output)
    return config.state_path, config.log_path
