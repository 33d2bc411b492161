"""What the windows of a batch start with: position 0 or one drawn at random.

Softmax attention with rotary positions depends on distances alone: R_t q · R_s k is a function of t - s. A feature map
behind the rotation is not linear, so φ(R_t q) · φ(R_s k) is a function of t and of s, and a student that was trained on
the first 256 positions is lost behind them. So its windows start anywhere (Ruoss et al. 2023, arXiv 2305.16843, draw
positions too, for attention). The teacher reads every window from position 0, as it was trained: what it says there is
what the student is to say everywhere. Reports and validations count from 0.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from t2r_export.config.attention import HeadsConfig
from t2r_export.config.finetune import START_POSITIONS, FinetuneConfig
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import InsideConfig
from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError

STREAM = 1  # of random numbers; the order of the windows has another


def draw_starts(count: int, batch: int, seed: int, step: int) -> Tensor:
    """Positions from 0 to count - 1, (batch,) int32: a function of the seed and the step."""
    random = np.random.default_rng((seed, step, STREAM))
    return torch.from_numpy(random.integers(0, count, batch, dtype=np.int32))


def usual_starts(student: Transformer) -> int:
    """`start_positions` where nobody says: START_POSITIONS for a student whose feature maps are behind a rotation and
    whose sums forget, so that it can be as good anywhere (docs/finetuning.md has what it is worth); else 0."""
    kept = _rotated_before_features(student.config)
    fine = student.config.positions is None and not _counting(student)
    return START_POSITIONS if fine and kept and all("gated" in layer.update_rule for layer in kept) else 0


def check_starts(config: FinetuneConfig, student: Transformer) -> None:
    """Raise UserError where the student cannot be trained as `config`, which is for this model, has windows start."""
    if config.start_positions:
        _check_positions(config, config.start_positions, student)


def _check_positions(config: FinetuneConfig, count: int, student: Transformer) -> None:
    model = student.config
    if _counting(student):
        received = f"{count}, and layers whose states count on every position before"
        raise _wrong("0 start positions", received)
    if not student.counts:
        raise _wrong("0 start positions for a student that counts none", f"{count}")
    if model.max_positions is not None and count + config.window - 1 > model.max_positions:
        most = model.max_positions - config.window + 1
        raise _wrong(f"start positions of at most {most}, so that windows end within the learned table", f"{count}")
    if model.positions is not None and config.hidden and any(plan.stage == "distill" for plan in config.plan):
        raise UserError(
            f"no comparison of hidden states, which {model.positions.kind} positions are a part of, at other positions",
            f"{count} start positions and hidden {config.hidden:g}",
            "set the weight of hidden states or the start positions to 0",
        )


def _wrong(expected: str, received: str) -> UserError:
    return UserError(expected, received, "correct the start positions")


def _counting(student: Transformer) -> bool:
    """Whether a layer takes the position for the number of tokens in its buffer, or in its sum."""
    return any(mixer.needs_position for block in student.blocks for mixer in block.mixers)


def _rotated_before_features(model: ModelConfig) -> list[LinearConfig]:
    """The layers whose φ sees absolute positions."""
    return [inside for inside, heads in _linear(model) if inside.positions == "keep" and heads.rotary]


def _linear(model: ModelConfig) -> list[tuple[LinearConfig, HeadsConfig]]:
    """What is inside linear attention to the text, and its heads."""
    parts = [part for layer in model.layers for part in layer.parts if part.group == "layers"]
    found = [(part.inside, part) for part in parts if isinstance(part, InsideConfig)]
    return [(inside, heads) for inside, heads in found if isinstance(inside, LinearConfig)]
