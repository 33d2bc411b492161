"""`t2r export`, and under its own name `t2r-export`: a checkpoint becomes a recurrent ONNX graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from t2r_export.cli import quantize as quantizing
from t2r_export.cli.output import importing, json_option, show
from t2r_export.cli.reports import export_text, state_bytes
from t2r_export.config.export import PAST_ENDS, STATE_LAYOUTS, ExportConfig
from t2r_export.config.quantize import SCHEMES, QuantizeConfig
from t2r_export.config.targets import TARGETS
from t2r_runtime.files import sha256_beside


@click.command("export")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--batch", type=int, metavar="B", help="A fixed batch size. Default: any.")
@click.option(
    "--state-layout",
    type=click.Choice(STATE_LAYOUTS),
    default="layers",
    show_default=True,
    help="layers: one state per layer; packed: one for all layers.",
)
@click.option(
    "--past-end",
    type=click.Choice(PAST_ENDS),
    default="refuse",
    show_default=True,
    help="What a step behind a position table's end does: refuse, or repeat the last position.",
)
@click.option(
    "--target",
    type=click.Choice(list(TARGETS)),
    default="portable",
    show_default=True,
    help="portable: runs everywhere; fused: ONNX Runtime's LinearAttention; standard: that of ONNX opset 27; "
    "npu: fixed sizes throughout.",
)
@click.option("--format", "kind", help="onnx, or ort: ONNX Runtime's own. Default: what the name OUT ends in.")
@click.option("--float16-safe", is_flag=True, help="Right on accelerators that compute in float16: two states for one.")
@click.option("--top-k", type=int, metavar="N", help="Let the graph choose the N largest logits: 1 for greedy text.")
@click.option("--prefill", is_flag=True, help="A second graph beside OUT that reads prompts many tokens at once.")
@click.option("--loop", is_flag=True, help="Another graph beside OUT that writes a whole text in one run.")
@click.option("--quantize", "scheme", type=click.Choice(list(SCHEMES)), help="Quantize too; docs/quantization.md.")
@quantizing.options
@json_option
def command(
    model: Path,
    out: Path,
    batch: int | None,
    state_layout: str,
    past_end: str,
    target: str,
    kind: str | None,
    top_k: int | None,
    prefill: bool,
    loop: bool,
    float16_safe: bool,
    scheme: str | None,
    check: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Write MODEL (a model.pt or a Hugging Face folder) as the recurrent ONNX graph OUT."""
    digest = sha256_beside(model) if model.is_file() else None  # before torch is imported, which takes as long
    with importing():
        from t2r_export.checkpoints import checkpoint
        from t2r_export.export import export

    if kind and not out.suffix:
        out = out.with_name(f"{out.name}.{kind}")
    config = ExportConfig(
        batch=batch,
        state_layout=state_layout,
        past_end=past_end,
        target=target,
        format=kind,
        top_k=top_k,
        prefill=prefill,
        float16_safe=float16_safe,
        loop=loop,
    )
    quantized = None
    if scheme is None:
        quantizing.refuse_without_scheme(check, **given)
        report = export(checkpoint.load(model, digest), out, config)
    else:
        how = QuantizeConfig(scheme=scheme, **given)
        with importing():
            from t2r_export.quantize import export_quantized

        with quantizing.failure_shown(as_json):
            report, quantized = export_quantized(checkpoint.load(model, digest), out, config, how, check)
    files = {str(file): file.stat().st_size for file in report.files}
    data = {
        "files": files,
        "parameters": report.parameters,
        "nodes": report.nodes,
        "state_bytes": state_bytes(report),
        "folds": report.folds,
        "no_prefill": report.no_prefill,
    }
    lines = [export_text(report, files)]
    if quantized is not None:
        data["quantized"] = quantizing.data(quantized)
        lines.append(quantizing.text(quantized, with_files=False))
    show(as_json, data, "\n".join(lines))
