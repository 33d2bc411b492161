"""Stored tables of positions in families that compute sines: transformers loads them instead of computed ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from t2r_export.config.model import ModelConfig
from t2r_export.config.positions import LearnedConfig, SinusoidalConfig
from t2r_export.model.positions.embedded import SinusoidalPositions
from t2r_export.model.torch_ops import TorchOps

# tolerance of stored sines by dtype: rounding of numbers below 1, and in float32 of large angles
ROUNDING = {"F16": 1e-3, "BF16": 4e-3}
FLOAT32 = 1e-4
SIDES = {"model.encoder.embed_positions.weight": "encoder.", "model.decoder.embed_positions.weight": ""}


def sines(config: ModelConfig, rows: int) -> Tensor:
    """The first positions (rows, D) of a model with sines."""
    zeros, positions = torch.zeros(rows, config.width), torch.arange(rows, dtype=torch.int32)
    return SinusoidalPositions(SinusoidalConfig(), config.width).embed(zeros, positions, TorchOps())


def are_sines(config: ModelConfig, stored: Tensor, dtype: str) -> bool:
    """Whether a stored table is what the model computes, within the rounding of its dtype."""
    if stored.ndim != 2 or stored.shape[1] != config.width or not len(stored):
        return False
    return bool((stored - sines(config, len(stored))).abs().max() <= ROUNDING.get(dtype, FLOAT32))


def with_tables(config: ModelConfig, rows: int) -> ModelConfig:
    """The model with learned tables of `rows` positions in both stacks."""
    assert config.encoder is not None
    table = LearnedConfig(rows)
    return dataclasses.replace(config, positions=table, encoder=dataclasses.replace(config.encoder, positions=table))


def absent_tables(config: ModelConfig, stored: Mapping[str, object]) -> dict[str, Tensor]:
    """Sines as tables for stacks that store none: our name → value."""
    assert config.max_positions is not None
    left = [side for name, side in SIDES.items() if name not in stored]
    return {f"{side}positions.table.weight": sines(config, config.max_positions) for side in left}
