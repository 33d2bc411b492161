"""`t2r verify`: compare graphs with their model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from t2r_export.cli.given import check_given
from t2r_export.cli.matrix import show_matrix
from t2r_export.cli.output import note_each
from t2r_export.cli.reports import parity_text
from t2r_export.errors import CheckFailed
from t2r_export.paths import existing_model
from t2r_export.proof.tolerances import REFERENCES
from t2r_runtime.cli import providers
from t2r_runtime.cli.output import json_option, note, show
from t2r_runtime.cli.progress import progress
from t2r_runtime.errors import UserError
from t2r_runtime.session.refusals import existing_graph

FILE = click.Path(path_type=Path)


@click.command("verify")
@click.argument("model", type=FILE)
@click.argument("graph", type=FILE, required=False)
@click.option(
    "--provider",
    "chosen",
    multiple=True,
    metavar="NAME[+cpu][:KEY=VALUE,…]",
    help="ONNX Runtime execution provider and its options; +cpu runs unsupported nodes on the CPU. Repeatable without "
    "GRAPH.  [default: cpu, without GRAPH every one]",
)
@click.option(
    "--steps",
    type=click.IntRange(1),
    help="Number of chained steps to compare.  [default: 1000, without GRAPH 256]",
)
@click.option("--rounding", is_flag=True, help="Show the model's own float32 rounding error beside each tolerance.")
@click.option(
    "--reference",
    type=click.Choice(REFERENCES),
    default="float32",
    show_default=True,
    help="Precision of MODEL's steps; float64 shows the float32 error of GRAPH.",
)
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    metavar="S",
    help="Without GRAPH: a scheme of t2r quantize, or none. Repeatable.  [default: every one]",
)
@click.option(
    "--calibrate",
    type=FILE,
    metavar="TEXT",
    help="Without GRAPH: calibration text of int8-static. Default: text sampled from MODEL.",
)
@click.option(
    "--python",
    "pythons",
    multiple=True,
    metavar="P=COMMAND",
    help="Without GRAPH: Python interpreter of the provider P.",
)
@click.option(
    "--merge",
    "merged",
    type=FILE,
    multiple=True,
    metavar="FILE",
    help="Without GRAPH: earlier --json output whose cells to keep. Repeatable.",
)
@json_option
def command(
    model: Path,
    graph: Path | None,
    chosen: tuple[str, ...],
    steps: int | None,
    rounding: bool,
    reference: str,
    as_json: bool,
    **of_matrix: Any,
) -> None:
    """Compare GRAPH with MODEL, the checkpoint it was exported from; exit 1 if a difference exceeds its tolerance.

    Without GRAPH, MODEL is exported for every provider in every precision. A cell of the table holds the worst
    difference of logits, the worst difference of states relative to the state's largest value and, for reduced
    precision, the share of equal greedy tokens; or the number of the reason why the combination is unsupported.
    """
    check_given()
    if graph is None:
        return show_matrix(model, chosen, steps=steps or 256, as_json=as_json, **of_matrix)
    if len(chosen) > 1:
        raise UserError("one --provider with a GRAPH", str(len(chosen)), "leave the others out")
    provider = providers.read("".join(chosen) or "cpu")
    existing_model(model)
    existing_graph(graph)
    steps = steps or 1000

    from t2r_export.checkpoints import checkpoint
    from t2r_export.graph.reader import read, require_whole
    from t2r_export.verify import verify

    loaded = checkpoint.load(model)
    note_each(loaded.notes)
    decoder = providers.decoder(graph, provider, None)
    if graph.suffix == ".onnx":
        require_whole(read(graph), graph)
    with progress("verify", steps) as on_progress:
        report = verify(
            loaded,
            graph,
            provider.name,
            steps,
            on_progress=on_progress,
            decoder=decoder,
            rounding=rounding,
            reference=reference,
        )
    show(as_json, {**report.to_dict(), "placement": decoder.placement}, parity_text(report))
    providers.note_split(provider.name, decoder.placement)
    if not report.same_checkpoint:
        note(f"{graph} was exported from another file than {model}")
    if not report.passed:
        raise CheckFailed(f"{graph} is not {model} within the tolerances above")
