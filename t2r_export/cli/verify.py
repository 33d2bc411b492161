"""`t2r verify`: prove that a graph is still the model."""

from __future__ import annotations

from pathlib import Path

import click

from t2r_export.cli.output import json_option, note, show, table
from t2r_export.cli.progress import progress
from t2r_runtime.errors import CheckFailed


@click.command("verify")
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("graph", type=click.Path(path_type=Path))
@click.option("--provider", default="cpu", show_default=True, help="ONNX Runtime's execution provider.")
@click.option("--steps", type=int, default=1000, show_default=True, help="Chained steps to compare.")
@json_option
def command(model: Path, graph: Path, provider: str, steps: int, as_json: bool) -> None:
    """Compare GRAPH with MODEL, the checkpoint that it was exported from; exit 1 if it is out of tolerance."""
    from t2r_export import checkpoint
    from t2r_export.verify import verify

    with progress("verify", steps) as advance:
        report = verify(checkpoint.load(model), graph, provider, steps, progress=advance)
    rows = [[c.name, f"{c.worst:.1e}", f"{c.tolerance:.0e}", _ok(c.passed)] for c in report.checks]
    greedy = report.first_greedy_difference
    rows.append(
        ["first other greedy token", "none" if greedy is None else f"step {greedy}", "none", _ok(greedy is None)]
    )
    text = table(rows, [f"{steps} steps, {provider}", "worst", "tolerance", ""])
    show(as_json, report.to_dict(), text)
    if not report.same_checkpoint:
        note(f"{graph} says that it was exported from another file than {model}")
    if not report.passed:
        raise CheckFailed(f"{graph} is not {model} within the tolerances above")


def _ok(passed: bool) -> str:
    return "ok" if passed else "FAILED"
