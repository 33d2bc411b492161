"""The sampling options of `generate` and `chat`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from t2r_runtime import Sampling, Signature

# Defaults for graphs without generation options: at temperature 1 and top-p 1 a small model babbles.
SILENT = {"temperature": 0.8, "top_p": 0.95}
# Fields of t2r_runtime.Sampling, which checks the values, in order of application: default, help.
NUMBERS: dict[str, tuple[float, str]] = {
    "repetition_penalty": (1.0, "Divide positive and multiply negative logits of earlier tokens by this factor."),
    "no_repeat_ngram": (0, "Let no n-gram of N tokens occur twice; 0 is no limit."),
    "temperature": (SILENT["temperature"], "Sampling temperature; 0 is greedy."),
    "top_k": (0, "Sample from the K most likely tokens; 0 is no limit."),
    "top_p": (SILENT["top_p"], "Sample from the smallest set of tokens whose probabilities sum to at least P."),
    "min_p": (0.0, "Sample from tokens at least P times as likely as the most likely one; 0 is no limit."),
}


def options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the sampling options; the command gets a Sampling as `rules`."""

    @functools.wraps(function)
    def with_rules(seed: int | None, **given: Any) -> None:
        from t2r_runtime.contract.sampling import Sampling

        function(rules=Sampling(seed=seed, **{name: given.pop(name) for name in NUMBERS}), **given)

    seed = click.option("--seed", type=int, help="Random seed of the sampling. Default: a new one every time.")
    decorated: Callable[..., None] = seed(with_rules)
    for name, (default, text) in reversed(NUMBERS.items()):
        flag, shown = "--" + name.replace("_", "-"), f"{text}  [default: the graph's, or {default}]"
        decorated = click.option(flag, type=type(default), help=shown)(decorated)
    return decorated


def of_graph(rules: Sampling, signature: Signature) -> Sampling:
    """The user's options, completed by `SILENT` if the graph has no generation options."""
    if signature.generation is not None:
        return rules
    left: dict[str, Any] = {name: value for name, value in SILENT.items() if getattr(rules, name) is None}
    return dataclasses.replace(rules, **left)
