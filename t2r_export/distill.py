"""Distill a pretrained model into a recurrent student and its graphs, in one folder: `t2r distill`.

The stages are those of `t2r convert`, `finetune`, `export`, `verify` and `quantize`. A record in the folder
(t2r_export.checkpoints.build_record) has the origin of each file: a stage whose file is current is not repeated, and
finetuning continues from its saved state.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.build_record import BuildRecord, Origin, content
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.checkpoints.hub.card import student_card
from t2r_export.config.distill import DistillConfig
from t2r_export.config.export import ExportConfig
from t2r_export.config.finetune import usual_length
from t2r_export.config.plain import to_plain
from t2r_export.config.quantize import MIN_CALIBRATION, QuantizeConfig
from t2r_export.config.students import reason, student_mixer
from t2r_export.convert import conversion, provenance
from t2r_export.data.corpus import read_corpus
from t2r_export.errors import CheckFailed
from t2r_export.export import export
from t2r_export.files import sha256, write_bytes
from t2r_export.finetune import finetune
from t2r_export.finetune import plan as plan_run
from t2r_export.model.device import choose_device
from t2r_export.paths import RECORD, existing_model, text_files
from t2r_export.quantize import quantize
from t2r_export.quantizers.quality import QualityCheckFailed
from t2r_export.training.fit import Fit, fit
from t2r_export.training.memory import available_bytes
from t2r_export.verify import verify
from t2r_runtime.errors import UserError
from t2r_runtime.files import locked, replacing, unwritable

STAGES = ("convert", "finetune", "export", "verify", "quantize", "card")
SCHEMES = ("w4", "w8")  # the first one whose loss is within its bound
SAMPLE = 1 << 16  # tokens on which the quantization is calibrated, and checked


@dataclass(frozen=True)
class DistillPlan:
    """What a distillation needs, and the options that depend on model and machine."""

    parameters: int  # of the student
    added: int  # of them, absent from the source
    state_bytes: int  # per sequence, at the start
    state_growth: int  # bytes per token; 0: constant
    graph_bytes: int  # of its float32 weights, about
    available: int | None  # bytes of memory
    fit: Fit

    @property
    def lines(self) -> list[str]:
        """A summary, one subject per line."""
        fit, growth = self.fit, f" and {self.state_growth:,} per token" if self.state_growth else ", constant"
        steps = ", ".join(f"{stage} {count:,} steps" for stage, count in fit.steps.items())
        missing = f"; {fit.left_out:,} steps more need more --hours" if fit.left_out else ""
        parts = f" in {fit.accumulate} parts of a batch" if fit.accumulate > 1 else ""
        free = "" if self.available is None else f" of {self.available / 1e9:.1f} GB"
        return [
            f"student: {self.parameters:,} parameters, {self.added:,} of them new",
            f"training: {steps}; {fit.tokens:,} tokens, about {_duration(fit.seconds)}{missing}",
            f"memory: about {fit.memory / 1e9:.1f} GB{free}{parts}",
            f"state of a text: {self.state_bytes:,} bytes{growth}",
            f"graph: about {self.graph_bytes:,} bytes in float32",
        ]


@dataclass(frozen=True)
class Distilled:
    """Files in the folder and what was measured; None where a stage has no result."""

    plan: DistillPlan
    training: dict[str, Any]  # teacher, before, after: nats per token with standard errors; tokens
    graph: Path
    verified: dict[str, Any]
    quantized: dict[str, Any]  # graph: its file or None; tried: scheme and quality of each
    card: Path


def plan_distillation(config: DistillConfig, on_progress: Callable[[str], object]) -> DistillPlan:
    """The plan of `distill`, from one measured step. Writes only tokenized text to the cache.

    Raises:
        UserError: an unusable input.
    """
    config.check()
    return _planned(config, _loaded(config), on_progress)


def distill(config: DistillConfig, on_progress: Callable[[str], object]) -> Distilled:
    """Run all stages that are not complete.

    Raises:
        UserError: an unusable input, files of another origin without `anew`, or another run in the folder.
        CheckFailed: training diverged, or the graph differs from the model.
        KeyboardInterrupt: Ctrl-C, after the training state was saved.
    """
    config.check()
    # the first time, before anything is written
    plan = None if (config.out / RECORD).exists() else plan_distillation(config, on_progress)
    try:
        config.out.mkdir(exist_ok=True)
    except OSError as error:
        raise unwritable(config.out, error) from error
    with locked(config.out / RECORD, wait=False):
        return Distillation(config, BuildRecord(config.out, config.anew, on_progress), on_progress).run(plan)


def _loaded(config: DistillConfig) -> Checkpoint:
    loaded = checkpoint.load(config.source)
    loaded.model.require_decoder("to distill on a text", "convert it, and finetune it on pairs with t2r finetune")
    return loaded


def _converted(config: DistillConfig, loaded: Checkpoint) -> tuple[Checkpoint, int, str | None]:
    """The untrained student, the number of added parameters, and a note on default options."""
    mixer, chosen = student_mixer(*config.mixer, loaded.config)
    made = conversion(loaded.model, mixer, config.layers)
    done = provenance(loaded, made.untrained, source=config.source.name, mixer=to_plain(mixer), layers=config.layers)
    student = checkpoint.made(made.model, loaded.tokenizer, done, loaded.source_tokenizer)
    return student, made.added, reason(chosen) if chosen else None


def _planned(config: DistillConfig, loaded: Checkpoint, on_progress: Callable[[str], object]) -> DistillPlan:
    """Measure a step, and choose what depends on model and machine."""
    _check_text(config, loaded)
    student, added, note = _converted(config, loaded)
    for line in [*loaded.notes, *([note] if note else [])]:
        on_progress(f"note: {line}")
    states, weights = student.model.state_spec(), sum(p.numel() for p in student.model.parameters())
    on_progress("measuring a step of each stage …")
    needs = plan_run(config.training, student)
    available = available_bytes(choose_device(config.training.device))
    return DistillPlan(
        parameters=weights,
        added=added,
        state_bytes=sum(state.bytes() for state in states),
        state_growth=sum(state.bytes(length=1) - state.bytes() for state in states),
        graph_bytes=4 * weights,
        available=available,
        fit=fit(config.training, needs, config.hours, available),
    )


def _duration(seconds: float) -> str:
    """A duration in its usual unit."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def _check_text(config: DistillConfig, loaded: Checkpoint) -> None:
    """Raise UserError if a part of the text is too short for a stage after training."""
    corpus = _corpus(config, loaded)
    least = {"train": MIN_CALIBRATION, "valid": 1 + usual_length(loaded.config.max_positions)}
    for part, tokens in least.items():
        if corpus.part(part).size < tokens:
            received = f"{corpus.part(part).size}"
            raise UserError(f"a text whose {part} part has {tokens} tokens or more", received, "name a longer text")


def _corpus(config: DistillConfig, loaded: Checkpoint) -> Any:
    how = config.training
    return read_corpus(how.data, loaded.tokenizer, loaded.config, how.shares, how.separator, how.text_field)


class Distillation:
    """A running distillation. Each method makes the file of a stage unless it is current."""

    def __init__(self, config: DistillConfig, record: BuildRecord, on_progress: Callable[[str], object]) -> None:
        self.config, self.out, self.record, self.on_progress = config, config.out, record, on_progress

    def run(self, plan: DistillPlan | None) -> Distilled:
        """Run all stages; `plan` is one that was just made."""
        how = self.config.training
        texts = [[file.name, sha256(file)] for file in text_files(how.data)]
        mixer = {"kind": self.config.mixer[0], **self.config.mixer[1], "layers": self.config.layers}
        reading = {"separator": how.separator, "text_field": how.text_field}
        self.origin: Origin = {
            "model": content(existing_model(self.config.source)),
            "[mixer]": mixer,
            "text": texts,
            "[finetune]": {**how.recipe(), **reading},
        }
        plan = self._begin(plan)
        training = self._finetune(plan.fit)
        graph = self._export()
        verified = self._verify(graph)
        quantized = self._quantize(graph)
        made = Distilled(plan, training, graph, verified, quantized, self.out / "README.md")
        self._card(made)
        return made

    @functools.cached_property
    def tuned(self) -> Checkpoint:
        """The trained student."""
        return checkpoint.load(self.config.training.output)

    def _stage(self, name: str, text: str) -> None:
        self.on_progress(f"{STAGES.index(name) + 1}/{len(STAGES)} {name}: {text}")

    def _json(self, name: str) -> Any:
        return json.loads((self.out / name).read_text(encoding="utf-8"))

    def _write(self, name: str, data: Any) -> Any:
        """Write a result as JSON; returns it as it is read."""
        write_bytes(self.out / name, (json.dumps(data, indent=1, default=str) + "\n").encode())
        return self._json(name)

    def _begin(self, plan: DistillPlan | None) -> DistillPlan:
        """plan.json and the untrained student; the source is in memory no longer than that."""
        file, student = self.out / "plan.json", self.config.training.model
        current = self.record.current(file, {**self.origin, "[plan]": {"hours": self.config.hours}})
        if current:
            stored = self._json(file.name)
            plan = DistillPlan(**{**stored, "fit": Fit(**stored["fit"])})
        loaded = None if self.record.current(student, self.origin) and current else _loaded(self.config)
        if loaded is not None:
            plan = plan or _planned(self.config, loaded, self.on_progress)
            self._write(file.name, asdict(plan))
            made, *_ = _converted(self.config, loaded)
            checkpoint.save(student, made.model, made.tokenizer, made.provenance, made.source_tokenizer)
        assert plan is not None
        for line in plan.lines:
            self.on_progress(line)
        self._stage("convert", str(student))
        return plan

    def _finetune(self, fit: Fit) -> dict[str, Any]:
        how = self.config.training
        chosen: dict[str, Any] = {"accumulate": fit.accumulate, "eval_tokens": fit.eval_tokens}
        self.origin = {**self.origin, "[training]": {"steps": fit.steps, **chosen}}
        current = self.record.current(how.output, self.origin, how.state_path, how.log_path)
        if current and (self.out / "training.json").exists():
            self._stage("finetune", str(how.output))
            return dict(self._json("training.json"))
        resume = how.state_path.exists() or how.output.exists()
        self._stage("finetune", f"{how.output}{', resumed' if resume else ''} …")
        stages = tuple(replace(each, steps=fit.steps.get(each.stage, 0)) for each in how.plan)
        how = replace(how, plan=stages, force=True, resume=resume, checkpoint_every=fit.checkpoint_every, **chosen)
        try:
            report = finetune(how)
        except KeyboardInterrupt:
            self.on_progress("the same t2r distill continues")
            raise
        figures = {"teacher": report.teacher, "before": report.before, "after": report.after}
        found = {name: asdict(each) for name, each in figures.items() if each is not None}
        for each in found.values():
            if not math.isfinite(each["standard_error"]):  # of a single window
                each["standard_error"] = None
        nats = ", ".join(f"{name} {each['nats']:.4f}" for name, each in found.items())
        self._stage("finetune", f"{how.output}; nats/token on the test part: {nats}")
        return dict(self._write("training.json", {**found, "tokens": report.tokens}))

    def _export(self) -> Path:
        graph = self.out / "model.onnx"
        if not self.record.current(graph, self.origin):
            export(self.tuned, graph, ExportConfig(prefill=True))
        self._stage("export", f"{graph}, with a prefill graph")
        return graph

    def _verify(self, graph: Path) -> dict[str, Any]:
        file = self.out / "verify.json"
        if not self.record.current(file, self.origin):
            self._stage("verify", f"{graph} against {self.config.training.output} …")
            report = verify(self.tuned, graph)
            if not report.passed:
                do = f"run t2r verify {self.config.training.output} {graph} for details"
                raise CheckFailed(f"{graph} differs from its model: {do}")
            self._write(file.name, report.to_dict())
        found = dict(self._json(file.name))
        self._stage("verify", f"passed, {found['steps']:,} steps")
        return found

    def _quantize(self, graph: Path) -> dict[str, Any]:
        """The first scheme of SCHEMES within its bound on the valid part; GPTQ's calibration is on the train part."""
        file = self.out / "quantize.json"
        if not self.record.current(file, self.origin):
            corpus = _corpus(self.config, self.tuned)
            texts = {part: self.out / f"{part}.npy" for part in ("train", "valid")}
            for part, path in texts.items():
                with replacing(path) as temporary, temporary.open("wb") as stream:
                    np.save(stream, corpus.part(part).ravel()[:SAMPLE])
            found: dict[str, Any] = {"graph": None, "tried": []}
            for scheme in SCHEMES:
                out = self.out / f"model-{scheme}.onnx"
                self._stage("quantize", f"{out}, {scheme} with GPTQ …")
                try:
                    config = QuantizeConfig(scheme=scheme, rounding="gptq", calibrate=texts["train"])
                    report = quantize(graph, out, config, texts["valid"])
                except QualityCheckFailed as failed:
                    found["tried"].append(failed.quality.to_dict())
                    continue
                assert report.quality is not None
                found["tried"].append(report.quality.to_dict())
                found |= {"graph": out.name, "bytes": report.bytes_after, "bytes_before": report.bytes_before}
                break
            self._write(file.name, found)
        found = dict(self._json(file.name))
        tried = ", ".join(
            f"{each['scheme']} {each['loss']:+.2%} of at most {each['bound']:+.2%}" for each in found["tried"]
        )
        self._stage("quantize", f"{found['graph'] or 'no graph is within its bound'}; nats/token {tried}")
        return found

    def _card(self, made: Distilled) -> None:
        if not self.record.current(made.card, self.origin):
            card = student_card(self.tuned, made.training, made.verified, made.quantized)
            write_bytes(made.card, card.encode())
        self._stage("card", str(made.card))
