"""`t2r export` and `t2r-export`: export a checkpoint as a recurrent ONNX graph."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from t2r_export.cli import quantize as quantizing
from t2r_export.cli.fields import fields, flat
from t2r_export.cli.given import check_given
from t2r_export.cli.output import adapter_option, adapters_of, base_option, download_option, downloaded, note_each
from t2r_export.cli.reports import export_text, state_bytes
from t2r_export.cli.startup import importing
from t2r_export.config.export import ExportConfig
from t2r_export.config.formats import FORMATS, GRAPH, check_format
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.files import sha256_beside
from t2r_export.paths import ADAPTERS, check_folder, check_outputs, existing_model, graph_outputs
from t2r_runtime.cli.output import json_option, show
from t2r_runtime.errors import UserError


@click.command("export")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@fields(ExportConfig)
@click.option(
    "--quantize",
    "how",
    type=quantizing.SCHEME,
    is_eager=True,
    help=f"Quantization scheme of the weights, {quantizing.HELP}",
)
@click.option(
    "--format",
    "form",
    type=click.Choice([GRAPH, *FORMATS]),
    default=GRAPH,
    show_default=True,
    help="; ".join(
        ["graph: the file OUT and its companions", *(f"{name}: {one.about}" for name, one in FORMATS.items())]
    )
    + ".",
)
@click.option(
    "--draft-head",
    is_flag=True,
    help="Export the draft head of a folder in place of its model (multi-token prediction), for --draft.",
)
@quantizing.options
@adapter_option
@base_option
@download_option
@json_option
def command(
    model: Path,
    out: Path,
    form: str,
    draft_head: bool,
    how: tuple[str, Mapping[str, Any]] | None,
    calibrate: Path | None,
    check: Path | None,
    adapters: tuple[str, ...],
    base: Path | None,
    download: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Export MODEL (a model.pt, a folder, .gguf, .adapter or hf:OWNER/NAME) as the recurrent ONNX graph OUT."""
    config = ExportConfig(**flat(ExportConfig, options))
    check_given()
    quantize = None if how is None else QuantizeConfig(scheme=how[0], calibrate=calibrate, **how[1])
    downloaded(model, download)
    named = adapters_of(adapters, model, base)
    if draft_head and (named or form != GRAPH):
        received = "--adapter" if named else f"--format {form}"
        raise UserError("the step graph alone of a draft head", f"one of {received}", "leave it out")
    if form != GRAPH:
        if named:
            raise UserError(f"no --adapter with --format {form}", adapters[0], "merge the adapter into the model")
        check_format(form, config, quantize)
        if check is not None:
            raise UserError(f"no --check with --format {form}", f"{check}", "check --format graph with the same scheme")
        check_folder(out)
        existing_model(model)
    else:
        read = [existing_model(model), base, *named.values(), *quantizing.texts(check, quantize)]
        check_outputs(graph_outputs(out, config.companions), read)
    digest = sha256_beside(model) if os.path.isfile(model) else None  # in a thread, while torch is imported
    with importing():
        from t2r_export.checkpoints import checkpoint
        from t2r_export.checkpoints.beside import changed_by
        from t2r_export.export import export

        if quantize is not None:
            from t2r_export.quantize import export_quantized

    quantized = None
    loaded = checkpoint.load(model, digest, base if model.suffix == ADAPTERS else None, draft_head)
    note_each(loaded.notes)
    if form != GRAPH:
        report = pkgutil.resolve_name(FORMATS[form].exporter)(loaded, out, config, quantize)
    elif quantize is None:
        report = export(loaded, out, config, adapters=changed_by(named, model, loaded, base))
    else:
        with quantizing.failure_shown(as_json):
            report, quantized = export_quantized(
                loaded, out, config, quantize, check, changed_by(named, model, loaded, base)
            )
    note_each(report.notes)
    files = {str(file): file.stat().st_size for file in report.files}
    data = {
        "files": files,
        "parameters": report.parameters,
        "active_parameters": report.active_parameters,
        "nodes": report.nodes,
        "state_bytes": state_bytes(report),
        "folds": report.folds,
    }
    lines = [export_text(report, files)]
    if quantized is not None:
        data["quantized"] = quantizing.data(quantized)
        lines.append(quantizing.text(quantized, with_files=False))
    show(as_json, data, "\n".join(lines))
