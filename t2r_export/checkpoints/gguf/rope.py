"""Rotary parameters of a config.json, from a file's keys and its tensors of factors."""

from __future__ import annotations

import math
from typing import Any

from t2r_export.checkpoints.gguf.header import unpacked
from t2r_export.checkpoints.gguf.metadata import Metadata
from t2r_runtime.errors import UserError

MAX_FACTORS = 1 << 16  # numbers of a tensor of factors
FACTORS, LONG, SHORT = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
TABLES = frozenset({FACTORS, LONG, SHORT})  # tensors that are no weights
NUMBER = (int, float)


def rope_parameters(data: Metadata, head_size: int) -> dict[str, Any]:
    """The object `rope_parameters`.

    Factors of Llama 3, which a file stores for each frequency, become the same factors of the type longrope.
    """
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": data.get("rope.freq_base", NUMBER, 10000.0)}
    rotated = data.get("rope.dimension_count", int, head_size)
    if rotated != head_size:
        rope["partial_rotary_factor"] = rotated / max(head_size, 1)
    kind = data.get("rope.scaling.type", str, "none")
    factor = data.get("rope.scaling.factor", NUMBER, 0.0) or 1.0
    trained = data.get("context_length")
    original = data.get("rope.scaling.original_context_length", int, trained)
    scale = data.get("rope.scaling.attn_factor", NUMBER, 1.0)
    if FACTORS in data.tensors:
        found = _factors(data, FACTORS)
        return rope | _by_factors(found, found, trained, 1.0)
    if LONG in data.tensors:
        return rope | _by_factors(_factors(data, SHORT), _factors(data, LONG), original, scale)
    if kind in ("none", "linear") and scale != 1:
        raise data.wrong(f"{data.architecture}.rope.scaling.attn_factor", f"1 with the type {kind}", scale)
    if kind == "linear":
        return rope | {"rope_type": "linear", "factor": factor} if factor != 1 else rope
    if kind == "yarn":
        return rope | {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
            "attention_factor": scale * (1 + 0.1 * math.log(max(factor, 1.0))),
            "beta_fast": data.get("rope.scaling.yarn_beta_fast", NUMBER, 32.0),
            "beta_slow": data.get("rope.scaling.yarn_beta_slow", NUMBER, 1.0),
        }
    if kind != "none":
        raise data.wrong(f"{data.architecture}.rope.scaling.type", "none, linear or yarn", kind, "use another model")
    return rope


def _by_factors(short: list[float], long: list[float], original: int, scale: float) -> dict[str, Any]:
    return {
        "rope_type": "longrope",
        "short_factor": short,
        "long_factor": long,
        "factor": 1.0,
        "attention_factor": scale,
        "original_max_position_embeddings": original,
    }


def _factors(data: Metadata, name: str) -> list[float]:
    place = data.tensors.get(name)
    if place is None or len(place.shape) != 1 or place.shape[0] > MAX_FACTORS:
        received = "none" if place is None else f"the shape {list(place.shape)}"
        raise UserError(f"a vector {name} in {data.path}", received, "download the file again")
    with place.path.open("rb") as file:
        found: list[float] = unpacked(file, place).tolist()
    return found
