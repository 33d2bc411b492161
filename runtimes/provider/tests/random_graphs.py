"""Random graphs of the provider's operators."""

from __future__ import annotations

from differential import Feeds
from drawn import Drawn
from onnx import ModelProto
from random_operators import OPERATORS

# results that jump, or grow without bound, where their inputs differ by rounding
SHARP_NAMES = """
    Ceil Floor Round Equal Greater GreaterOrEqual Less LessOrEqual TopK Div Reciprocal Log Sqrt Pow Sin Cos Exp
    LayerNormalization Mod Cast
"""
SHARP = frozenset(SHARP_NAMES.split())


def draw(seed: int) -> tuple[ModelProto, Feeds]:
    drawn = Drawn(seed)
    for _ in range(drawn.chance.randint(1, 4)):
        op = drawn.chance.choice(sorted(OPERATORS))
        drawn.is_sharp = op in SHARP
        OPERATORS[op](drawn, op)
        if not drawn.is_valid:
            break
    return drawn.finished()
