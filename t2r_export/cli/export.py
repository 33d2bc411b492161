"""`t2r export`, and under its own name `t2r-export`: a checkpoint becomes a recurrent ONNX graph."""

from __future__ import annotations

from pathlib import Path

import click

from t2r_export.cli.output import json_option, ranges, show, size


@click.command("export")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--batch", type=int, metavar="B", help="A fixed batch size. Default: any.")
@click.option(
    "--state-layout", default="layers", show_default=True, help="layers: a state a layer; packed: one of all."
)
@click.option("--past-end", default="refuse", show_default=True, help="refuse or clamp, past a position table's end.")
@json_option
def command(model: Path, out: Path, batch: int | None, state_layout: str, past_end: str, as_json: bool) -> None:
    """Write MODEL (a model.pt or a Hugging Face folder) as the recurrent ONNX graph OUT."""
    from t2r_export import checkpoint
    from t2r_export.export import ExportConfig, export

    report = export(checkpoint.load(model), out, ExportConfig(batch, state_layout, past_end))
    signature = report.signature
    kinds = [str(layer["kind"]) for layer in signature.layers]
    state_bytes = sum(state.bytes() for state in signature.states)
    files = {str(file): file.stat().st_size for file in report.files}
    data = {
        "files": files,
        "parameters": report.parameters,
        "nodes": report.nodes,
        "state_bytes": state_bytes,
        "folds": report.folds,
    }
    lines = [f"{file}: {size(count)}" for file, count in files.items()]
    lines.append(f"{report.parameters:,} parameters, {report.nodes} operators, {len(signature.states)} states")
    lines.append(f"{' and '.join(f'{kinds.count(kind)} {kind}' for kind in dict.fromkeys(kinds))} layers")
    grows = any(state.grows for state in signature.states)
    lines.append(f"state: {size(state_bytes)} a sequence{', and more with every token' if grows else ', constant'}")
    for status in dict.fromkeys(fold.status for fold in report.folds):
        lines.append(f"layers {ranges([f.layer for f in report.folds if f.status == status])}: {status}")
    show(as_json, data, "\n".join(lines))
