"""Quantize an exported float32 graph: weights, and with some schemes activations.

Inputs, outputs, opset and metadata are kept except for the scheme's name; states stay float32. ONNX Runtime's
quantizers do the rounding; the schemes choose the nodes. `t2r_export.quantizers.quality` measures the loss.
"""

from __future__ import annotations

import functools
import json
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx

from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import (
    CALIBRATE_STEPS,
    CALIBRATION_PAIRS,
    MIN_CALIBRATION,
    QuantizeConfig,
    Run,
    Scheme,
    scheme,
)
from t2r_export.config.targets import find
from t2r_export.export import Adapters, ExportReport, build
from t2r_export.graph.bundle import Bundle
from t2r_export.graph.file import EXTERNAL_BYTES, write
from t2r_export.graph.nodes import initializers
from t2r_export.graph.reader import programs, read_graph
from t2r_export.graph.weights import Weight, fill
from t2r_export.paths import check_outputs, graph_outputs, refuse_companions
from t2r_export.quantizers.accelerators import for_accelerators
from t2r_export.quantizers.activations import activation_errors
from t2r_export.quantizers.base import Calibration, Quantizer, Tokens, silence_ort, tensor_bytes
from t2r_export.quantizers.budget import choose
from t2r_export.quantizers.experts import quantize_experts
from t2r_export.quantizers.gptq import STEPS as GPTQ_STEPS
from t2r_export.quantizers.gptq import gptq
from t2r_export.quantizers.keep import kept
from t2r_export.quantizers.pairs import TokenPair, read_token_pairs
from t2r_export.quantizers.quality import Quality, QualityCheckFailed, measure, read_tokens
from t2r_export.quantizers.sensitivity import STEPS, Passage, pair_passages, text_passages
from t2r_export.quantizers.smoothing import smooth
from t2r_export.quantizers.tables import has_table, untie_embedding
from t2r_runtime import Decoder
from t2r_runtime.contract.signature import DRAFT_CHECK, ENCODER, PREFILL, PREFIX, Signature
from t2r_runtime.errors import UserError
from t2r_runtime.files import temporary_beside

OPTIONS_KEY = PREFIX + "quantization_options"  # informative; not part of the contract


@dataclass(frozen=True)
class QuantizeReport:
    """Result of `quantize`."""

    files: list[Path]
    scheme: str
    bytes_before: int  # of all weights
    bytes_after: int
    quality: Quality | None  # None without `check`
    left_out: Mapping[str, str] = field(default_factory=dict)  # omitted companions → reason
    activation_errors: Mapping[str, float] = field(default_factory=dict)  # by weight, with `activation_error`
    float_products: Sequence[str] = ()  # weights whose products are computed in float32
    kept: Mapping[str, Sequence[Run]] = field(default_factory=dict)  # formats of weights, with the scheme keep


def quantize(
    source: str | Path,
    out: str | Path,
    config: QuantizeConfig,
    check: Path | None = None,
    external_bytes: int = EXTERNAL_BYTES,
) -> QuantizeReport:
    """Quantize the graph at `source` and write it to `out`, which appears when it is complete and passed `check`.

    Companions are quantized too and share the file of weights. Schemes that round the tokens of a run together omit
    prefill and draft-check graphs: their results would depend on how a text is divided into runs. An ending .ort
    selects ONNX Runtime's own format, with the reports of t2r_export.graph.ort.

    Args:
        check: text, or token ids as .npy, on which the quantized graph is compared with `source`.
        external_bytes: weights beyond this size go to a separate file.

    Raises:
        UserError: a graph that was not exported by t2r or is already quantized, or a calibration text that is too
            short.
        QualityCheckFailed: the loss exceeds the scheme's bound; nothing is written.
    """
    source = Path(source)
    check_outputs(graph_outputs(out), [source, config.calibrate, check])
    return _written(read_graph(source), source, Path(out), config, check, external_bytes)[0]


def export_quantized(
    checkpoint: Checkpoint,
    out: str | Path,
    options: ExportConfig,
    config: QuantizeConfig,
    check: Path | None = None,
    adapters: Adapters | None = None,
) -> tuple[ExportReport, QuantizeReport]:
    """Export and quantize. A temporary float32 graph is written only for calibration or `check`."""
    out = Path(out)
    check_outputs(graph_outputs(out, options.companions), [config.calibrate, check])
    reads = config.rounding == "gptq" and options.takes_companions  # GPTQ's text, many tokens at a time
    how = replace(options, prefill=options.prefill or reads)
    bundle, exported = build(checkpoint, how, adapters, apart=config.scheme == "keep")
    unwritten = [PREFILL] if reads and not options.prefill else []
    with temporary_beside(out, folder=True) as folder:
        float32 = None
        if scheme(config.scheme).calibrated or check is not None:
            float32 = folder / "float32.onnx"
            kept = {role: graph for role, graph in bundle.companions.items() if role == ENCODER}
            write(replace(bundle, companions=kept), float32)
        report, signature = _written(bundle, float32, out, config, check, unwritten=unwritten)
    return replace(exported, files=report.files, signature=signature), report


def _written(
    bundle: Bundle,
    float32: Path | None,
    out: Path,
    config: QuantizeConfig,
    check: Path | None,
    external_bytes: int = EXTERNAL_BYTES,
    unwritten: Sequence[str] = (),
) -> tuple[QuantizeReport, Signature]:
    """Quantize a bundle and write it, without the companions `unwritten`.

    Returns the report and the signature of the step graph.
    """
    refuse_companions(out, [role for role in bundle.companions if role not in unwritten])
    before, quality = _weight_bytes(bundle), None
    made, config = quantized(bundle, config, float32)
    bundle, made = _without(bundle, unwritten), _without(made, unwritten)

    def measured(part: Path) -> None:
        nonlocal quality
        if check is not None:
            assert float32 is not None
            quality = measure(float32, part, config.scheme, scheme(config.scheme).loss, check)
            if not quality.passed:
                raise QualityCheckFailed(out, quality)

    files, signature = write(made, out, external_bytes, measured)
    why = f"{config.scheme} rounds the tokens of a run together, so that the states would depend on how a text is cut"
    left_out = {role: why for role in bundle.companions if role not in made.companions}
    errors, after = config.activation_errors, _weight_bytes(made)
    more = errors, config.float_products, config.kept
    report = QuantizeReport(files, config.scheme, before, after, quality, left_out, *more)
    return report, signature


def _without(bundle: Bundle, roles: Sequence[str]) -> Bundle:
    """A bundle without the companions `roles`."""
    return replace(bundle, companions={role: graph for role, graph in bundle.companions.items() if role not in roles})


def quantized(bundle: Bundle, config: QuantizeConfig, float32: Path | None = None) -> tuple[Bundle, QuantizeConfig]:
    """Quantize a float32 bundle; its graphs are changed in place. Also returns the config with measured choices.

    Args:
        float32: file of the step graph, required by calibrated schemes.

    Raises:
        UserError: a bundle that is already quantized or compiled, or a calibration text that is too short.
    """
    chosen, signature = scheme(config.scheme), bundle.signature
    if signature.quantization != "none":
        received = f"one that is quantized already, {signature.quantization}"
        raise UserError("a float32 graph", received, "quantize the float32 export")
    if programs(bundle.step):
        raise UserError("an uncompiled graph", "a compiled one", "quantize its source, then compile that")
    if signature.input_size is not None and not (chosen.row_wise and config.calibrate is None):
        expected = "fp16, w8 or w4 without a calibration for a graph that reads vectors, which no text calibrates"
        raise UserError(expected, config.scheme, "choose one of those")
    calibration = _calibration(float32, signature, chosen, config)
    weights, target = dict(bundle.weights), find(signature.target)
    if chosen.bits < 16 and not target.shared_table:
        for graph in (bundle.step, *bundle.companions.values()):
            if has_table(graph):
                untie_embedding(graph)
    if chosen.keeps:
        config = replace(config, kept=kept(bundle, config))
    if chosen.measures and config.calibrate is not None:
        config = _measured(bundle, config, weights)
    step = _quantized(bundle.step, weights, config, calibration, target.static)
    signature = replace(signature, quantization=config.scheme)
    companions = {}
    for role in (PREFILL, DRAFT_CHECK, ENCODER):
        if role in bundle.companions and (chosen.row_wise or role == ENCODER):
            given = calibration if role == ENCODER else None
            companions[role] = _quantized(bundle.companions[role], weights, config, given, target.static)
    options = {name: value for name, value in config.described().items() if name not in ("scheme", "calibrate")}
    notes = {**bundle.notes, OPTIONS_KEY: json.dumps(options, sort_keys=True)}
    return Bundle(step, signature, weights, companions, notes), config


def _measured(bundle: Bundle, config: QuantizeConfig, weights: dict[str, Weight]) -> QuantizeConfig:
    """A config with choices and errors measured on its calibration text. Scales and GPTQ's values go to `weights`."""
    assert config.calibrate is not None
    tokens, pairs = calibration_data(config.calibrate, bundle.signature)

    @functools.cache
    def passages(steps: int = STEPS) -> list[Passage]:
        if pairs:
            return pair_passages(pairs, bundle.signature, steps)
        return text_passages(tokens, bundle.signature, steps)

    if config.budget is not None:
        config = replace(config, choices=choose(bundle, config, passages()))
    if config.activation_error is not None:
        read, blocks = (bundle, passages()), scheme(config.scheme).block_wise
        errors = activation_errors(*read, config) if blocks else smooth(*read, weights)
        config = replace(config, activation_errors=errors)
    if config.rounding == "gptq":
        weights |= gptq(bundle, passages(GPTQ_STEPS), config)
    return config


def _quantized(
    model: onnx.ModelProto,
    weights: dict[str, Weight],
    config: QuantizeConfig,
    calibration: Calibration | None,
    static: bool,
) -> onnx.ModelProto:
    """`model` quantized; its initializers hold their values or refer to `weights`."""
    chosen = scheme(config.scheme)
    if not chosen.block_wise:
        fill(model, weights)
    kept = (model.producer_name, model.producer_version, model.ir_version)
    opset = {o.domain: o.version for o in model.opset_import}
    quantizer: Quantizer = pkgutil.resolve_name(chosen.quantizer)
    with silence_ort():
        made = quantizer(model, config, calibration, weights)
    if chosen.bits < 16:
        quantize_experts(made, config, weights)
    if chosen.block_wise and static:
        for_accelerators(made, config)
    made.producer_name, made.producer_version, made.ir_version = kept
    assert {o.domain: o.version for o in made.opset_import}.items() >= opset.items()
    return made


def _calibration(
    float32: Path | None, signature: Signature, chosen: Scheme, config: QuantizeConfig
) -> Calibration | None:
    if not chosen.calibrated:
        return None
    assert config.calibrate is not None
    assert float32 is not None
    Decoder(float32)  # raises UserError if ONNX Runtime cannot open it; the calibrator would not
    tokens, pairs = calibration_data(config.calibrate, signature)
    return Calibration(float32, tokens, config.calibrate_steps or CALIBRATE_STEPS, pairs)


def calibration_data(path: Path, signature: Signature) -> tuple[Tokens, list[TokenPair]]:
    """Read a calibration text or .npy as tokens (N,), or for a translator pairs; the other one is empty.

    Raises:
        UserError: as t2r_export.quantizers.quality.read_tokens and t2r_export.quantizers.pairs.read_token_pairs, or
            fewer than MIN_CALIBRATION (target) tokens.
    """
    if signature.source is None:
        tokens, pairs = read_tokens(path, signature), list[TokenPair]()
        count = len(tokens)
    else:
        tokens, pairs = np.empty(0, np.int64), read_token_pairs(path, signature, CALIBRATION_PAIRS)
        count = sum(len(pair.target) for pair in pairs)
    if count < MIN_CALIBRATION:
        expected = f"a calibration text of at least {MIN_CALIBRATION} tokens"
        raise UserError(expected, f"{count} in {path}", "name a longer one")
    return tokens, pairs


def _weight_bytes(bundle: Bundle) -> int:
    """Bytes of the weights of step and encoder graph; shared weights count once."""
    tensors = {name: tensor for graph in bundle.halves for name, tensor in initializers(graph).items()}
    return sum(map(tensor_bytes, tensors.values()))
