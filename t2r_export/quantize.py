"""Make a step graph smaller: fewer bits for its weights, and for activations where a scheme says so.

Requires a float32 graph of ours. Ensures the same inputs, outputs, opset and metadata but for the scheme's name; the
states are the float32 tensors they were, whatever the scheme. The rounding is ONNX Runtime's own quantizers'; what is
written here decides which nodes they touch. What each scheme costs is measured, by `t2r_export.quantizers.quality`.
"""

from __future__ import annotations

import glob
import json
import math
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
from onnx import helper

from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig, graph_format
from t2r_export.config.quantize import (
    BLOCK_OPTIONS,
    CALIBRATE_STEPS,
    CALIBRATION_OPTIONS,
    MIN_CALIBRATION,
    QuantizeConfig,
    Scheme,
    scheme,
)
from t2r_export.config.targets import find
from t2r_export.export import ExportReport, build, export
from t2r_export.graph.file import (
    EXTERNAL_BYTES,
    Weight,
    companion,
    fill,
    share_weights,
    without_older,
    write_whole,
)
from t2r_export.graph.generation import wrap
from t2r_export.graph.ort import folder_beside, write_ort
from t2r_export.quantizers.base import Calibration, Quantizer, Tokens, silence_ort
from t2r_export.quantizers.quality import Quality, QualityCheckFailed, measure, read_tokens
from t2r_export.quantizers.source import Source, read_source, source_of
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError
from t2r_runtime.files import replacing
from t2r_runtime.session import existing_file
from t2r_runtime.signature import GENERATE, PREFILL, PREFIX, ROLES, Signature

OPTIONS_KEY = PREFIX + "quantization_options"  # informative; no part of the contract


@dataclass(frozen=True)
class QuantizeReport:
    """What was written, and what it cost where that was measured."""

    files: list[Path]
    scheme: str
    bytes_before: int  # of all weights
    bytes_after: int
    quality: Quality | None
    no_prefill: str | None = None  # why the graph for prompts was left out, where the source has one


def quantize(
    source: str | Path,
    out: str | Path,
    config: QuantizeConfig,
    check: Path | None = None,
    external_bytes: int = EXTERNAL_BYTES,
) -> QuantizeReport:
    """Write the graph at `source` to `out`, quantized. Nothing stands at `out` until all of it is whole and good.

    A graph that writes beside `source` is made anew from the quantized one, with which it shares a file of weights.
    A graph for prompts beside `source` is quantized in the same way, and both share one file of weights; but it is left
    out by the schemes that round all tokens of a run together, whose numbers would depend on how a prompt is cut.

    A name that ends in .ort gets ONNX Runtime's own format, and what t2r_export.graph.ort writes beside it.

    Args:
        check: a text, or token ids as .npy, to measure the quantized graph against `source` on.
        external_bytes: weights past that go to a file beside the graph.

    Raises:
        UserError: an unknown scheme or an option that it does not take, a graph that is not ours or quantized already,
            no calibration text where one is needed, or too short a one.
        QualityCheckFailed: the check was not passed; nothing is written.
    """
    source, out = existing_file(source, "a graph"), Path(out)
    if graph_format(out) == "ort":
        return _as_ort(out, lambda graph: quantize(source, graph, config, check))
    return _quantize(read_source(source), out, config, check, external_bytes)


def export_quantized(
    checkpoint: Checkpoint,
    out: str | Path,
    options: ExportConfig,
    config: QuantizeConfig,
    check: Path | None = None,
) -> tuple[ExportReport, QuantizeReport]:
    """Export and quantize in one go. A float32 graph is written only where a text is read with it, and is gone then."""
    out, chosen = Path(out), scheme(config.scheme)
    options, kind = replace(options, format=None), graph_format(out, options.format)
    if chosen.calibrated or check is not None:
        with folder_beside(out) as folder:
            exported = export(checkpoint, folder / "float32.onnx", options)
            quantized = quantize(exported.files[0], out, config, check)
    else:
        built = build(checkpoint, out.with_suffix(".onnx"), options)
        exported = built.report
        if kind == "ort":
            quantized = _as_ort(out, lambda graph: _quantize(source_of(built), graph, config))
        else:
            quantized = _quantize(source_of(built), out, config)
    return replace(exported, files=quantized.files), quantized


def _quantize(
    source: Source, out: Path, config: QuantizeConfig, check: Path | None = None, external_bytes: int = EXTERNAL_BYTES
) -> QuantizeReport:
    chosen, signature = scheme(config.scheme), source.signature
    calibration = _calibration(source.path, signature, chosen, config)
    before = _weight_bytes(source.model)
    made = _quantized(source.model, source.weights, config, calibration)
    after, no_prefill = _weight_bytes(made), _no_prefill(signature, config.scheme, chosen)
    prompts = None if no_prefill else source.prompts()
    generates = GENERATE in signature.graphs
    signature = replace(signature, quantization=config.scheme, graphs={})
    stood = set(out.parent.glob(f"{glob.escape(out.name)}.*"))
    others: dict[str, onnx.ModelProto] = {}
    if prompts is not None:
        others[PREFILL] = _quantized(prompts, source.weights, config, None)
        _describe(others[PREFILL], signature.companion(PREFILL), config)
    if generates:
        others[GENERATE] = wrap(made, signature)
        _describe(others[GENERATE], signature.companion(GENERATE), config)
    shares = bool(others) or after > external_bytes
    data = [share_weights([made, *others.values()], out, source.weights)] if shares else []
    places = {kind: companion(out, other, kind) for kind, other in others.items()}
    files = [out, *data, *places.values()]
    names = {kind: place.name for kind, place in places.items()}
    _describe(made, replace(signature, graphs=names), config)
    try:
        for kind, other in others.items():
            with replacing(places[kind]) as part:
                write_whole(other, part, source.weights)
        with replacing(out) as part:
            write_whole(made, part, source.weights)
            quality = None
            if check is not None:
                assert source.path is not None
                quality = measure(source.path, part, config.scheme, chosen.loss, check)
            if quality is not None and not quality.passed:
                raise QualityCheckFailed(out, quality)
    except BaseException:
        for file in files[1:]:
            if file not in stood:
                file.unlink(missing_ok=True)
        raise
    return QuantizeReport(without_older(out, files), config.scheme, before, after, quality, no_prefill)


def _as_ort(out: Path, make: Callable[[Path], QuantizeReport]) -> QuantizeReport:
    """What `make` writes as an .onnx, converted to `out`."""
    with folder_beside(out) as folder:
        graph = folder / "graph.onnx"
        try:
            report = make(graph)
        except QualityCheckFailed as ruined:
            raise QualityCheckFailed(out, ruined.quality) from None
        metadata = {prop.key: prop.value for prop in onnx.load(graph, load_external_data=False).metadata_props}
        signature = Signature.from_metadata(metadata)
        for role, option in ((PREFILL, "--prefill"), (GENERATE, "--loop")):
            if role in signature.graphs:
                raise UserError(
                    f"an .onnx, whose weights a {ROLES[role]} can share",
                    f"{out}",
                    f"export without {option} for an .ort",
                )
        return replace(report, files=write_ort(graph, out, find(signature.target).ort_style))


def _calibration(
    source: Path | None, signature: Signature, chosen: Scheme, config: QuantizeConfig
) -> Calibration | None:
    if not chosen.calibrated:
        return None
    assert config.calibrate is not None
    assert source is not None
    Decoder(source)  # says in one line why ONNX Runtime does not read it, which its calibrator would not
    return Calibration(
        source, calibration_tokens(config.calibrate, signature), config.calibrate_steps or CALIBRATE_STEPS
    )


def calibration_tokens(path: Path, signature: Signature) -> Tokens:
    """A text to calibrate on, or a .npy, as tokens (N,).

    Raises:
        UserError: as for t2r_export.quantizers.quality.read_tokens, and fewer than MIN_CALIBRATION.
    """
    tokens = read_tokens(path, signature)
    if len(tokens) < MIN_CALIBRATION:
        raise UserError(
            f"a calibration text of at least {MIN_CALIBRATION} tokens",
            f"{len(tokens)} in {path}",
            "name a longer one",
        )
    return tokens


def _quantized(
    model: onnx.ModelProto, weights: dict[str, Weight], config: QuantizeConfig, calibration: Calibration | None
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
    made.producer_name, made.producer_version, made.ir_version = kept
    assert {o.domain: o.version for o in made.opset_import}.items() >= opset.items()
    return made


def _no_prefill(signature: Signature, name: str, chosen: Scheme) -> str | None:
    """Why a graph for prompts that there is cannot be quantized."""
    if PREFILL not in signature.graphs or chosen.row_wise:
        return None
    return f"{name} rounds the tokens of a run together, so that the states would depend on how a prompt is cut"


def _weight_bytes(model: onnx.ModelProto) -> int:
    tensors = model.graph.initializer
    return sum(math.prod(t.dims) * helper.tensor_dtype_to_np_dtype(t.data_type).itemsize for t in tensors)


def _describe(model: onnx.ModelProto, signature: Signature, config: QuantizeConfig) -> None:
    """The source's metadata with the scheme's name, and with the options that were given."""
    del model.metadata_props[:]
    names = config.given([*BLOCK_OPTIONS, *CALIBRATION_OPTIONS])
    given = {name: getattr(config, name) for name in names if name != "calibrate"}
    helper.set_model_props(model, {**signature.to_metadata(), OPTIONS_KEY: json.dumps(given, sort_keys=True)})
