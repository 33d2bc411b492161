"""Options that several verbs share, and how their results are written as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from t2r_export.config.finetune import LENGTH
from t2r_runtime.cli.output import note

F = TypeVar("F", bound=Callable[..., Any])


def force_option(function: F) -> F:
    """The option `--force` of verbs that write checkpoints, given to the command as `force`."""
    text = "Replace the trained model, or whatever else stands at OUT."
    return click.option("--force", is_flag=True, help=text)(function)


def eval_tokens_option(default: int | None, text: str) -> Callable[[F], F]:
    """The option `--eval-tokens` of verbs that evaluate, given to the command as `eval_tokens`."""
    form: dict[str, Any] = {"type": click.IntRange(0), "metavar": "N"}
    return click.option("--eval-tokens", default=default, show_default=default is not None, help=text, **form)


def with_error(nats: float, standard_error: float) -> str:
    """Nats per token, and their standard error where there is one."""
    return f"{nats:.4f}" + (f" ± {standard_error:.4f}" if math.isfinite(standard_error) else "")


def note_each(lines: Sequence[str]) -> None:
    """What a person should know of an import, each on a line of stderr."""
    for line in lines:
        note(f"note: {line}")


def shorter(length: int) -> int:
    """A length that nobody chose; a line says so where the model's context is shorter than the usual one."""
    if length < LENGTH:
        note(f"{length} tokens at a time, the model's context")
    return length


def table(rows: Sequence[Sequence[object]], head: Sequence[str] = (), markdown: bool = False) -> str:
    """Aligned columns, numbers to the right and text to the left; or a table of Markdown."""
    if markdown:
        return "\n".join(f"| {' | '.join(map(str, line))} |" for line in [head, ["---"] * len(head), *rows])
    lines = [list(head)] if head else []
    lines += [[str(cell) for cell in row] for row in rows]
    columns = list(zip(*lines, strict=True))
    widths = [max(map(len, column)) for column in columns]
    numeric = [all(isinstance(row[i], int | float) for row in rows) for i in range(len(columns))]
    return "\n".join(
        "  ".join(c.rjust(w) if n else c.ljust(w) for c, w, n in zip(line, widths, numeric, strict=True)).rstrip()
        for line in lines
    )


def size(count: float) -> str:
    """A number of bytes with its unit: 1234567 -> '1.23 MB'."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
