"""Rotary positions of a config.json.

transformers 5 keeps all in `rope_parameters`; before, there were `rope_theta` and `rope_scaling`. Both places are read.
"""

from __future__ import annotations

from typing import Any

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.scalings import SCALINGS

# a rope type and the keys that it reads, besides the theta that all have
ROPE_TYPES = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
SHARE = "partial_rotary_factor"
ROTARY: dict[str, Any] = {
    "max_position_embeddings": 2048,
    "original_max_position_embeddings": None,
    "rope_parameters": None,
    "rope_scaling": None,
    "rope_theta": 10000.0,
}
PARTIAL = {**ROTARY, SHARE: None}  # of a family that may rotate a part of each head


def rotary(fields: Fields, head_size: int, partial: float | None = None) -> RotaryConfig:
    """Rotary positions of heads of this size.

    Args:
        partial: the share of a head that rotates where the config does not say; None: transformers' class of the
            family rotates whole heads, so that the config may not say otherwise.
    """
    new, old = fields.object("rope_parameters"), fields.object("rope_scaling")
    if new and old and new != old:
        raise fields.wrong("rope_scaling", "absent beside rope_parameters", old)
    fields.get("rope_theta")  # known, also where the one among them goes before it
    trained, preferred = fields.get("max_position_embeddings"), fields.get("original_max_position_embeddings")
    rope = Fields(new or old, f"the rotary parameters of {fields.where}")
    kind = rope.choice("rope_type", {name: name for name in ROPE_TYPES}, rope.get("type", "default"))
    theta = fields.number("rope_theta") if rope.get("rope_theta") is None else rope.number("rope_theta")
    values: dict[str, Any] = {key: rope.number(key) for key in ROPE_TYPES[kind]}
    rope.get("original_max_position_embeddings")  # of no meaning to the other types
    if kind == "llama3":
        # as transformers has it: a length beside the rotary parameters goes before the one among them
        where = fields if preferred is not None else rope
        values["original_max_positions"] = where.size("original_max_position_embeddings", trained)
    size = _size(fields, rope, head_size, partial)
    unread = [key for key in rope.unread() if rope.data[key] is not None]
    if unread:
        known = sorted(("rope_theta", *ROPE_TYPES[kind]))
        raise fields.wrong("rotary parameters", f"for the type {kind} of {', '.join(known)}", ", ".join(unread))
    scaling = None if kind == "default" else SCALINGS[kind].config(**values)
    return RotaryConfig(theta=theta, scaling=scaling, size=size)


def _size(fields: Fields, rope: Fields, head_size: int, partial: float | None) -> int | None:
    """Numbers of a head that rotate; None: all."""
    if partial is None:
        if rope.get(SHARE, 1) != 1:
            raise rope.wrong(SHARE, "absent or 1", rope.get(SHARE))
        return None
    share = rope.number(SHARE) if rope.get(SHARE) is not None else fields.number(SHARE, partial)
    if not 0 < int(head_size * share) <= head_size:
        raise rope.wrong(SHARE, f"a share of a head's {head_size} numbers, above 0 and at most 1", share)
    return None if share == 1 else int(head_size * share)
