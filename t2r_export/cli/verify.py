"""`t2r verify`: prove that a graph is still the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from t2r_export.cli.given import check_given
from t2r_export.cli.matrix import show_matrix
from t2r_export.cli.output import note_each
from t2r_export.cli.renamed import Verb
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


@click.command("verify", cls=Verb)
@click.argument("model", type=FILE)
@click.argument("graph", type=FILE, required=False)
@click.option(
    "--provider",
    "chosen",
    multiple=True,
    metavar="NAME[+cpu][:KEY=VALUE,…]",
    help="Execution provider of ONNX Runtime that runs the graph; with +cpu, the CPU runs the nodes that it does not "
    "take. Without GRAPH repeat for more.  [default: cpu, without GRAPH every one]",
)
@click.option(
    "--steps", type=click.IntRange(1), help="Number of chained steps to compare.  [default: 1000, without GRAPH 256]"
)
@click.option("--rounding", is_flag=True, help="Show the model's own float32 error beside every bound.")
@click.option(
    "--reference",
    type=click.Choice(REFERENCES),
    default="float32",
    show_default=True,
    help="Precision of MODEL's own steps; float64 shows what float32 costs GRAPH.",
)
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    metavar="S",
    help="Without GRAPH: a scheme of t2r quantize, or none; repeat for more.  [default: every one]",
)
@click.option(
    "--calibrate",
    type=FILE,
    metavar="TEXT",
    help="Without GRAPH: text to calibrate int8-static on. Default: text sampled from MODEL.",
)
@click.option(
    "--python",
    "pythons",
    multiple=True,
    metavar="P=COMMAND",
    help="Without GRAPH: command of the Python interpreter that has the provider P.",
)
@click.option(
    "--merge",
    "merged",
    type=FILE,
    multiple=True,
    metavar="FILE",
    help="Without GRAPH: keep the cells of this earlier --json output, and add to them; repeat for more.",
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
    """Compare GRAPH with MODEL, the checkpoint that it was exported from; exit 1 if it is out of tolerance.

    Without GRAPH, MODEL is exported for every provider and in every precision. A cell of the table holds the worst
    difference of a logit, the worst one of a state relative to the state's largest value, and, where precision is given
    up, the share of equal greedy tokens; or the number of the reason why it cannot be.
    """
    check_given()
    if graph is None:
        return show_matrix(model, chosen, steps=steps or 256, as_json=as_json, **of_matrix)
    if len(chosen) > 1:
        raise UserError("one --provider beside a GRAPH", str(len(chosen)), "leave the others out")
    provider, provider_options, allow_fallback = providers.read("".join(chosen) or "cpu")
    existing_model(model)
    existing_graph(graph)
    steps = steps or 1000

    from t2r_export.checkpoints import checkpoint
    from t2r_export.graph.reader import read, require_whole
    from t2r_export.verify import verify

    loaded = checkpoint.load(model)
    note_each(loaded.notes)
    decoder = providers.opened(graph, provider, None, provider_options, allow_fallback)
    if graph.suffix == ".onnx":
        require_whole(read(graph), graph)
    with progress("verify", steps) as on_progress:
        report = verify(
            loaded,
            graph,
            provider,
            steps,
            on_progress=on_progress,
            decoder=decoder,
            rounding=rounding,
            reference=reference,
        )
    show(as_json, {**report.to_dict(), "placement": decoder.placement}, parity_text(report))
    providers.note_split(provider, decoder.placement)
    if not report.same_checkpoint:
        note(f"{graph} was exported from another file than {model}")
    if not report.passed:
        raise CheckFailed(f"{graph} is not {model} within the tolerances above")
