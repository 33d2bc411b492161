"""`t2r pack`: a graph and a page that runs it as a folder for a web server."""

from __future__ import annotations

from pathlib import Path

import click

from t2r_export.cli.output import size
from t2r_export.paths import check_folder
from t2r_runtime.cli.output import json_option, show
from t2r_runtime.session.refusals import existing_graph

FILE = click.Path(path_type=Path)


@click.command("pack")
@click.argument("graph", type=FILE)
@click.argument("folder", type=FILE)
@click.option("--page", type=FILE, metavar="DIR", help="Folder of a page, whose files are copied too.")
@click.option(
    "--peer", type=FILE, metavar="GRAPH", help="Another graph, that the page may run beside the first: a softmax model."
)
@json_option
def command(graph: Path, folder: Path, page: Path | None, peer: Path | None, as_json: bool) -> None:
    """Copy GRAPH and its companions to FOLDER, with a list of sizes and hashes, for a page in a browser."""
    check_folder(folder)
    for path in [graph] if peer is None else [graph, peer]:
        existing_graph(path)

    from t2r_export.providers.pack import pack

    packed = pack(graph, folder, page, peer)
    total = sum(file.size for file in packed.files)
    lines = [f"{file.name}: {size(file.size)}" for file in packed.files if page is None or file.size > 100_000]
    lines.append(f"{folder}: {len(packed.files)} files and their list, {size(total)}")
    show(as_json, {"folder": folder, **vars(packed), "bytes": total}, "\n".join(lines))
