"""The mark of parts that a conversion made and no training has trained since; without it, their noise is silent.

The provenance has the names of these parts, such as blocks.3.parts.0, under KEY; nothing if there are none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from t2r_export.config.mixers import SoftmaxConfig, WindowConfig
from t2r_export.model.transformer import Transformer

KEY = "untrained"
NAME = re.compile(r"(?:encoder\.)?blocks\.[0-9]{1,6}\.parts\.[0-9]{1,6}")


def untrained(provenance: Mapping[str, Any]) -> list[str]:
    """Names of the untrained parts."""
    found = provenance.get(KEY)
    return [name for name in found if isinstance(name, str) and NAME.fullmatch(name)] if isinstance(found, list) else []


def marked(provenance: Mapping[str, Any], parts: Iterable[str]) -> dict[str, Any]:
    """A copy of `provenance` in which exactly these parts are untrained."""
    rest = {name: value for name, value in provenance.items() if name != KEY}
    return {**rest, KEY: sorted(set(parts))} if parts else rest


def without_layers(parts: Iterable[str], gone: Collection[int]) -> list[str]:
    """The names of `parts` in a decoder that has lost the layers `gone`."""
    left = []
    for name in parts:
        stack, number, rest = name.split(".", 2)
        if stack == "encoder":
            left.append(name)
        elif int(number) not in gone:
            left.append(f"{stack}.{int(number) - sum(layer < int(number) for layer in gone)}.{rest}")
    return left


def new_parts(before: Transformer, after: Transformer, new: Collection[str]) -> list[str]:
    """Names of the parts of `after` that compute something else than any part of the same layer of `before`.

    Softmax attention, over all tokens or a window of them, works without training unless it has new parameters.

    Args:
        new: names of the parameters of `after` that are random.
    """
    found = []
    stacks = [("", before.config.layers, after.config.layers)]
    if after.config.encoder is not None:
        theirs = () if before.config.encoder is None else before.config.encoder.layers
        stacks.append(("encoder.", theirs, after.config.encoder.layers))
    for stack, old, layers in stacks:
        for n, layer in enumerate(layers):
            known = old[n].parts if n < len(old) else ()
            for m, part in enumerate(layer.parts):
                name = f"{stack}blocks.{n}.parts.{m}"
                softmax = isinstance(getattr(part, "inside", None), SoftmaxConfig | WindowConfig)
                if part not in known and not (softmax and not any(each.startswith(f"{name}.") for each in new)):
                    found.append(name)
    return found
