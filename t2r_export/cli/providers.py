"""Where a graph runs: the options that choose it, and what is said of a graph that runs in more than one place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from t2r_export.cli.output import note

F = TypeVar("F", bound=Callable[..., Any])


def options(function: F) -> F:
    """The options `--provider` and `--allow-fallback`."""
    for option in (
        click.option("--allow-fallback", is_flag=True, help="Let the CPU run what the provider does not take."),
        click.option("--provider", default="cpu", show_default=True, help="ONNX Runtime's execution provider."),
    ):
        function = option(function)
    return function


def note_split(provider: str, placement: Mapping[str, int]) -> None:
    """Say on stderr who runs how many nodes, if anybody but `provider` runs any."""
    if any(name != provider for name in placement):
        note(split(provider, placement))


def split(provider: str, placement: Mapping[str, int]) -> str:
    """Who runs how many nodes, `provider` first, even if it takes none."""
    others = ", ".join(f"{name} {count}" for name, count in placement.items() if name != provider)
    return f"{provider} runs {placement.get(provider, 0)} of {sum(placement.values())} nodes, {others}"
