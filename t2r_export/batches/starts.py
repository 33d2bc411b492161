"""Random start positions of training windows.

Softmax attention with rotary positions depends only on distances: R_t q · R_s k is a function of t - s. A feature map
after the rotation is not linear: φ(R_t q) · φ(R_s k) depends on t and s, so a student trained on positions 0 to 255
fails beyond them. Its windows therefore start at random positions (cf. Ruoss et al. 2023, arXiv 2305.16843). The
teacher reads every window from position 0. Reports and validations start at 0.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from t2r_export.config.finetune import START_POSITIONS, FinetuneConfig
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import InsideConfig
from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError

STREAM = 1  # random stream; the order of windows uses another


def draw_starts(count: int, batch: int, seed: int, step: int) -> Tensor:
    """Positions from 0 to count - 1, (batch,) int32, a function of seed and step."""
    random = np.random.default_rng((seed, step, STREAM))
    return torch.from_numpy(random.integers(0, count, batch, dtype=np.int32))


def usual_starts(student: Transformer) -> int:
    """Default of `start_positions`: START_POSITIONS for students with gated states and feature maps after the rotation,
    else 0 (see docs/finetuning.md)."""
    kept = _rotated_before_features(student.config)
    fine = student.config.positions is None and not _counting(student)
    return START_POSITIONS if fine and kept and all("gated" in layer.update_rule for layer in kept) else 0


def check_starts(config: FinetuneConfig, student: Transformer) -> None:
    """Raise UserError unless the student supports the start positions of `config`."""
    model, count = student.config, config.start_positions
    if not count:
        return
    if _counting(student):
        raise _wrong("0 start positions", f"{count}, and layers whose states depend on all earlier positions")
    if not student.counts:
        raise _wrong("0 start positions for a student without positions", f"{count}")
    if model.max_positions is not None and count + config.window - 1 > model.max_positions:
        most = model.max_positions - config.window + 1
        raise _wrong(f"start positions of at most {most}, so that windows end within the learned table", f"{count}")
    if model.positions is not None and config.hidden and any(plan.stage == "distill" for plan in config.plan):
        raise UserError(
            f"hidden 0 for start positions with {model.positions.kind} positions",
            f"{count} start positions and hidden {config.hidden:g}",
            "set the weight of hidden states or the start positions to 0",
        )


def _wrong(expected: str, received: str) -> UserError:
    return UserError(expected, received, "correct the start positions")


def _counting(student: Transformer) -> bool:
    """Whether a layer uses the position as the number of tokens in its buffer or sum."""
    return any(mixer.needs_position for block in student.blocks for mixer in block.mixers)


def _rotated_before_features(model: ModelConfig) -> list[LinearConfig]:
    """Linear self-attention whose feature map is applied after the rotation."""
    parts = [part for layer in model.layers for part in layer.parts if part.group == "layers"]
    insides = [part for part in parts if isinstance(part, InsideConfig) and part.rotary]
    return [p.inside for p in insides if isinstance(p.inside, LinearConfig) and p.inside.positions == "keep"]
