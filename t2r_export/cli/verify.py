"""`t2r verify`: compare a graph with its model."""

from __future__ import annotations

from pathlib import Path

import click

from t2r_export.cli.output import adapter_option, adapters_of, base_option, note_each
from t2r_export.cli.reports import parity_text
from t2r_export.errors import CheckFailed
from t2r_export.paths import ADAPTERS, existing_model
from t2r_export.proof.tolerances import REFERENCES
from t2r_runtime.cli import providers
from t2r_runtime.cli.output import json_option, note, show
from t2r_runtime.cli.progress import progress
from t2r_runtime.session.refusals import existing_graph

FILE = click.Path(path_type=Path)


@click.command("verify")
@click.argument("model", type=FILE)
@click.argument("graph", type=FILE)
@providers.option
@click.option(
    "--steps", type=click.IntRange(1), default=1000, show_default=True, help="Number of chained steps to compare."
)
@click.option("--rounding", is_flag=True, help="Show the model's own float32 rounding error beside each tolerance.")
@click.option(
    "--reference",
    type=click.Choice(REFERENCES),
    default="float32",
    show_default=True,
    help="Precision of MODEL's steps; float64 shows the float32 error of GRAPH.",
)
@adapter_option
@base_option
@json_option
def command(
    model: Path,
    graph: Path,
    provider: providers.Provider,
    steps: int,
    rounding: bool,
    reference: str,
    adapters: tuple[str, ...],
    base: Path | None,
    as_json: bool,
) -> None:
    """Compare GRAPH with MODEL, the checkpoint it was exported from; exit 1 if a difference exceeds its tolerance."""
    existing_model(model)
    named = adapters_of(adapters, model, base)
    existing_graph(graph)

    from t2r_export.checkpoints import checkpoint
    from t2r_export.checkpoints.beside import changed_by
    from t2r_export.graph.reader import read, require_whole
    from t2r_export.verify import verify

    decoder = providers.decoder(graph, provider, None)
    head = decoder.signature.hidden_state is not None
    loaded = checkpoint.load(model, base=base if model.suffix == ADAPTERS else None, draft_head=head)
    note_each(loaded.notes)
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
            adapters=changed_by(named, model, loaded, base),
        )
    show(as_json, {**report.to_dict(), "placement": decoder.placement}, parity_text(report))
    providers.note_split(provider.name, decoder.placement)
    if left := [name for name in decoder.signature.adapters or () if name not in named]:
        note(f"adapters that were not compared: {', '.join(left)}; pass --adapter NAME=PATH")
    if not report.same_checkpoint:
        note(f"{graph} was exported from another file than {model}")
    if not report.passed:
        raise CheckFailed(f"{graph} is not {model} within the tolerances above")
