"""Make a step graph smaller: fewer bits for its weights, and for activations where a scheme says so.

Requires a float32 graph of ours. Ensures the same inputs, outputs, opset and metadata but for the scheme's name; the
states are the float32 tensors they were, whatever the scheme. The rounding is ONNX Runtime's own quantizers'; what is
written here decides which nodes they touch. What each scheme costs is measured, by `t2r_export.quality.quantization`.
"""

from __future__ import annotations

import json
import math
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import (
    CALIBRATE_STEPS,
    CALIBRATION_PAIRS,
    MIN_CALIBRATION,
    QuantizeConfig,
    Scheme,
    scheme,
)
from t2r_export.config.targets import find
from t2r_export.export import ExportReport, build
from t2r_export.graph.bundle import Bundle
from t2r_export.graph.file import EXTERNAL_BYTES, write
from t2r_export.graph.generation import generation_graph
from t2r_export.graph.reader import programs, read_graph
from t2r_export.graph.weights import Weight, fill
from t2r_export.paths import check_outputs, graph_outputs, refuse_companions
from t2r_export.quality.quantization import Quality, QualityCheckFailed, measure, read_tokens
from t2r_export.quantizers.accelerators import for_accelerators
from t2r_export.quantizers.base import Calibration, Quantizer, Tokens, silence_ort
from t2r_export.quantizers.budget import choose
from t2r_export.quantizers.pairs import TokenPair, read_token_pairs
from t2r_export.quantizers.sensitivity import pair_passages, text_passages
from t2r_export.quantizers.tables import untie_embedding
from t2r_runtime import Decoder
from t2r_runtime.contract.signature import DRAFT_CHECK, ENCODER, GENERATE, PREFILL, PREFIX, Signature
from t2r_runtime.errors import UserError
from t2r_runtime.files import temporary_beside

OPTIONS_KEY = PREFIX + "quantization_options"  # informative; no part of the contract


@dataclass(frozen=True)
class QuantizeReport:
    """What was written, and what it cost where that was measured."""

    files: list[Path]
    scheme: str
    bytes_before: int  # of all weights
    bytes_after: int
    quality: Quality | None
    left_out: Mapping[str, str] = field(default_factory=dict)  # companions that the source has, and why this has not


def quantize(
    source: str | Path,
    out: str | Path,
    config: QuantizeConfig,
    check: Path | None = None,
    external_bytes: int = EXTERNAL_BYTES,
) -> QuantizeReport:
    """Write the graph at `source` to `out`, quantized. Nothing stands at `out` until all of it is whole and good.

    A generation graph beside `source` is made again from the quantized step, with which it shares a file of weights.
    A prefill or draft-check graph is quantized in the same way, and shares it too; but it is left out by the schemes
    that round all tokens of a run together, whose numbers would depend on how a text is cut.

    A name that ends in .ort gets ONNX Runtime's own format, and what t2r_export.graph.ort writes beside it.

    Args:
        check: a text, or token ids as .npy, to measure the quantized graph against `source` on.
        external_bytes: weights past that go to a file beside the graph.

    Raises:
        UserError: a graph that is not ours or quantized already, or too short a calibration text.
        QualityCheckFailed: the check was not passed; nothing is written.
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
) -> tuple[ExportReport, QuantizeReport]:
    """Export and quantize in one go. A float32 graph is written only where a text is read with it, and is gone then."""
    out = Path(out)
    check_outputs(graph_outputs(out, options.companions), [config.calibrate, check])
    bundle, exported = build(checkpoint, options)
    with temporary_beside(out, folder=True) as folder:
        float32 = None
        if scheme(config.scheme).calibrated or check is not None:
            float32 = folder / "float32.onnx"
            kept = {role: graph for role, graph in bundle.companions.items() if role == ENCODER}
            write(replace(bundle, companions=kept), float32)
        report, signature = _written(bundle, float32, out, config, check)
    return replace(exported, files=report.files, signature=signature), report


def _written(
    bundle: Bundle,
    float32: Path | None,
    out: Path,
    config: QuantizeConfig,
    check: Path | None,
    external_bytes: int = EXTERNAL_BYTES,
) -> tuple[QuantizeReport, Signature]:
    """Quantize a bundle and write it; the report, and the step's signature."""
    refuse_companions(out, list(bundle.companions))
    before, quality = _weight_bytes(bundle), None
    made = quantized(bundle, config, float32)

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
    report = QuantizeReport(files, config.scheme, before, _weight_bytes(made), quality, left_out)
    return report, signature


def quantized(bundle: Bundle, config: QuantizeConfig, float32: Path | None = None) -> Bundle:
    """A float32 bundle as the scheme makes it; its graphs are changed in place.

    Args:
        float32: the step graph of `bundle` as a file, for a scheme that is calibrated with it.

    Raises:
        UserError: a bundle that is quantized or compiled already, or too short a calibration text.
    """
    chosen, signature = scheme(config.scheme), bundle.signature
    if signature.quantization != "none":
        raise UserError(
            "a float32 graph", f"one that is quantized already, {signature.quantization}", "quantize the float32 export"
        )
    if programs(bundle.step):
        raise UserError("a graph of operators", "one that is compiled", "quantize its source, then compile that")
    calibration = _calibration(float32, signature, chosen, config)
    weights, target = dict(bundle.weights), find(signature.target)
    if chosen.bits < 16 and not target.shared_table:
        for graph in (
            bundle.step,
            *(bundle.companions[r] for r in (PREFILL, DRAFT_CHECK, ENCODER) if r in bundle.companions),
        ):
            untie_embedding(graph)
    if config.budget is not None:
        assert config.calibrate is not None
        if signature.source is None:
            passages = text_passages(calibration_tokens(config.calibrate, signature), signature)
        else:
            passages = pair_passages(calibration_pairs(config.calibrate, signature), signature)
        config = replace(config, choices=choose(bundle, config, passages))
    static = target.static
    step = _quantized(bundle.step, weights, config, calibration, static)
    signature = replace(signature, quantization=config.scheme)
    companions = {}
    for role in (PREFILL, DRAFT_CHECK):
        if role in bundle.companions and chosen.row_wise:
            companions[role] = _quantized(bundle.companions[role], weights, config, None, static)
    if ENCODER in bundle.companions:
        companions[ENCODER] = _quantized(bundle.companions[ENCODER], weights, config, calibration, static)
    if GENERATE in bundle.companions:
        companions[GENERATE] = generation_graph(step, signature)
    given = {name: value for name, value in config.described().items() if name not in ("scheme", "calibrate")}
    notes = {**bundle.notes, OPTIONS_KEY: json.dumps(given, sort_keys=True)}
    return Bundle(step, signature, weights, companions, notes)


def _quantized(
    model: onnx.ModelProto,
    weights: dict[str, Weight],
    config: QuantizeConfig,
    calibration: Calibration | None,
    static: bool,
) -> onnx.ModelProto:
    """`model` as the scheme makes it; its initializers hold their numbers, or name one of `weights`."""
    chosen = scheme(config.scheme)
    if not chosen.block_wise:
        fill(model, weights)
    kept = (model.producer_name, model.producer_version, model.ir_version)
    opset = {o.domain: o.version for o in model.opset_import}
    quantizer: Quantizer = pkgutil.resolve_name(chosen.quantizer)
    with silence_ort():
        made = quantizer(model, config, calibration, weights)
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
    Decoder(float32)  # says in one line why ONNX Runtime does not read it, which its calibrator would not
    steps = config.calibrate_steps or CALIBRATE_STEPS
    if signature.source is None:
        return Calibration(float32, calibration_tokens(config.calibrate, signature), steps)
    return Calibration(float32, np.empty(0, np.int64), steps, calibration_pairs(config.calibrate, signature))


def calibration_tokens(path: Path, signature: Signature) -> Tokens:
    """A text to calibrate on, or a .npy, as tokens (N,).

    Raises:
        UserError: as for t2r_export.quality.quantization.read_tokens, and fewer than MIN_CALIBRATION.
    """
    tokens = read_tokens(path, signature)
    _require_enough(len(tokens), path)
    return tokens


def check_calibration(path: Path, signature: Signature) -> None:
    """Refuse with a UserError a text, or of a translator pairs, that a graph cannot be calibrated on."""
    (calibration_tokens if signature.source is None else calibration_pairs)(path, signature)


def calibration_pairs(path: Path, signature: Signature) -> list[TokenPair]:
    """Pairs to calibrate a translator on.

    Raises:
        UserError: as for t2r_export.quantizers.pairs.read_token_pairs, and fewer target tokens than MIN_CALIBRATION.
    """
    pairs = read_token_pairs(path, signature, CALIBRATION_PAIRS)
    _require_enough(sum(len(pair.target) for pair in pairs), path)
    return pairs


def _require_enough(tokens: int, path: Path) -> None:
    if tokens < MIN_CALIBRATION:
        expected = f"a calibration text of at least {MIN_CALIBRATION} tokens"
        raise UserError(expected, f"{tokens} in {path}", "name a longer one")


def _weight_bytes(bundle: Bundle) -> int:
    """Of the step graph and an encoder graph; what both have counts once."""
    tensors = {tensor.name: tensor for graph in bundle.halves for tensor in graph.graph.initializer}
    return sum(math.prod(t.dims) * helper.tensor_dtype_to_np_dtype(t.data_type).itemsize for t in tensors.values())
