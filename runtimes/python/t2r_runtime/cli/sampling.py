"""The options that say how tokens are chosen, and with how many threads."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from t2r_runtime import Sampling, Signature

# where neither the user nor the graph says anything: drawn from all its probabilities, a small model babbles
SILENT = {"temperature": 0.8, "top_p": 0.95}
# of t2r_runtime.Sampling, which checks their values, in the order in which they act: type, default where the graph says
# nothing, help
NUMBERS: dict[str, tuple[type, Any, str]] = {
    "repetition_penalty": (
        float,
        1.0,
        "Make tokens that have occurred less likely: positive logits are divided by it, negative ones multiplied.",
    ),
    "no_repeat_ngram": (int, 0, "Let no N tokens in a row occur twice; 0 is no limit."),
    "temperature": (float, SILENT["temperature"], "Sampling temperature; 0 is greedy."),
    "top_k": (int, 0, "Sample from the K most likely tokens; 0 is no limit."),
    "top_p": (float, SILENT["top_p"], "Sample from the smallest set of tokens whose probabilities reach P."),
    "min_p": (float, 0.0, "Sample from the tokens at least P times as probable as the most probable; 0 is no limit."),
}


def options(function: Callable[..., None]) -> Callable[..., None]:
    """The options that make a Sampling, which the function gets as `rules`, and `--threads`."""

    @functools.wraps(function)
    def with_rules(seed: int | None, **given: Any) -> None:
        from t2r_runtime.contract.sampling import Sampling

        function(rules=Sampling(seed=seed, **{name: given.pop(name) for name in NUMBERS}), **given)

    decorated: Callable[..., None] = click.option(
        "--threads", type=click.IntRange(min=1), help="Threads per operator. Default: by the size of the graph."
    )(with_rules)
    decorated = click.option("--seed", type=int, help="Seed of the sampling. Default: a new one every time.")(decorated)
    for name, (kind, default, text) in reversed(NUMBERS.items()):
        flag = "--" + name.replace("_", "-")
        shown = f"{text}  [default: the graph's, or {default}]"
        decorated = click.option(flag, type=kind, help=shown)(decorated)
    return decorated


def of_graph(rules: Sampling, signature: Signature) -> Sampling:
    """The user's options, and `SILENT` where the graph says nothing about how it is meant to generate."""
    if signature.generation is not None:
        return rules
    left: dict[str, Any] = {name: value for name, value in SILENT.items() if getattr(rules, name) is None}
    return dataclasses.replace(rules, **left)
