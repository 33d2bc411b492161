"""A tiny model size for benchmarks, beside the named sizes."""

from __future__ import annotations

import dataclasses

import pytest

from comparison import sizes
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.model import ModelConfig

TINY = dataclasses.replace(
    sizes.SIZES["smollm-135m"].with_attention(heads=4, kv_heads=2, head_size=16),
    vocab_size=96,
    width=64,
    ffn_size=160,
    layers=(SoftmaxConfig(),) * 3,
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> ModelConfig:
    """The size `tiny`: a Llama whose matrices divide into blocks of 32."""
    monkeypatch.setitem(sizes.SIZES, "tiny", TINY)
    return TINY
