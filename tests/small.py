"""Small random models whose sizes are all different, so that a transposed axis fails, and the graphs of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import margins
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.feed_forward import DENSE, NoneConfig, ProductKeyConfig
from t2r_export.config.mixers import (
    GRUConfig,
    Guard,
    HybridConfig,
    LinearConfig,
    LSTMConfig,
    SoftmaxConfig,
    WindowConfig,
)
from t2r_export.config.model import ModelConfig, RotaryConfig
from t2r_export.export import ExportReport, export
from t2r_export.model.mixers import State
from t2r_export.model.transformer import Transformer
from t2r_export.proof.report import Report
from t2r_export.verify import verify

B, T, H, G, K, V = 2, 7, 6, 3, 5, 4
WIDTH, FFN, VOCABULARY, POSITIONS = 10, 11, 17, 40
CACHED = 3  # tokens in the cache of a random state

LINEAR = LinearConfig(feature_size=K, guard=Guard("clamp", 1e-2))
DROPPED = LinearConfig(feature_size=K, positions="drop", guard=Guard("add", 1e-3), query_scale=0.5)
SOFTMAX = SoftmaxConfig()
WINDOW = WindowConfig(window=3, sinks=2)
HYBRID = HybridConfig(window=4, feature_size=K, guard=Guard("clamp", 1e-2))
GATED = (
    LinearConfig(K, update_rule="gated", gate="data"),
    LinearConfig(K, update_rule="gated", gate="fixed", moving_average=True),
)
# Hedgehog's features are never all near zero, where dividing by their length makes much of a rounding
DELTA = (
    LinearConfig(8, feature_map="hedgehog", update_rule="delta", normalizer="none"),
    LinearConfig(8, feature_map="hedgehog", update_rule="gated_delta", gate="data", normalizer="rms_norm"),
)

GPT2 = ModelConfig(
    vocab_size=VOCABULARY,
    width=WIDTH,
    heads=H,
    kv_heads=G,
    head_size=V,
    ffn_size=FFN,
    layers=(LINEAR, LINEAR),
    max_positions=POSITIONS,
    bos_token=1,
    eos_tokens=(2,),
)
LLAMA = dataclasses.replace(
    GPT2,
    norm="rms",
    activation="silu",
    gated_ffn=True,
    position="rotary",
    max_positions=None,
    rotary=RotaryConfig(),
    tied_head=False,
    qkv_bias=False,
    output_bias=False,
    ffn_bias=False,
)
NO_FFN, MEMORY = NoneConfig(), ProductKeyConfig(keys=5, query_size=6, heads=2, top=3)
# a plain recurrent language model: nothing but its layers between the embedding and the head
RECURRENT = dataclasses.replace(
    GPT2, heads=1, kv_heads=1, head_size=1, ffn_size=1, norm="none", residual=False, position="none", max_positions=None
)
CONFIGS = {
    "learned": GPT2,
    "sinusoidal": dataclasses.replace(GPT2, position="sinusoidal", max_positions=None, activation="relu"),
    "none": dataclasses.replace(GPT2, position="none", max_positions=None, activation="gelu"),
    "rotary_keep": LLAMA,
    "rotary_drop": dataclasses.replace(LLAMA, layers=(DROPPED, DROPPED)),
    "shared": dataclasses.replace(GPT2, kv_heads=H, layers=(LinearConfig(K, shared_features=True),)),
    "hybrid": dataclasses.replace(LLAMA, layers=(LINEAR, SOFTMAX, DROPPED)),
    "softmax": dataclasses.replace(GPT2, layers=(SOFTMAX, SOFTMAX)),
    "gated": dataclasses.replace(GPT2, layers=GATED),
    "gated_rotary": dataclasses.replace(LLAMA, layers=GATED),
    "delta": dataclasses.replace(GPT2, layers=DELTA),
    "delta_rotary": dataclasses.replace(LLAMA, layers=DELTA),
    "window": dataclasses.replace(GPT2, layers=(WINDOW, WINDOW)),
    "window_rotary": dataclasses.replace(LLAMA, layers=(LINEAR, WINDOW)),
    "hybrid_sum": dataclasses.replace(LLAMA, layers=(HYBRID, HYBRID)),
    "hybrid_gate": dataclasses.replace(GPT2, layers=(dataclasses.replace(HYBRID, merge="gate"), LINEAR)),
    "hybrid_gated": dataclasses.replace(
        LLAMA, layers=(HybridConfig(3, K, update_rule="gated", gate="data", sinks=2), LINEAR)
    ),
    "lstm": dataclasses.replace(RECURRENT, layers=(LSTMConfig(),) * 2, feed_forwards=(NO_FFN,) * 2),
    "gru": dataclasses.replace(RECURRENT, layers=(GRUConfig(),) * 2, feed_forwards=(NO_FFN,) * 2),
    # all-attention: a memory in each layer, and nothing behind it
    "memory_softmax": dataclasses.replace(LLAMA, layers=(SoftmaxConfig(memory=3), LINEAR)),
    "memory_window": dataclasses.replace(GPT2, layers=(WindowConfig(3, 2, memory=4),)),
    "memory": dataclasses.replace(
        LLAMA,
        layers=(LinearConfig(K, memory=4), LinearConfig(K, positions="drop", normalizer="none", memory=3)),
        feed_forwards=(NO_FFN, NO_FFN),
    ),
    "mixed": dataclasses.replace(LLAMA, layers=(LSTMConfig(), LINEAR, DROPPED), feed_forwards=(DENSE, MEMORY, NO_FFN)),
}


def model(config: ModelConfig | str = GPT2, seed: int = 0) -> Transformer:
    """A model of random weights, biases and scales too: what is zero or one cannot show that it was forgotten."""
    made = Transformer(CONFIGS[config] if isinstance(config, str) else config).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, weight in made.named_parameters():
        centre = 1.0 if ".norm" in f".{name}" and name.endswith("weight") else 0.0
        weight.data = centre + 0.4 * torch.randn(weight.shape, generator=generator)
    return made


def checkpoint(config: ModelConfig | str = GPT2, seed: int = 0) -> Checkpoint:
    """A checkpoint that was never a file."""
    made = model(config, seed)
    return Checkpoint(made.config, made, None, {}, f"{seed:064x}")


def graph(path: Path, config: ModelConfig | str = GPT2, **options: Any) -> tuple[Checkpoint, ExportReport]:
    """A checkpoint and its graph at `path`; `options` are those of ExportConfig."""
    made = checkpoint(config)
    return made, export(made, path, ExportConfig(**options))


def proof(made: Checkpoint, path: Path, steps: int) -> Report:
    """What `verify` says of the graph."""
    return margins.noted(verify(made, path, steps=steps, rounding=bool(margins.FILE)))


def ids(batch: int = B, length: int = T, seed: int = 0, vocabulary: int = VOCABULARY) -> Tensor:
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(seed))


def states(made: Transformer, batch: int = B, seed: int = 0) -> State:
    """Random states, none of them zero; every row at its own position, caches of `CACHED` tokens."""
    generator = torch.Generator().manual_seed(seed)
    out: State = {}
    for spec in made.state_spec():
        shape = spec.dims(batch, CACHED)
        if spec.dtype == "int32":
            out[spec.name] = torch.arange(CACHED, CACHED + 2 * batch, 2, dtype=torch.int32)
        elif spec.name.startswith("z"):  # a sum of what is never negative
            out[spec.name] = 0.5 + torch.rand(shape, generator=generator)
        else:
            out[spec.name] = torch.randn(shape, generator=generator)
    return in_precision_of(made, out)


def in_precision_of(made: Transformer, values: State) -> State:
    wide = made.embedding.weight.dtype
    return {name: value.to(wide) if value.is_floating_point() else value for name, value in values.items()}


def by_steps(made: Transformer, tokens: Tensor, start: State) -> tuple[Tensor, State]:
    """`prefill`, one step a token."""
    logits = []
    for column in tokens.T:
        row, start = made.step(column, start)
        logits.append(row)
    return torch.stack(logits, 1), start


def arrays(values: State) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy() for name, value in values.items()}


def assert_states(received: State, expected: State, tolerance: float) -> None:
    """Every state within `tolerance` of its largest value, and no state missing or new."""
    assert received.keys() == expected.keys()
    for name, value in expected.items():
        found = torch.as_tensor(received[name])
        assert found.shape == value.shape, name
        error = (found.double() - value.double()).abs().max() / value.double().abs().max()
        assert error <= tolerance, (name, float(error))
