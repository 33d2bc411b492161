"""Verify parity of an exported graph with its eager model.

States start random and non-zero: from zero, a state that is never read would go unnoticed. Logits and every state are
compared at each of many chained steps. Both sides read the same tokens, sampled from the eager model. An error above
the fixed bound is judged by the model's own rounding, float32 against float64 over the same tokens.

A float64 reference reads tokens in pieces, because its single steps would dominate the run time: the graph samples all
tokens of a piece but the first, and states are compared after each piece.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import torch

from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.checkpoints.weights import assemble
from t2r_export.config.validation import choice
from t2r_export.convert import context_of, for_length, with_context
from t2r_export.export import Adapters
from t2r_export.fold import FOLD_TOLERANCE, fold
from t2r_export.graph.layout import states_in
from t2r_export.graph.reader import load
from t2r_export.model.transformer import Transformer
from t2r_export.proof.checks import (
    Checks,
    batch_against_single,
    chained,
    context_against_caches,
    drafts_against_steps,
    encoder_against_eager,
    from_the_start,
    hidden_against_eager,
    sequence_against_steps,
)
from t2r_export.proof.report import Check, Report
from t2r_export.proof.side_by_side import SideBySide
from t2r_export.proof.tolerances import REFERENCES, ROUNDED_ROWS, prompt_tolerance, tolerance
from t2r_runtime import Decoder
from t2r_runtime.contract.signature import Signature
from t2r_runtime.contract.state_spec import ADAPTER
from t2r_runtime.errors import UserError
from t2r_runtime.session.stepper import SourceReader, Stepper
from t2r_runtime.translate.translator import Translator

CONTEXT_TOKENS = 256  # maximum length of the text on which bounded caches are compared with growing ones
FLOAT_LEVEL = 1  # MatMulNBits computes in float32 up to this accuracy level


@torch.inference_mode()
def verify(
    checkpoint: Checkpoint,
    path: str | Path,
    provider: str = "cpu",
    steps: int = 1000,
    seed: int = 0,
    on_progress: Callable[[int], None] = lambda _: None,
    decoder: Stepper | None = None,
    rounding: bool = False,
    reference: str = "float32",
    encoder: SourceReader | None = None,
    adapters: Adapters | None = None,
) -> Report:
    """Compare the graph at `path` with the eager model of `checkpoint`.

    Args:
        steps: chained steps to compare. Models with limited positions or growing caches restart as needed.
        on_progress: called with the number of steps done.
        decoder: the opened graph; None opens `path` on `provider`. encoder: the same for a translator's sources.
        rounding: measure the model's rounding for every check, not only above the fixed bound. Needs a float64 copy of
            the model and a few times the time of the eager steps.
        reference: precision of the eager model. "float64" shows the full float32 error of the graph, including drift
            over long texts.
        adapters: those of the export, as for t2r_export.export.export; the graph's others are not compared.

    Raises:
        UserError: the graph belongs to a model of another shape, or the provider has no measured tolerance.
    """
    if steps < 1:
        raise UserError("at least 1 step", str(steps), "correct --steps")
    choice("reference", reference, REFERENCES)
    decoder = decoder or Decoder(path, provider=provider)
    signature = decoder.signature
    context = context_of(checkpoint.model, signature.layers)
    source = checkpoint.model if context is None else with_context(checkpoint.model, context)
    model, folds = fold(source)
    unfolded = assemble(source.config, source.state_dict())  # the same weights
    for each in (model, unfolded):
        _read_as(each, signature)
    _same_interface(decoder, model)
    numbers = {name: signature.adapter(name) for name in adapters or ()}
    eager = unfolded if reference == "float32" else copy.deepcopy(unfolded).double()
    both = SideBySide(eager, decoder, model.state_spec(), torch.Generator().manual_seed(seed))
    bound = tolerance(provider, signature.quantization, both.rounds)
    checks = Checks(unfolded, bound, rounding)
    report = Report(
        provider, signature.quantization, steps, signature.checkpoint_sha256 == checkpoint.sha256, reference
    )
    report.checks, report.greedy_bound = checks.made, bound.greedy
    checks.run(chained, report, both, steps, on_progress)
    checks.run(from_the_start, both)
    if context is not None:
        whole = for_length(checkpoint.model, context)
        checks.run(context_against_caches, both, unfolded, whole, min(context, CONTEXT_TOKENS))
    at_once = prompt_tolerance(provider, signature.quantization, _float_products(Path(path)), both.rounds)
    checks.run(sequence_against_steps, both, at_once)
    if isinstance(decoder, Decoder) and decoder.has_draft_check_graph:
        checks.run(drafts_against_steps, both, decoder, at_once)
    if signature.batch is None:
        checks.run(batch_against_single, both, ROUNDED_ROWS if both.rounds else bound)
    if isinstance(decoder, Decoder) and signature.hidden_size is not None:
        checks.run(hidden_against_eager, both, decoder)
    if signature.source is not None:
        checks.run(encoder_against_eager, both, encoder or Translator(path, provider), bound)
    for name, changed in (adapters or {}).items():
        other = changed() if context is None else with_context(changed(), context)
        _read_as(other, signature)
        with_adapter = SideBySide(other, decoder, model.state_spec(), both.generator, adapter=numbers[name])
        own = Checks(other, bound, rounding, f"adapter {name}: ")
        own.run(from_the_start, with_adapter)
        own.run(sequence_against_steps, with_adapter, at_once)
        checks.made += own.made
        checks.redrawn += own.redrawn
    report.redrawn = checks.redrawn
    errors = [f.error for f in folds if f.error is not None]
    if errors:
        checks.made.append(Check("folded against unfolded, float64, relative", max(errors), FOLD_TOLERANCE))
    return report


def _read_as(model: Transformer, signature: Signature) -> None:
    """Let the model end, and read, as the graph does: a clamped graph is compared with a clamped model."""
    model.end_positions(signature.past_end, signature.max_positions)
    if signature.input_size is not None:
        model.read_vectors()


def _float_products(path: Path) -> bool:
    """Whether no product of the step graph rounds its activations; False for .ort files, which cannot be read."""
    if path.suffix != ".onnx":
        return False
    attributes = [attribute for node in load(path).graph.node for attribute in node.attribute]
    # 8-bit experts have no float32 product
    return all(a.i <= FLOAT_LEVEL for a in attributes if a.name == "accuracy_level") and not any(
        (a.name, a.i) == ("expert_weight_bits", 8) for a in attributes
    )


def _same_interface(decoder: Stepper, model: Transformer) -> None:
    expected = states_in(model.state_spec(), decoder.signature)
    received = [spec for spec in decoder.signature.states if decoder.signature.adapters is None or spec.name != ADAPTER]
    signature = decoder.signature
    sizes, found = _sizes(model.config.vocab_size, model.input_size), _sizes(signature.vocab_size, signature.input_size)
    if expected != received or sizes != found:
        differing = [f"{s.name} {list(s.shape)}" for s in received if s not in expected]
        raise UserError(
            f"a graph of this model: {len(expected)} states, {sizes}",
            f"{len(received)} states, {found}" + (f", among them {', '.join(differing[:3])}" if differing else ""),
            "name the checkpoint that the graph was exported from",
        )


def _sizes(vocabulary: int, vector: int | None) -> str:
    return f"vocabulary {vocabulary}" + ("" if vector is None else f", vectors of {vector} elements")
