"""Upgrade configs, names and layouts of weights of older checkpoints, with one function per version."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from t2r_export.config.plain import from_plain, to_plain
from t2r_export.config.uniform import UniformConfig

OLD_PART = re.compile(r"((?:encoder\.)?blocks\.(\d+)\.)(mixers|norms|norms_after|ffn|ffn_norm|ffn_norm_after)\.(.+)")
SCALED = ("factor", "low_freq_factor", "high_freq_factor", "original_max_positions")  # keys in version 3

Upgraded = tuple[dict[str, Any], Callable[[str], str]]  # a config, and a function that renames weights


def upgrade(config: Mapping[str, Any], version: int) -> Upgraded:
    """Upgrade a config of an older version; also returns a function that renames weights.

    Raises:
        UserError: an invalid config.
    """
    data: Any = config  # untrusted
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
    """Version 1 had model-wide layer options, and a named module per sublayer."""
    heads = {"attention": _heads(data.get("attention")), "attentions": [*map(_heads, data.get("attentions", ()))]}
    encoder = data.get("encoder") and {**data["encoder"], "attention": _heads(data["encoder"].get("attention"))}
    flat = from_plain(UniformConfig, {**data, **heads, "encoder": encoder}, "model")
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
    """Version 2 had a flag `parallel` per layer."""
    stacks = [dict(data), *([dict(data["encoder"])] if data.get("encoder") else [])]
    for stack in stacks:
        layers = [dict(layer) for layer in stack["layers"]]
        for layer in layers:
            if layer.pop("parallel", False):
                layer["parts"] = [{**part, "beside": n > 0} for n, part in enumerate(layer["parts"])]
        stack["layers"] = layers
    return {**stacks[0], **({"encoder": stacks[1]} if stacks[1:] else {})}, lambda name: name


def _positions_become_kinds(data: Mapping[str, Any]) -> Upgraded:
    """Version 3 had `position` and `max_positions` per stack, and `rotary` with all scaling options in attention."""
    encoder = data.get("encoder")
    return _stack(data) | ({"encoder": _stack(encoder)} if encoder else {}), lambda name: name


def _stack(data: Mapping[str, Any]) -> dict[str, Any]:
    stack = {**data, "layers": [upgrade_layer(layer) for layer in data["layers"]]}
    if "position" in stack:
        kind, rows = stack.pop("position"), stack.pop("max_positions", None)
        learned = {"max_positions": rows} if kind == "learned" else {}
        stack["positions"] = None if kind == "none" else {"kind": kind, **learned}
    return stack


def upgrade_layer(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Upgrade a layer of version 3, also from graph metadata; newer layers are unchanged."""
    return {**layer, "parts": [_heads(part) for part in layer["parts"]]}


def _heads(data: Any) -> Any:
    """Convert `rotary` of an attention part to `positions`."""
    if not isinstance(data, Mapping) or "rotary" not in data:
        return data
    rest, rotary = {key: value for key, value in data.items() if key != "rotary"}, data["rotary"]
    if rotary is None:
        return rest
    kept = {key: value for key, value in rotary.items() if key not in SCALED}
    return rest | {"positions": {"kind": "rotary", **kept, "scaling": _scaling(rotary)}}


def _scaling(rotary: Mapping[str, Any]) -> dict[str, Any] | None:
    kind = rotary.get("scaling", "none")
    names = SCALED if kind == "llama3" else SCALED[:1]
    return None if kind == "none" else {"kind": kind, **{name: rotary[name] for name in names if name in rotary}}


def _experts_are_by_output(data: Mapping[str, Any]) -> Upgraded:
    """Version 4 had the weights of experts in another layout, which `upgrade_weights` changes."""
    return dict(data), lambda name: name


def upgrade_weights(weights: Mapping[str, Any], version: int) -> dict[str, Any]:
    """Weights with current names and layouts.

    Until version 4 experts had `up` (E, D · 2 · F), gate columns before up columns, or (E, D · F) if not gated, and
    `down` (E, F · D).
    """
    made = dict(weights)
    for name in weights if version < 5 else ():
        part = name.removesuffix("router.weight")
        tensors: Any = [made.get(part + end) for end in ("up", "down", "router.weight")]
        if part == name or any(tensor is None or tensor.ndim != 2 for tensor in tensors):
            continue
        up, down, router = tensors
        width = router.shape[1]
        if not width or up.shape[1] % width or down.shape[1] % width or not down.shape[1]:
            continue  # sizes that fit no config are reported later
        halves = max(1, up.shape[1] // down.shape[1])
        if up.shape[1] % (width * halves):
            continue
        made[part + "up"] = up.unflatten(1, (width, halves, -1)).permute(0, 3, 2, 1).flatten(1, 2)
        made[part + "down"] = down.unflatten(1, (-1, width)).mT
    return made


UPGRADES: tuple[Callable[[Mapping[str, Any]], Upgraded], ...] = (
    _layers_become_values,
    _parts_stand_beside_each_other,
    _positions_become_kinds,
    _experts_are_by_output,
)
VERSION = 1 + len(UPGRADES)


def upgraded_provenance(provenance: dict[str, Any], version: int) -> dict[str, Any]:
    """Provenance with the source's config upgraded to the current version."""
    convert = provenance.get("convert")
    if version == VERSION or not isinstance(convert, dict) or not isinstance(convert.get("source_config"), dict):
        return provenance
    return {**provenance, "convert": {**convert, "source_config": upgrade(convert["source_config"], version)[0]}}
