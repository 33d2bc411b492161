"""`t2r verify`: prove that a graph is still the model."""

from __future__ import annotations

from pathlib import Path

import click

from t2r_export.cli.output import note_each
from t2r_export.cli.reports import parity_text
from t2r_export.errors import CheckFailed
from t2r_export.paths import existing_model
from t2r_export.proof.tolerances import REFERENCES
from t2r_runtime.cli import providers
from t2r_runtime.cli.output import json_option, note, show
from t2r_runtime.cli.progress import progress
from t2r_runtime.session.refusals import existing_graph


@click.command("verify")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("graph", type=click.Path(path_type=Path))
@providers.options
@click.option(
    "--steps", type=click.IntRange(1), default=1000, show_default=True, help="Number of chained steps to compare."
)
@click.option("--rounding", is_flag=True, help="Show the model's own float32 error beside every bound.")
@click.option(
    "--reference",
    type=click.Choice(REFERENCES),
    default="float32",
    show_default=True,
    help="Precision of MODEL's own steps; float64 shows what float32 costs GRAPH.",
)
@json_option
def command(
    model: Path,
    graph: Path,
    provider: str,
    provider_options: tuple[str, ...],
    allow_fallback: bool,
    steps: int,
    rounding: bool,
    reference: str,
    as_json: bool,
) -> None:
    """Compare GRAPH with MODEL, the checkpoint that it was exported from; exit 1 if it is out of tolerance."""
    providers.check(provider, provider_options)
    existing_model(model)
    existing_graph(graph)

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
