"""Options shared by several verbs, and formatting of their results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from t2r_export.config.finetune import LENGTH
from t2r_export.paths import HUB, check_base, existing_model
from t2r_runtime.cli.output import note
from t2r_runtime.contract.signature import ADAPTER_NAME
from t2r_runtime.errors import UserError

F = TypeVar("F", bound=Callable[..., Any])


def force_option(function: F) -> F:
    """Add the option `--force`."""
    text = "Replace a trained model or another file at OUT."
    return click.option("--force", is_flag=True, help=text)(function)


def base_option(function: F) -> F:
    """Add the option `--base`."""
    text = "The model that MODEL, an .adapter, was made of: a .gguf, a Hugging Face folder or a model.pt."
    return click.option("--base", type=click.Path(path_type=Path), help=text)(function)


def adapter_option(function: F) -> F:
    """Add the option `--adapter`, for `adapters_of`."""
    text = "A low-rank adapter that the graph also holds, chosen at run time: an .adapter of MODEL, or peft's folder."
    return click.option("--adapter", "adapters", multiple=True, metavar="NAME=PATH", help=text)(function)


def adapters_of(given: Sequence[str], model: Path, base: Path | None) -> dict[str, Path]:
    """The paths of adapters by name, after checks of names and of `base`, which is an .adapter's or of peft's folders.

    Raises:
        UserError: a name that is invalid or occurs twice, a path that does not exist, or a base that nothing needs.
    """
    found: dict[str, Path] = {}
    for one in given:
        name, _, path = one.partition("=")
        if not ADAPTER_NAME.fullmatch(name) or name in found or not path:
            expected = "NAME=PATH for --adapter, with different names of letters, digits, '.', '_' and '-'"
            raise UserError(expected, repr(one), "correct it")
        found[name] = existing_model(path)
    if found and base is not None:
        existing_model(base)
    else:
        check_base(model, base)
    return found


def download_option(function: F) -> F:
    """Add the option `--download`, for `downloaded`."""
    text = "Download the files of a model hf:OWNER/NAME that are read into the hub's cache, where they are not."
    return click.option("--download", is_flag=True, help=text)(function)


def downloaded(model: Path, download: bool) -> None:
    """Download a model hf:OWNER/NAME if `download`. Raises UserError for another model."""
    if not download:
        return
    if not model.as_posix().startswith(HUB):
        raise UserError("a model hf:OWNER/NAME with --download", f"{model}", "leave out --download")
    from t2r_export.checkpoints.hub.download import download as of_hub

    of_hub(model)


def with_error(nats: float, standard_error: float | None, sign: str = "") -> str:
    """Format nats per token, with the standard error if it is known and finite; with sign "+" always with one."""
    known = standard_error is not None and math.isfinite(standard_error)
    return f"{nats:{sign}.4f}" + (f" ± {standard_error:.4f}" if known else "")


def note_each(lines: Sequence[str]) -> None:
    """Print notes on stderr, one per line."""
    for line in lines:
        note(f"note: {line}")


def shorter(length: int) -> int:
    """Print a note if a default length is shorter than usual; returns it."""
    if length < LENGTH:
        note(f"using windows of {length} tokens, the model's context")
    return length


def table(rows: Sequence[Sequence[object]], head: Sequence[str] = (), markdown: bool = False) -> str:
    """Format a table with aligned columns, or as Markdown."""
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


def parameters(count: int, active: int) -> str:
    """Format the number of parameters, and of those read per token if fewer."""
    return f"{count:,} parameters" + (f", of which a token reads {active:,}" if active < count else "")


def size(count: float) -> str:
    """Format a number of bytes: 1234567 -> '1.23 MB'."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
