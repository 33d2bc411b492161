"""Inputs of a finetuning run: teacher and batches, validated against the student.

Without `config.teacher`, the teacher is rebuilt from a converted, untrained student.
"""

from __future__ import annotations

import copy
import dataclasses
import pkgutil
from dataclasses import dataclass
from typing import Any

import torch

from t2r_export.batches.batch import Batches
from t2r_export.batches.pair_batches import (
    PairBatches,
    PairCorpus,
    Tokenizers,
    read_pair_corpus,
)
from t2r_export.batches.starts import check_starts, usual_starts
from t2r_export.batches.windows import WindowBatches
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.checkpoints.weights import assemble, compare, weight_shapes
from t2r_export.config.finetune import LENGTH, FinetuneConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.plain import to_plain
from t2r_export.config.stages import STAGES, TOKENS
from t2r_export.data.corpus import read_corpus
from t2r_export.data.shards import Corpus
from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError

CONVERT = "convert it first, t2r convert MODEL STUDENT.pt, and train STUDENT.pt"


@dataclass(frozen=True)
class Inputs:
    """Validated inputs of a run."""

    teacher: Transformer | None
    batches: Batches
    config: FinetuneConfig  # with defaults resolved
    identity: dict[str, Any]  # equal for the same run
    notes: list[str]  # resolved defaults, one line each


def find_inputs(config: FinetuneConfig, loaded: Checkpoint, processes: int) -> Inputs:
    """Load the inputs that `config` names for the student `loaded`.

    Raises:
        UserError: an unusable file, or a teacher, text or pairs that do not match the student.
    """
    _check_kind(config, loaded.config, processes)
    teacher, teacher_sha256 = _teacher(config, loaded)
    corpus: Corpus | PairCorpus
    batches: Batches
    if config.pairs:
        config, notes = _suited(config, loaded, teacher, None)
        tokenizers = Tokenizers(loaded.tokenizer, loaded.source_tokenizer)
        files = config.pairs, config.valid, config.test
        corpus = read_pair_corpus(*files, tokenizers, loaded.config, config.shares, config.window)
        notes += corpus.notes
        batches = PairBatches(corpus, config)
    else:
        reading = config.shares, config.separator, config.text_field
        corpus = read_corpus(config.data, loaded.tokenizer, loaded.config, *reading)
        config, notes = _suited(config, loaded, teacher, corpus)
        _check_windows(config, loaded)
        batches = WindowBatches(corpus, config, loaded.config)
    identity = {**config.recipe(), "data": corpus.sha256, "model": loaded.sha256, "teacher": teacher_sha256}
    return Inputs(teacher, batches, config, identity, notes)


def _check_kind(config: FinetuneConfig, model: ModelConfig, processes: int) -> None:
    """Raise UserError unless decoders get text, and translators get pairs on a single device."""
    if config.pairs and model.encoder is None:
        raise UserError("a translator, to train on pairs", "a decoder alone", "pass it a text with --data")
    if config.data and model.encoder is not None:
        raise UserError("pairs, to train a translator", "a text", "pass --pairs")
    if config.rounding is not None and model.encoder is not None:
        raise UserError("a decoder, to train through rounding", "a translator", "leave --for out")
    if (config.pairs or not config.pack) and processes > 1:  # whose shares of a batch have unequal token counts
        what = "pairs" if config.pairs else "windows within documents"
        raise UserError(f"a single process, to train on {what}", f"{processes}", "use one device")


def _check_windows(config: FinetuneConfig, loaded: Checkpoint) -> None:
    limit = loaded.config.max_positions
    if limit is not None and config.window > limit:
        raise UserError(f"a length of at most {limit}, the model's last position", f"{config.window}", "shorten it")
    check_starts(config, loaded.model)


def _suited(
    config: FinetuneConfig, student: Checkpoint, teacher: Transformer | None, corpus: Corpus | None
) -> tuple[FinetuneConfig, list[str]]:
    """Resolve defaults that depend on models and data, and drop idle optional stages; returns notes on both.

    Args:
        corpus: the text; None for pairs.
    """
    original, notes = config, []
    row = None if corpus is None else corpus.row
    config = config.for_model(student.config.width, student.config.max_positions, row)
    if original.start_positions is None:
        config = dataclasses.replace(config, start_positions=0 if corpus is None else usual_starts(student.model))
    if corpus is not None and original.length is None and config.window != LENGTH:
        whose = "the model's context" if row is None else "the rows' length"
        notes.append(f"windows of {config.window} tokens, {whose}")
    stages = {name: pkgutil.resolve_name(kind.stage) for name, kind in STAGES.items()}
    idle = {p.stage for p in config.plan if p.optional and not stages[p.stage].trains(student.model, teacher)}
    notes += [f"no {name}: the student has nothing that it trains" for name in sorted(idle)]
    chosen = [p.stage for p in original.plan if p.learning_rate is None and STAGES[p.stage].scaled]
    rates = [f"{p.peak:.2g} in {p.stage}" for p in config.plan if p.stage in chosen and p.steps]
    if rates and config.step_tokens < TOKENS:
        notes.append(f"learning rate for {config.step_tokens} tokens per step: {', '.join(rates)}")
    return dataclasses.replace(config, plan=tuple(p for p in config.plan if p.stage not in idle)), notes


def _teacher(config: FinetuneConfig, student: Checkpoint) -> tuple[Transformer | None, str | None]:
    needed = any(STAGES[plan.stage].needs_teacher for plan in config.plan if plan.steps)
    if config.rounding is not None and config.teacher is None:
        # unrounded; a copy, because folding shares unchanged weights and training would change both
        return copy.deepcopy(student.model), student.sha256
    if config.teacher is not None:
        loaded = checkpoint.load(config.teacher)
        _check_sources(loaded.config, student.config)
        if loaded.config.vocab_size != student.config.vocab_size:
            raise UserError(
                f"a teacher with the student's vocabulary of {student.config.vocab_size}",
                f"one of {loaded.config.vocab_size}",
                "pass the model that the student was converted from",
            )
        if needed and config.rounding is None and _same(loaded, student):
            raise UserError("a student other than its teacher", "the same model twice", CONVERT)
        return loaded.model, loaded.sha256
    if not needed:
        return None, None
    caches = any(part.grows for layer in student.config.layers for part in layer.mixers)
    if caches and not {"convert", "prune"} & student.provenance.keys():
        do = f"{CONVERT}; or train it on the text alone, --stages task"
        raise UserError("a student made by t2r convert", "a softmax model that was not converted", do)
    return original(student), None


def _same(one: Checkpoint, other: Checkpoint) -> bool:
    """Whether two checkpoints have the same config and weights."""
    ours, theirs = one.model.state_dict(), other.model.state_dict()
    return one.config == other.config and all(torch.equal(weight, theirs[name]) for name, weight in ours.items())


def _check_sources(teacher: ModelConfig, student: ModelConfig) -> None:
    """Raise UserError unless both are translators with one source vocabulary, or both are decoders."""
    mine, theirs = (None if m.encoder is None else m.encoder.vocab_size or m.vocab_size for m in (student, teacher))
    if mine != theirs:
        expected, received = (
            "a decoder alone" if size is None else f"a translator whose sources have {size} tokens"
            for size in (mine, theirs)
        )
        raise UserError(f"a teacher that is {expected}", received, "pass the model that the student was converted from")


def original(converted: Checkpoint) -> Transformer:
    """Rebuild the source model of a converted, untrained checkpoint, with copies of the weights it kept.

    Raises:
        UserError: not a conversion by t2r, trained since, or incomplete weights of the source.
    """
    try:
        made = converted.provenance["convert"]
        if len(converted.provenance.get("finetune", [])) > made.get("source_runs", 0):
            raise _no_teacher("a model trained since its conversion")
        config = ModelConfig.from_dict(made["source_config"])
        if _without_mixers(config) != _without_mixers(converted.config):
            raise _no_teacher("a model that differs from its source in more than its mixers")
        shapes, state = weight_shapes(config), converted.model.state_dict()
        weights = {name: state[name].clone() for name in shapes if name in state}
        compare(shapes, {name: weight.shape for name, weight in weights.items()}, "the converted model")
    except UserError as error:
        raise _no_teacher(error.received) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # a file may contain any value
        raise _no_teacher("a model without its source in the provenance") from error
    return assemble(config, weights)


def _without_mixers(config: ModelConfig) -> dict[str, Any]:
    """The parts of a config that a conversion keeps."""
    rest = [[to_plain(part) for part in layer.parts if not part.mixes] for layer in config.layers]
    return {**config.to_dict(), "layers": rest}


def _no_teacher(received: str) -> UserError:
    expected = "a model fresh from t2r convert, which holds its teacher's weights"
    return UserError(expected, received, "name the teacher, --teacher TEACHER.pt")
