"""The sampling options of `generate` and `chat`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from t2r_runtime.contract.options import DECODER, SamplingOptions

if TYPE_CHECKING:
    from t2r_runtime import Sampling, Signature

# Defaults for graphs without generation options: at temperature 1 and top-p 1 a small model babbles.
SILENT = {"temperature": 0.8, "top_p": 0.95}


def options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the sampling options; the command gets a Sampling as `rules`."""

    @functools.wraps(function)
    def with_rules(seed: int | None, **given: Any) -> None:
        from t2r_runtime.contract.sampling import Sampling

        function(rules=Sampling(seed=seed, **{name: given.pop(name) for name in DECODER}), **given)

    seed = click.option("--seed", type=int, help="Random seed of the sampling. Default: a new one every time.")
    decorated: Callable[..., None] = seed(with_rules)
    for field in reversed(dataclasses.fields(SamplingOptions)):
        flag = "--" + field.name.replace("_", "-")
        default = SILENT.get(field.name, field.default)
        text = f"{field.metadata['help']}  [default: the graph's, or {default}]"
        decorated = click.option(flag, type=type(default), help=text)(decorated)
    return decorated


def of_graph(rules: Sampling, signature: Signature) -> Sampling:
    """The user's options, completed by `SILENT` if the graph has no generation options."""
    if signature.generation is not None:
        return rules
    left: dict[str, Any] = {name: value for name, value in SILENT.items() if getattr(rules, name) is None}
    return dataclasses.replace(rules, **left)
