"""Configs and names of weights that older versions wrote, as today's: one function a version.

A checkpoint's `version` says which it is. `upgrade` takes it up step by step; nothing else reads an older form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from t2r_export.config.plain import from_plain, to_plain
from t2r_export.config.uniform import UniformConfig

OLD_PART = re.compile(r"((?:encoder\.)?blocks\.(\d+)\.)(mixers|norms|norms_after|ffn|ffn_norm|ffn_norm_after)\.(.+)")

Upgraded = tuple[dict[str, Any], Callable[[str], str]]  # a config, and the new name of a weight


def upgrade(config: Mapping[str, Any], version: int) -> Upgraded:
    """A config of an older version as today's, and what renames its weights.

    Raises:
        UserError: a config that its own version refuses.
    """
    data: Any = config  # a stranger's can be anything
    renames: list[Callable[[str], str]] = []
    for step in UPGRADES[version - 1 :]:
        data, rename = step(data)
        renames.append(rename)

    def renamed(name: str) -> str:
        for rename in renames:
            name = rename(name)
        return name

    return data, renamed


def _layers_become_values(data: Mapping[str, Any]) -> Upgraded:
    """Version 1 had a model's options once for all layers, and a block's parts under names of their own."""
    flat = from_plain(UniformConfig, data, "model")
    config, post = flat.build(), flat.norm_position == "post"
    mixers = [sum(part.mixes for part in layer.parts) for layer in config.layers]

    def rename(name: str) -> str:
        match = OLD_PART.fullmatch(name)
        if match is None:
            return name
        block, layer, part, rest = match.groups()
        last = 1 if block.startswith("encoder") else mixers[int(layer)] if int(layer) < len(mixers) else 0
        before = "norms_sum" if post else "norms"
        return (
            block
            + {
                "mixers": f"parts.{rest}",
                "norms": f"{before}.{rest}",
                "norms_after": f"norms_after.{rest}",
                "ffn": f"parts.{last}.{rest}",
                "ffn_norm": f"{before}.{last}.{rest}",
                "ffn_norm_after": f"norms_after.{last}.{rest}",
            }[part]
        )

    return to_plain(config), rename


def _parts_stand_beside_each_other(data: Mapping[str, Any]) -> Upgraded:
    """Version 2 had `parallel` of a layer, for all its parts."""
    stacks = [dict(data), *([dict(data["encoder"])] if data.get("encoder") else [])]
    for stack in stacks:
        layers = [dict(layer) for layer in stack["layers"]]
        for layer in layers:
            if layer.pop("parallel", False):
                layer["parts"] = [{**part, "beside": n > 0} for n, part in enumerate(layer["parts"])]
        stack["layers"] = layers
    return {**stacks[0], **({"encoder": stacks[1]} if stacks[1:] else {})}, lambda name: name


UPGRADES: tuple[Callable[[Mapping[str, Any]], Upgraded], ...] = (_layers_become_values, _parts_stand_beside_each_other)
VERSION = 1 + len(UPGRADES)
