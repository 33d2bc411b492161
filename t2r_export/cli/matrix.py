"""`t2r verify` without a graph: a table of providers and precisions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from t2r_export.cli.output import note_each, table
from t2r_export.config.quantize import scheme as find_scheme
from t2r_export.errors import CheckFailed
from t2r_export.paths import existing_model
from t2r_runtime.cli import providers
from t2r_runtime.cli.output import note, show
from t2r_runtime.errors import UserError
from t2r_runtime.files import existing_file
from t2r_runtime.session.providers import named

if TYPE_CHECKING:
    from t2r_export.providers.matrix import Cell, Matrix


def show_matrix(
    model: Path,
    chosen: Sequence[str],
    precisions: Sequence[str],
    steps: int,
    calibrate: Path | None,
    pythons: Sequence[str],
    merged: Sequence[Path],
    as_json: bool,
) -> None:
    """Run `t2r verify` without a graph."""
    read = [providers.read(text) for text in chosen]
    if options := [text for text, each in zip(chosen, read, strict=True) if each.options]:
        raise UserError("a GRAPH with options of a provider", options[0], "leave the options out")
    existing_model(model)
    for path in (*merged, *([] if calibrate is None else [calibrate])):
        existing_file(path, "a file to read")
    programs = dict(map(_command, pythons))
    for name in programs:
        named(name)
    for name in precisions:
        if name != "none":
            find_scheme(name)

    from t2r_export.checkpoints import checkpoint
    from t2r_export.checkpoints.untrained import untrained
    from t2r_export.providers.matrix import PRECISIONS, parity_matrix, read_matrix
    from t2r_runtime import PROVIDERS
    from t2r_runtime.contract.signature import untrained_note

    loaded = checkpoint.load(model)
    note_each([*loaded.notes, *untrained_note(len(untrained(loaded.provenance)))])
    matrix = parity_matrix(
        loaded,
        [each.name for each in read] or tuple(PROVIDERS),
        precisions or PRECISIONS,
        steps,
        calibrate,
        programs,
        [read_matrix(path) for path in merged],
        allow_fallback=any(each.allow_fallback for each in read),
        on_progress=lambda cell: note(f"{cell.provider}, {cell.precision}: {cell.reason or numbers(cell)}"),
    )
    show(as_json, matrix, text(matrix))
    if matrix.failed:
        cells = ", ".join(f"{cell.provider} with {cell.precision}" for cell in matrix.failed)
        raise CheckFailed(f"{cells}: not {model} within the tolerances")


def _command(option: str) -> tuple[str, str]:
    provider, equals, program = option.partition("=")
    if not (equals and program):
        raise UserError("PROVIDER=COMMAND for --python", repr(option), "correct it")
    return provider, program


def numbers(cell: Cell) -> str:
    """Format the measurements of a cell."""
    if cell.exact:
        shown = f"{cell.logits:.1e}, {cell.state:.1e}"
    else:
        shown = f"{cell.logits:.2g}, {cell.state:.2g}, {cell.greedy:.1%}"
    return shown if cell.passed else f"{shown} FAILED"


def text(matrix: Matrix) -> str:
    """Format the table, its numbered reasons, and versions and steps of each provider."""
    columns = list(dict.fromkeys(cell.precision for cell in matrix.cells))
    reasons = list(dict.fromkeys(cell.reason for cell in matrix.cells if cell.reason is not None))
    shown = {
        (cell.provider, cell.precision): numbers(cell) if cell.reason is None else f"({reasons.index(cell.reason) + 1})"
        for cell in matrix.cells
    }
    rows = [
        [provider, *(shown.get((provider, column), "") for column in columns)]
        for provider in dict.fromkeys(cell.provider for cell in matrix.cells)
    ]
    head = ["provider", *columns]
    lines = [table(rows, head, markdown=True), ""]
    lines += [f"- ({number}) {reason}" for number, reason in enumerate(reasons, 1)]
    lines += [f"- {provider}: {_with(matrix, provider)}" for provider in matrix.versions]
    return "\n".join(lines)


def _with(matrix: Matrix, provider: str) -> str:
    """Versions, steps, and the split of nodes if the provider did not run all of them."""
    parts = [f"{package} {version}" for package, version in matrix.versions[provider].items()]
    measured = [cell for cell in matrix.cells if cell.provider == provider and cell.reason is None]
    parts += [f"{steps} steps" for steps in sorted({cell.steps for cell in measured})]
    split = [
        f"{cell.precision} {cell.placement[provider]} of {sum(cell.placement.values())}"
        for cell in measured
        if len(cell.placement) > 1
    ]
    return ", ".join(parts) + (f"; nodes there: {', '.join(split)}" if split else "")
