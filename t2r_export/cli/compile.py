"""`t2r compile`: let an accelerator's compiler do its work ahead of time."""

from __future__ import annotations

from pathlib import Path

import click

from t2r_export.cli.output import size
from t2r_export.paths import check_outputs
from t2r_runtime.cli import providers
from t2r_runtime.cli.output import json_option, show
from t2r_runtime.session.refusals import existing_graph

FILE = click.Path(path_type=Path)


@click.command("compile")
@click.argument("source", type=FILE)
@click.argument("out", type=FILE)
@providers.options
@json_option
def command(
    source: Path, out: Path, provider: str, provider_options: tuple[str, ...], allow_fallback: bool, as_json: bool
) -> None:
    """Write the graph SOURCE as OUT, compiled for one chip of a provider (qnn), so that a device need not do it.

    OUT is opened like any graph, with the same provider. Name the chip with --provider-option, as in soc_model=57.
    """
    check_outputs([("compiled graph", out)], [existing_graph(source)])
    providers.check(provider, provider_options)

    from t2r_export.providers.compile import compile_graph

    with providers.own_stdout():
        report = compile_graph(source, out, provider, providers.parsed(provider_options), allow_fallback)
    taken = f"{report.placement.get(provider, 0)} of {sum(report.placement.values())}"
    lines = [f"{file}: {size(file.stat().st_size)}" for file in report.files]
    lines.append(
        f"{taken} operators compiled for {provider}, {report.programs} program{'s' if report.programs > 1 else ''}"
    )
    show(as_json, report, "\n".join(lines))
