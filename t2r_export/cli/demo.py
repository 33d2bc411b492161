"""`t2r demo`: the whole way on one small model."""

from __future__ import annotations

from pathlib import Path

import click

from t2r_export.cli.output import json_option, note, show
from t2r_export.cli.reports import export_text, parity_text, state_bytes


@click.command("demo")
@click.argument("model", type=click.Path(path_type=Path), default=Path("models/storyteller/model.pt"))
@click.option("--prompt", default="Once upon a time", show_default=True, metavar="TEXT", help="Text to continue.")
@json_option
def command(model: Path, prompt: str, as_json: bool) -> None:
    """Export MODEL, prove that the graph is the model, and let it continue a text."""
    from t2r_export.demo import demo

    if not as_json:
        note(f"exporting {model}, comparing graph and model, writing a text …")
    made = demo(model, prompt)
    data = {
        "model_bytes": made.source_bytes,
        "graph_bytes": made.graph_bytes,
        "parameters": made.graph.parameters,
        "state_bytes": state_bytes(made.graph),
        "parity": made.parity.to_dict(),
        "text": made.text,
        "tokens_per_second": made.tokens_per_second,
    }
    files = {str(model): made.source_bytes, "the graph": made.graph_bytes}
    parts = [
        export_text(made.graph, files),
        parity_text(made.parity),
        made.text,
        f"{made.tokens} tokens, {made.tokens_per_second:.0f} tokens/s",
    ]
    show(as_json, data, "\n\n".join(parts))
