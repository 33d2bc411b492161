"""Rotary positions of a config.json.

transformers 5 has all in `rope_parameters`; older versions have `rope_theta` and `rope_scaling`. Both are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.config.mixers import MixerConfig, WindowConfig
from t2r_export.config.parts import PartConfig
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.scalings import LinearScaling, Llama3Scaling, LongropeScaling, ScalingConfig, YarnScaling
from t2r_export.config.scalings.yarn import larger
from t2r_export.config.validation import finite
from t2r_runtime.errors import UserError

FULL, SLIDING = "full_attention", "sliding_attention"
# rotary parameters of a rope type, original length, and extended length -> scaling
Scaling = Callable[[Fields, Callable[[], int], Any], ScalingConfig | None]
SHARE, LENGTH = "partial_rotary_factor", "original_max_position_embeddings"
ROTARY: dict[str, Any] = {
    "max_position_embeddings": 2048,
    LENGTH: None,
    "rope_parameters": None,
    "rope_scaling": None,
    "rope_theta": 10000.0,
}
PARTIAL = {**ROTARY, SHARE: None}  # keys of a family that may rotate a part of each head


def rotary(
    fields: Fields,
    head_size: int,
    partial: float | None = None,
    others: Sequence[str] = (),
    theta: str = "rope_theta",
    share: str = SHARE,
    types: Mapping[str, Scaling] = MappingProxyType({}),
) -> RotaryConfig:
    """Rotary positions of heads of this size.

    Args:
        partial: the default share of a head that rotates; None: transformers' class of the family rotates whole heads,
            so the config must not differ.
        others: rotary parameters without effect in a text.
        types: rope types of the family that extend or override `TYPES`.
        theta, share: the keys of these outside the rotary parameters.
    """
    new, old = fields.object("rope_parameters"), fields.object("rope_scaling")
    if new and old and new != old:
        raise fields.wrong("rope_scaling", "absent beside rope_parameters", old)
    for key in (theta, *([] if partial is None else [share])):
        fields.get(key)  # marks the key as read, even if a rotary parameter overrides it
    trained, preferred = fields.get("max_position_embeddings"), fields.get(LENGTH)
    rope = Fields(new or old, f"the rotary parameters of {fields.where}")
    types = {**TYPES, **types}
    kind = rope.choice("rope_type", {name: name for name in types}, rope.get("type", "default"))
    base = fields.number(theta) if rope.get("rope_theta") is None else rope.number("rope_theta")
    # as in transformers: a length outside the rotary parameters overrides the one among them
    for key in (LENGTH, *others):
        rope.get(key)  # LENGTH has no meaning for some types
    scaling = types[kind](rope, lambda: (fields if preferred is not None else rope).size(LENGTH, trained), trained)
    size = _size(fields, rope, head_size, partial, share)
    known = rope.read - {"rope_type", "type", LENGTH, SHARE, *others}
    unread = [key for key in rope.unread() if rope.data[key] is not None]
    if unread:
        raise fields.wrong("rotary parameters", f"for the type {kind} of {', '.join(sorted(known))}", ", ".join(unread))
    return RotaryConfig(theta=base, scaling=scaling, size=size)


def assume(fields: Fields, rope: Mapping[str, Any]) -> None:
    """Give a config without rotary parameters those that transformers' class of the family has by default."""
    if fields.get("rope_parameters") is None and not fields.get("rope_scaling"):
        fields.data["rope_parameters"] = dict(rope)


def rotary_by_kind(
    fields: Fields,
    layers: Sequence[MixerConfig | PartConfig],
    head_size: int,
    sliding_theta: str | float,
    **others: Any,
) -> list[RotaryConfig]:
    """Rotary positions of each layer: rope_parameters has an object per kind; older rope_scaling is that of the full
    layers.

    Args:
        sliding_theta: the default theta of windows, or its key.
        others: arguments of `rotary`.
    """
    both, scaling = fields.object("rope_parameters"), fields.object("rope_scaling")
    if both.keys() - {FULL, SLIDING} or not all(isinstance(one, dict) for one in both.values()) or (both and scaling):
        expected = f"an object for {FULL}, one for {SLIDING}, and no rope_scaling beside them"
        raise fields.wrong("rope_parameters", expected, both)
    if scaling and "rope_type" not in scaling:  # transformers then uses default and ignores `type`
        raise fields.wrong("rope_scaling", "an object with a rope_type", scaling)
    trained = fields.get("max_position_embeddings")
    thetas = {
        FULL: fields.number("rope_theta"),
        SLIDING: fields.number(sliding_theta) if isinstance(sliding_theta, str) else sliding_theta,
    }
    found = {}
    for kind, own in {FULL: scaling, SLIDING: {}, **both}.items():
        data = {"max_position_embeddings": trained, "rope_theta": thetas[kind], "rope_parameters": own}
        found[kind] = rotary(Fields(data, fields.where), head_size, **others)
    return [found[SLIDING if isinstance(layer, WindowConfig) else FULL] for layer in layers]


def _yarn(rope: Fields, length: Callable[[], int], trained: Any) -> ScalingConfig:
    original = length()
    stretched = rope.get("factor") is None and isinstance(trained, int)
    factor = trained / original if stretched else rope.number("factor")
    scales = [rope.get(name) and rope.number(name) for name in ("mscale", "mscale_all_dim")]
    attention = larger(factor, scales[0]) / larger(factor, scales[1]) if all(scales) else None
    return YarnScaling(
        factor,
        original,
        attention if rope.get("attention_factor") is None else rope.number("attention_factor"),
        rope.number("beta_fast") if rope.get("beta_fast") else YarnScaling.beta_fast,
        rope.number("beta_slow") if rope.get("beta_slow") else YarnScaling.beta_slow,
        True if "truncate" not in rope.data else rope.flag("truncate", null=False),
    )


def dynamic(rope: Fields, length: Callable[[], int], trained: Any) -> ScalingConfig:
    """Refused: beyond the trained length transformers computes another theta for every text length, but keeps cached
    keys that were rotated with earlier thetas, so a prompt differs from its tokens one by one."""
    raise UserError(
        f"a rope_type in {rope.where} whose frequencies do not depend on the length of the text",
        "dynamic, whose theta grows with the text beyond max_position_embeddings",
        "make it default, which is the same up to that length",
    )


def longrope(rope: Fields, length: Callable[[], int], trained: Any) -> ScalingConfig:
    """Texts longer than the original length rotate by long_factor, others by short_factor."""
    original = length()
    short, long = (_factors(rope, name) for name in ("short_factor", "long_factor"))
    stretched = rope.get("factor") is None and isinstance(trained, int)
    factor = trained / original if stretched else rope.number("factor")
    grown = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(max(original, 2)))
    own = None if rope.get("attention_factor") is None else rope.number("attention_factor")
    both: dict[str, Any] = {} if short == long else {"long_factors": long, "original_max_positions": original}
    return LongropeScaling(short, grown if own is None else own, **both)


def _factors(rope: Fields, name: str) -> tuple[float, ...]:
    found = rope.get(name)
    if not isinstance(found, list) or not all(map(finite, found)):
        raise rope.wrong(name, "a list of numbers", found)
    return tuple(map(float, found))


def _llama3(rope: Fields, length: Callable[[], int], trained: Any) -> ScalingConfig:
    values: dict[str, Any] = {name: rope.number(name) for name in ("factor", "low_freq_factor", "high_freq_factor")}
    return Llama3Scaling(**values, original_max_positions=length())


TYPES: dict[str, Scaling] = {
    "default": lambda rope, length, trained: None,
    "dynamic": dynamic,
    "linear": lambda rope, length, trained: LinearScaling(rope.number("factor")),
    "llama3": _llama3,
    "longrope": longrope,
    "yarn": _yarn,
}


def _size(fields: Fields, rope: Fields, head_size: int, partial: float | None, key: str) -> int | None:
    """Number of rotated dimensions of a head; None: all."""
    if partial is None:
        if rope.get(SHARE, 1) != 1:
            raise rope.wrong(SHARE, "absent or 1", rope.get(SHARE))
        return None
    absent = None if key in fields.data else partial  # transformers reads null as 1, whatever the family's default
    share = rope.number(SHARE) if rope.get(SHARE) is not None else fields.number(key, absent)
    size = int(head_size * share)
    if not 0 < size <= head_size or size % 2:  # if odd, transformers rotates one more, by other frequencies
        raise rope.wrong(SHARE, f"a share of a head's {head_size} numbers that is an even number of them", share)
    return None if share == 1 else size
