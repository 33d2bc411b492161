"""The options that say how tokens are chosen, and with how many threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def options(function: F) -> F:
    """The options `--temperature`, `--top-k`, `--top-p`, `--seed` and `--threads`."""
    for option in (
        click.option(
            "--threads", type=click.IntRange(min=1), help="Threads per operator. Default: one per physical core."
        ),
        click.option("--seed", type=int, help="Seed of the sampling. Default: a new one every time."),
        click.option(
            "--top-p",
            type=float,
            default=1.0,
            show_default=True,
            help="Sample from the smallest set of tokens whose probabilities reach P.",
        ),
        click.option(
            "--top-k",
            type=int,
            default=0,
            show_default=True,
            help="Sample from the K most likely tokens; 0 is no limit.",
        ),
        click.option(
            "--temperature", type=float, default=1.0, show_default=True, help="Sampling temperature; 0 is greedy."
        ),
    ):
        function = option(function)
    return function
