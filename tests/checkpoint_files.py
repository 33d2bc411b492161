"""Helpers that write, damage and load checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import small
from t2r_export.checkpoints import checkpoint
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.mixers import Guard, LinearConfig, SoftmaxConfig
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError

CONFIG = UniformConfig(
    vocab_size=23,
    width=12,
    ffn_size=10,
    layers=(LinearConfig(5, positions="drop", guard=Guard("add", 1e-3)), SoftmaxConfig(), LinearConfig(7)),
    position="none",
    bos_token=1,
    eos_tokens=(2, 3),
    attention=HeadsConfig(heads=6, kv_heads=3, head_size=4, positions=RotaryConfig(theta=77.0)),
)

PROVENANCE = {"origin": {"format": "test"}, "stages": [{"name": "transfer", "steps": 3}, {"name": "task", "steps": 3}]}


def random_model(config: UniformConfig = CONFIG) -> Transformer:
    torch.manual_seed(3)
    return Transformer(small.built(config))


def refused(path: Path, message: str) -> None:
    """Check that loading fails with a one-line error that contains `message`."""
    with pytest.raises(UserError, match=message) as caught:
        checkpoint.load(path)
    assert str(caught.value).isprintable()


Change = Callable[[dict[str, Any]], Any]


def put(*keys: str, value: Any) -> Change:
    def change(data: dict[str, Any]) -> None:
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = value

    return change
