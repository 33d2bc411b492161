"""A small model of each mixer and feed-forward, which every provider is asked to run: one table."""

from __future__ import annotations

import dataclasses

from parity.test_parity import GPT2, LLAMA
from t2r_export.config.feed_forward import DENSE, NoneConfig, ProductKeyConfig
from t2r_export.config.mixers import (
    GRUConfig,
    Guard,
    HybridConfig,
    LinearConfig,
    LSTMConfig,
    MixerConfig,
    SoftmaxConfig,
    SpanConfig,
    WindowConfig,
)
from t2r_export.config.model import ModelConfig

K, CLAMP = 5, Guard("clamp", 1e-2)
# what divides a row of numbers by its root mean square has 16 of them or more: see docs/providers.md on OpenVINO
WIDE = dataclasses.replace(GPT2, head_size=16)
# a plain recurrent language model: nothing but its layers between the embedding and the head
PLAIN = dataclasses.replace(
    GPT2, heads=1, kv_heads=1, head_size=1, ffn_size=1, norm="none", residual=False, position="none", max_positions=None
)


def _model(base: ModelConfig, *layers: MixerConfig, **other: object) -> ModelConfig:
    return dataclasses.replace(base, layers=layers, **other)  # type: ignore[arg-type]


def _linear(K: int = K, feature_map: str = "relu", **options: object) -> LinearConfig:
    return LinearConfig(K, feature_map=feature_map, **options)  # type: ignore[arg-type]


MIXERS: dict[str, ModelConfig] = {
    # feature maps
    "elu": _model(GPT2, _linear(4, "elu")),
    "hedgehog": _model(LLAMA, _linear(6, "hedgehog")),
    "dpfp": _model(GPT2, _linear(8, "dpfp", guard=CLAMP)),
    "rfa": _model(WIDE, _linear(6, "rfa", guard=CLAMP)),
    "favor": _model(LLAMA, _linear(5, "favor")),
    # what stands in the place of z
    "no_z": _model(GPT2, _linear(normalizer="none")),
    "head_norms": _model(WIDE, _linear(normalizer="group_norm"), _linear(normalizer="rms_norm")),
    # update rules
    "gated": _model(LLAMA, _linear(update_rule="gated", gate="data"), _linear(update_rule="gated", gate="fixed")),
    "average": _model(GPT2, _linear(update_rule="gated", gate="data", moving_average=True)),
    "delta": _model(WIDE, _linear(16, "hedgehog", update_rule="delta", normalizer="none")),
    "gated_delta": _model(WIDE, _linear(16, "hedgehog", update_rule="gated_delta", gate="data", normalizer="rms_norm")),
    # softmax in a fixed size
    "window": _model(GPT2, WindowConfig(4, sinks=0)),
    "sinks": _model(LLAMA, WindowConfig(3, sinks=2)),
    "span": _model(LLAMA, SpanConfig(9, ramp=3)),
    "hybrid_sum": _model(LLAMA, HybridConfig(4, K)),
    "hybrid_merge_gate": _model(GPT2, HybridConfig(3, K, merge="gate", guard=CLAMP)),
    "hybrid_gated": _model(LLAMA, HybridConfig(3, K, update_rule="gated", gate="data", sinks=2)),
    # recurrent baselines
    "lstm": _model(PLAIN, LSTMConfig(), LSTMConfig(), feed_forwards=(NoneConfig(),) * 2),
    "gru": _model(PLAIN, GRUConfig(), GRUConfig(), feed_forwards=(NoneConfig(),) * 2),
    # persistent memory, with a feed-forward and without
    "memory": _model(LLAMA, _linear(memory=3), _linear(memory=2), feed_forwards=(DENSE, NoneConfig())),
    "memory_window": _model(GPT2, WindowConfig(3, 2, memory=4)),
    "memory_softmax": _model(LLAMA, SoftmaxConfig(memory=3)),
    "product_keys": _model(
        GPT2, _linear(), _linear(), feed_forwards=(DENSE, ProductKeyConfig(keys=5, query_size=6, heads=2, top=3))
    ),
}
