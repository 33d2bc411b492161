"""Export a checkpoint's step as an ONNX graph whose states are inputs and outputs (runtimes/CONTRACT.md).

Layers are folded where possible. Optional companions are the prefill and draft-check graphs. Metadata describes
the interface to runtimes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from t2r_export.checkpoints.beside import LORA_ALONE, low_rank_changes, tables
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.checkpoints.untrained import untrained
from t2r_export.checkpoints.weights import assemble, listed
from t2r_export.config.export import ExportConfig, require_no_choice
from t2r_export.config.layer import described
from t2r_export.config.model import EncoderConfig, ModelConfig
from t2r_export.config.targets import find
from t2r_export.convert import with_context
from t2r_export.fold import LayerFold, fold
from t2r_export.graph.bundle import Bundle
from t2r_export.graph.file import EXTERNAL_BYTES, write
from t2r_export.graph.layout import packed, with_low, with_source_length
from t2r_export.graph.reader import ACTIVE, PARAMETERS
from t2r_export.graph.recording import build_encoder, build_graph
from t2r_export.model.parts.base import active_parameters
from t2r_export.model.transformer import Transformer
from t2r_export.paths import check_outputs, graph_outputs
from t2r_export.version import __version__
from t2r_runtime.contract.signature import DRAFT_CHECK, ENCODER, PREFILL, STEP, Signature
from t2r_runtime.contract.source import Source
from t2r_runtime.contract.state_spec import ADAPTER, BATCH, HIDDEN_STATE, SOURCE_LENGTH, TOKENS, StateSpec
from t2r_runtime.errors import UserError, printable
from t2r_runtime.text.tokenizer_bounds import bounded
from t2r_runtime.text.tokenizer_parts import MAX_BYTES, unknown_parts

Adapters = Mapping[str, Callable[[], Transformer]]
Tables = dict[str, tuple[np.ndarray, np.ndarray]]  # A and B of adapters by weight
BEAM_WIDTH = 8  # largest beam for which a translator's step graph outputs enough logits by default


@dataclass(frozen=True)
class ExportReport:
    """Result of `export`."""

    files: list[Path]
    parameters: int
    active_parameters: int  # read per token; fewer with experts
    nodes: int
    signature: Signature
    folds: list[LayerFold]
    notes: tuple[str, ...] = ()  # one line each


def export(
    checkpoint: Checkpoint,
    path: str | Path,
    config: ExportConfig | None = None,
    external_bytes: int = EXTERNAL_BYTES,
    adapters: Adapters | None = None,
) -> ExportReport:
    """Write the float32 step graph of `checkpoint` to `path`, in the form of the config's target.

    Companions that the config asks for are written beside it; they share its states and its file of weights. Weights
    beyond `external_bytes` go to a separate file. `path` appears when everything is complete. An ending .ort selects
    ONNX Runtime's own format, with the reports of t2r_export.graph.ort.

    Args:
        adapters: by name, the model with each low-rank adapter that the graph also holds.

    Raises:
        UserError: an invalid option or path, or an adapter that is not of low rank. CheckFailed: an inexact fold.
    """
    config, path = config or ExportConfig(), Path(path)
    companions = [*config.companions, *([ENCODER] if checkpoint.config.encoder is not None else [])]
    check_outputs(graph_outputs(path, companions))
    bundle, report = build(checkpoint, config, adapters)
    files, signature = write(bundle, path, external_bytes)
    return replace(report, files=files, signature=signature)


def build(
    checkpoint: Checkpoint, config: ExportConfig, adapters: Adapters | None = None, apart: bool = False
) -> tuple[Bundle, ExportReport]:
    """The graphs that `export` writes, and its report without files. Raises as `export`.

    Args:
        apart: if the checkpoint is an .adapter, its changes of low rank are products of their own: W x + B (A x).
    """
    target = find(config.target)
    if config.top_k is None and checkpoint.config.encoder is not None and not target.static:
        config = replace(config, top_k=read_by_beam(checkpoint.config))
    model, folds = _folded(checkpoint.model, config)
    changes = _changes(checkpoint.model, model, config, adapters)
    if apart and not adapters:
        model, changes = _apart(checkpoint, model, config)
    model.end_positions(config.past_end, _end(config, model.config.max_positions))
    if config.inputs_embeds:
        model.read_vectors()
    if model.input_size is not None:
        require_no_choice(config)
    if config.top_k is not None and config.top_k > model.config.vocab_size:
        raise UserError(
            f"at most {model.config.vocab_size} logits, the model's vocabulary", str(config.top_k), "correct --top-k"
        )
    states = with_source_length(model.state_spec(), config.source_length)
    if adapters:
        states.append(StateSpec(ADAPTER, "int32", (BATCH,)))
    if HIDDEN_STATE in (state.name for state in states) and (config.companions or config.output_hidden):
        expected = "the step graph alone of a draft head, which reads one token per run and has present_hidden"
        received = ", ".join(f"--{each.replace('_', '-')}" for each in (*config.companions, "output_hidden"))
        raise UserError(expected, f"one of {received}", "leave it out")
    signature = replace(
        _signature(checkpoint, model, states, folds, config), adapters=tuple(adapters) if adapters else None
    )
    _check_translator(config, model.config.encoder)
    if target.static:
        signature.require_constant(f"for target {config.target}")
    batch = BATCH if config.batch is None else config.batch
    hidden = config.output_hidden
    shared: dict[str, Any] = {"adapters": changes, "output_hidden": hidden}
    step, ops = build_graph(model, states, batch, target, config.top_k, float16_safe=config.float16_safe, **shared)
    if others := sorted(changes.keys() - ops.adapted):
        raise UserError("adapters of products by a matrix", f"one of {listed(others)}", LORA_ALONE)
    if config.float16_safe:
        signature = replace(signature, states=tuple(with_low(states, ops.low_after)))
    weights, companions = dict(ops.weights), {}
    if model.encoder is not None:
        companions[ENCODER], ops = build_encoder(model, states, batch, target, config.source_length or SOURCE_LENGTH)
        weights |= ops.weights
    if config.prefill:
        companions[PREFILL], ops = build_graph(model, states, batch, target, config.top_k, TOKENS, **shared)
        weights |= ops.weights
    if config.draft_check:
        companions[DRAFT_CHECK], ops = build_graph(
            model, states, batch, target, config.top_k, TOKENS, checks_drafts=True, **shared
        )
        weights |= ops.weights
    parameters = sum(p.numel() for p in model.parameters())
    active = active_parameters(model)
    sizes = {PARAMETERS: str(parameters), **({ACTIVE: str(active)} if active < parameters else {})}
    bundle = Bundle(step, signature, weights, companions, sizes)
    if config.state_layout == "packed":
        bundle = packed(bundle)
    notes = (*_tokenizer_notes([checkpoint.tokenizer, checkpoint.source_tokenizer]), *bundle.signature.warnings)
    return bundle, ExportReport([], parameters, active, len(step.graph.node), bundle.signature, folds, notes)


def _apart(checkpoint: Checkpoint, merged: Transformer, config: ExportConfig) -> tuple[Transformer, Tables]:
    """The folded model without an .adapter's changes of low rank in products, and these.

    Changes that are no longer of low rank after folding stay merged, and all others with them.
    """
    products = {
        f"{place}.weight" for place, module in checkpoint.model.named_modules() if isinstance(module, nn.Linear)
    }
    unmerged = {name: weight for name, weight in checkpoint.unmerged.items() if name in products}
    if not unmerged:
        return merged, {}
    model, _ = _folded(assemble(checkpoint.config, {**checkpoint.model.state_dict(), **unmerged}), config)
    try:
        changes = tables([low_rank_changes("", model, merged)])
    except UserError:
        return merged, {}
    return model, {name: (a[1:], b[1:]) for name, (a, b) in changes.items()}


def _folded(model: Transformer, config: ExportConfig) -> tuple[Transformer, list[LayerFold]]:
    return fold(model if config.window is None else with_context(model, config.window))


def _changes(whole: Transformer, model: Transformer, config: ExportConfig, adapters: Adapters | None) -> Tables:
    """The tables of adapters. Args: model: `whole`, folded."""
    if not adapters:
        return {}
    whole.require_decoder("for adapters", "merge the adapter into the translator")
    if find(config.target).static:
        received = f"the target {config.target}, whose parts are compiled"
        raise UserError(
            "a target of any batch with adapters", received, "choose another --target, or merge one adapter"
        )
    changes = [low_rank_changes(name, model, _folded(changed(), config)[0]) for name, changed in adapters.items()]
    return tables(changes)


def _end(config: ExportConfig, table: int | None) -> int | None:
    """Number of positions of a graph. Args: table: those of the model; None: unlimited."""
    context = None if config.slides else config.window
    return min((end for end in (context, table) if end is not None), default=None)


def _tokenizer_notes(texts: Sequence[str | None]) -> tuple[str, ...]:
    """A note on tokenizer features that runtimes do not support; token ids still work."""
    unknown: list[str] = []
    for text in {text for text in texts if text is not None}:
        if (size := len(text.encode())) > MAX_BYTES:
            unknown.append(f"{size:,} bytes, above {MAX_BYTES:,}")
        try:
            unknown += unknown_parts(bounded(text).data)
        except UserError as error:
            unknown.append(error.received)
        except (ValueError, RecursionError):
            unknown.append("text that is not JSON")
    what = printable(", ".join(sorted(set(unknown))))
    return (f"runtimes will not open the tokenizer, for {what}: pass them token numbers",) if unknown else ()


def read_by_beam(config: ModelConfig, width: int = BEAM_WIDTH) -> int:
    """Maximum number of top logits that a beam search of this width reads (runtimes/contract/translators.md)."""
    ends = len(config.eos_tokens)
    return min(max(2, 1 + ends) * width + len(config.banned_tokens) + ends, config.vocab_size)


def _check_translator(config: ExportConfig, encoder: EncoderConfig | None) -> None:
    """Raise UserError for options that translators do not support, or that only translators support."""
    length = config.source_length
    if encoder is None:
        if length is not None:
            raise UserError("a translator with --source-length", "a decoder alone", "leave --source-length out")
        return
    if config.draft_check:
        raise UserError("a decoder alone for --draft-check", "a translator", "leave it out: beam search uses no drafts")
    if length is None and find(config.target).static:
        expected = f"the length of every source with target {config.target}, where every dimension is a number"
        raise UserError(expected, "none", "add --source-length M")
    if length is not None and length > (encoder.max_positions or length):
        expected = f"a source length of at most {encoder.max_positions}, where the encoder's positions end"
        raise UserError(expected, f"{length}", "correct source_length")


def _signature(
    checkpoint: Checkpoint,
    model: Transformer,
    states: Sequence[StateSpec],
    folds: list[LayerFold],
    options: ExportConfig,
) -> Signature:
    config = model.config
    status = {(f.layer, f.part): f.status for f in folds if f.group != "encoder"}
    layers = tuple(
        described(layer, {part: how for (of, part), how in status.items() if of == n})
        for n, layer in enumerate(config.layers)
    )
    layers *= config.repeats
    return Signature(
        states=tuple(states),
        vocab_size=config.vocab_size,
        bos_token=config.bos_token,
        eos_tokens=config.eos_tokens,
        batch=options.batch,
        max_positions=model.end,
        past_end=options.past_end,
        state_layout="layers",
        layers=layers,
        target=options.target,
        quantization="none",
        checkpoint_sha256=checkpoint.sha256,
        producer=f"t2r-export {__version__}",
        tokenizer=checkpoint.tokenizer,
        top_k=options.top_k,
        role=STEP,
        graphs={},
        chat_template=checkpoint.chat_template,
        generation=None if config.generation is None else config.generation.to_dict(),
        input_size=model.input_size,
        hidden_size=config.width if options.output_hidden else None,
        untrained=len(untrained(checkpoint.provenance)) or None,
        source=None if config.encoder is None else _source(checkpoint, config, model.start_states, options),
    )


def _source(checkpoint: Checkpoint, config: ModelConfig, start_states: Sequence[str], options: ExportConfig) -> Source:
    assert config.encoder is not None
    ends = [end for end in (config.encoder.max_positions, options.source_length) if end is not None]
    return Source(
        start_states=tuple(start_states),
        source_vocab_size=config.source_vocab_size,
        source_tokenizer=checkpoint.source_tokenizer,
        max_source=min(ends, default=None),
        source_length=options.source_length,
        start_tokens=config.start_tokens,
        banned_tokens=config.banned_tokens,
    )
