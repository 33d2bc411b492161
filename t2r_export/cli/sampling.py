"""The options that say how tokens are chosen, and with how many threads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

# of t2r_runtime.Sampling, which checks their values, in the order in which they act
NUMBERS: dict[str, tuple[type, Any, str]] = {
    "repetition_penalty": (
        float,
        1.0,
        "Make tokens that have occurred less likely: positive logits are divided by it, negative ones multiplied.",
    ),
    "no_repeat_ngram": (int, 0, "Let no N tokens in a row occur twice; 0 is no limit."),
    "temperature": (float, 1.0, "Sampling temperature; 0 is greedy."),
    "top_k": (int, 0, "Sample from the K most likely tokens; 0 is no limit."),
    "top_p": (float, 1.0, "Sample from the smallest set of tokens whose probabilities reach P."),
    "min_p": (float, 0.0, "Sample from the tokens at least P times as probable as the most probable; 0 is no limit."),
}


def options(function: Callable[..., None]) -> Callable[..., None]:
    """The options that make a Sampling, which the function gets as `rules`, and `--threads`."""

    @functools.wraps(function)
    def with_rules(seed: int | None, **given: Any) -> None:
        from t2r_runtime.sampling import Sampling

        function(rules=Sampling(seed=seed, **{name: given.pop(name) for name in NUMBERS}), **given)

    decorated: Callable[..., None] = click.option(
        "--threads", type=click.IntRange(min=1), help="Threads per operator. Default: by the size of the graph."
    )(with_rules)
    decorated = click.option("--seed", type=int, help="Seed of the sampling. Default: a new one every time.")(decorated)
    for name, (kind, default, text) in reversed(NUMBERS.items()):
        flag = "--" + name.replace("_", "-")
        decorated = click.option(flag, type=kind, default=default, show_default=True, help=text)(decorated)
    return decorated
