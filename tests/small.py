"""Small random models whose sizes are all different, so that a transposed axis fails, and their graphs."""

from __future__ import annotations

import dataclasses
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import Tensor

import margins
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.export import ExportConfig
from t2r_export.config.gate import ResidualGateConfig
from t2r_export.config.layer import mixer_of
from t2r_export.config.mixers import Guard, HybridConfig, LinearConfig, MixerConfig, SoftmaxConfig, WindowConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import (
    AttentionConfig,
    ChannelMixConfig,
    DeltaNetConfig,
    GatedDeltaConfig,
    GLAConfig,
    KDAConfig,
    Mamba2Config,
    MambaConfig,
    MoEConfig,
    PartConfig,
    RetentionConfig,
    RGLRUConfig,
    RWKV7Config,
    ShortConvConfig,
)
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.scalings import Llama3Scaling, NtkScaling, YarnScaling
from t2r_export.config.uniform import Dense, NoFeedForward, UniformConfig, UniformEncoder
from t2r_export.export import ExportReport, export
from t2r_export.lab.config.average import AverageConfig
from t2r_export.lab.config.compressive import CompressiveConfig
from t2r_export.lab.config.light_conv import LightConvConfig
from t2r_export.lab.config.merged import MergeConfig
from t2r_export.lab.config.product_key import ProductKeyConfig
from t2r_export.lab.config.recurrent import GRUConfig, LSTMConfig
from t2r_export.lab.config.s4d import S4DConfig
from t2r_export.lab.config.shared import SharedConfig
from t2r_export.lab.config.span import SpanConfig
from t2r_export.model.ops import State
from t2r_export.model.transformer import Transformer
from t2r_export.proof.report import Report
from t2r_export.verify import verify
from t2r_runtime.contract.state_spec import SOURCE_LENGTH_STATE

B, T, H, G, K, V = 2, 7, 6, 3, 5, 4
WIDTH, FFN, VOCABULARY, POSITIONS = 10, 11, 17, 40
CACHED = 3  # tokens in the cache of a random state

CLAMP = Guard("clamp", 1e-2)
MOE = MoEConfig(experts=4, size=7, top=2)
NO_FFN, MEMORY = NoFeedForward(), ProductKeyConfig(keys=5, query_size=6, heads=2, top=3)


def linear(feature_size: int = K, feature_map: str = "relu", **options: Any) -> LinearConfig:
    return LinearConfig(feature_size, feature_map=feature_map, **options)


LINEAR = linear(guard=CLAMP)
DROPPED = linear(positions="drop", guard=Guard("add", 1e-3), query_scale=0.5)
SOFTMAX, SHARED = SoftmaxConfig(), SharedConfig()
WINDOW = WindowConfig(window=3, sinks=2)
HYBRID = HybridConfig(window=4, feature_size=K, guard=CLAMP)
GATED = (
    linear(update_rule="gated", gate="data"),
    linear(update_rule="gated", gate="fixed", moving_average=True),
)
# Hedgehog's features are never all near zero, where normalizing them would amplify rounding
DELTA = (
    linear(8, "hedgehog", update_rule="delta", normalizer="none"),
    linear(8, "hedgehog", update_rule="gated_delta", gate="data", normalizer="rms_norm"),
)
GATED_DELTA = GatedDeltaConfig(heads=H, key_heads=G, key_size=K, value_size=V, taps=3)
NETS = {"heads": H, "key_heads": G, "key_size": 16, "value_size": 17, "taps": 3, "norm_eps": 1e-3}  # wide norms
DELTA_NET = DeltaNetConfig(**NETS, allow_neg_eigval=True)
KDA = KDAConfig(**NETS, decay_rank=7, gate_rank=8, gate_bias=True)
GLA = GLAConfig(**{**NETS, "taps": 0}, decay_rank=7)
RETENTION = RetentionConfig(**NETS, positions=RotaryConfig())
MAMBA2 = Mamba2Config(
    heads=H, head_size=V, state_size=K, groups=G, taps=3, least_step=0.3, largest_step=0.9, bias=True, norm_groups=G
)
MAMBA = MambaConfig(size=12, state_size=16, step_rank=17, taps=3, bias=True, inner_norm_eps=1e-3)  # wide norms
RWKV7 = RWKV7Config(heads=G, head_size=16, decay_rank=5, erase_rank=6, gate_rank=7)

GPT2 = UniformConfig(
    vocab_size=VOCABULARY,
    width=WIDTH,
    ffn_size=FFN,
    layers=(LINEAR, LINEAR),
    max_positions=POSITIONS,
    bos_token=1,
    eos_tokens=(2,),
    attention=HeadsConfig(heads=H, kv_heads=G, head_size=V),
)
PLAIN = dataclasses.replace(GPT2, position="none", max_positions=None)
LLAMA = dataclasses.replace(
    GPT2.with_attention(qkv_bias=False, output_bias=False, positions=RotaryConfig()),
    norm="rms",
    activation="silu",
    gated_ffn=True,
    position="none",
    max_positions=None,
    tied_head=False,
    ffn_bias=False,
)
ALIBI = dataclasses.replace(GPT2, position="alibi", max_positions=None, layers=(SOFTMAX,))
YARN = LLAMA.with_attention(positions=RotaryConfig(500.0, YarnScaling(4.0, 12, beta_fast=2.0, beta_slow=0.2), size=2))
# OpenVINO 1.24.1 crashes for an RMS norm narrower than 16, which is one vector of AVX-512
WIDE = GPT2.with_attention(head_size=16)
# a plain recurrent language model: only its layers between the embedding and the head
RECURRENT = dataclasses.replace(
    GPT2,
    layers=(LSTMConfig(),),
    attention=None,
    ffn_size=1,
    norm="none",
    residual=False,
    position="none",
    max_positions=None,
)


def attention(base: UniformConfig, inside: MixerConfig, **changes: Any) -> AttentionConfig:
    """Attention with heads that differ from those of `base`."""
    return AttentionConfig(inside=inside, **{**vars(base.attention), **changes})


def with_layers(base: UniformConfig, *layers: MixerConfig | PartConfig, **other: Any) -> UniformConfig:
    return dataclasses.replace(base, layers=layers, **other)


# every kind of position and layer, for our own test suites
CONFIGS = {
    "learned": GPT2,
    "sinusoidal": dataclasses.replace(GPT2, position="sinusoidal", max_positions=None, activation="relu"),
    "none": dataclasses.replace(PLAIN, activation="gelu"),
    "rotary_keep": LLAMA,
    "rotary_drop": with_layers(LLAMA, DROPPED, DROPPED),
    "rotary_after": with_layers(
        LLAMA,
        linear(6, positions="after", rotary_size=4, update_rule="gated", gate="data"),
        linear(6, positions="after"),
    ),
    "shared": with_layers(GPT2.with_attention(kv_heads=H), linear(shared_features=True)),
    "hybrid": with_layers(LLAMA, LINEAR, SOFTMAX, DROPPED),
    "softmax": with_layers(GPT2, SOFTMAX, SOFTMAX),
    "gated": with_layers(GPT2, *GATED),
    "gated_rotary": with_layers(LLAMA, *GATED),
    "delta": with_layers(GPT2, *DELTA),
    "delta_rotary": with_layers(LLAMA, *DELTA),
    "conv_after": with_layers(
        LLAMA, linear(6, positions="after", conv=4, output_gate=True, update_rule="gated", gate="data")
    ),
    "pair": with_layers(
        LLAMA,
        linear(6, "relu2", positions="after", update_rule="gated", gate="pair", output_gate=True),
        HybridConfig(3, 6, positions="after", update_rule="gated", gate="pair"),
    ),
    "window": with_layers(GPT2, WINDOW, WINDOW),
    "alibi": with_layers(ALIBI, WINDOW, WINDOW),  # other layers with scores: alibi_kinds
    "window_rotary": with_layers(LLAMA, LINEAR, WINDOW),
    "hybrid_sum": with_layers(LLAMA, HYBRID, HYBRID),
    "hybrid_gate": with_layers(GPT2, dataclasses.replace(HYBRID, merge="gate"), LINEAR),
    "hybrid_gated": with_layers(LLAMA, HybridConfig(3, K, update_rule="gated", gate="data", sinks=2), LINEAR),
    "hybrid_after": with_layers(LLAMA, HybridConfig(3, 6, positions="after", sinks=2, merge="gate", output_gate=True)),
    "hybrid_token": with_layers(LLAMA, HybridConfig(3, K, update_rule="gated", gate="data", sinks=1, merge="token")),
    "window_8_bits": with_layers(GPT2, *(dataclasses.replace(WINDOW, cache_bits=8),) * 2),
    "hybrid_8_bits": with_layers(LLAMA, HybridConfig(3, K, sinks=2, cache_bits=8), LINEAR),
    "softmax_8_bits": with_layers(GPT2, *(dataclasses.replace(SOFTMAX, cache_bits=8),) * 2),
    "lstm": with_layers(RECURRENT, LSTMConfig(), LSTMConfig(), feed_forwards=(NO_FFN,) * 2),
    "gru": with_layers(RECURRENT, GRUConfig(), GRUConfig(), feed_forwards=(NO_FFN,) * 2),
    "mamba": with_layers(GPT2, dataclasses.replace(MAMBA, inner_norm_eps=None), MAMBA, feed_forwards=(NO_FFN, Dense())),
    "mamba2": with_layers(
        LLAMA, MAMBA2, dataclasses.replace(MAMBA2, norm_groups=0), SOFTMAX, feed_forwards=(NO_FFN, NO_FFN, Dense())
    ),
    "average": with_layers(GPT2, AverageConfig(), AverageConfig(ffn_size=12)),
    "short_conv": with_layers(LLAMA, ShortConvConfig(), LINEAR, ShortConvConfig(3, True)),
    "gated_delta": with_layers(
        LLAMA.with_attention(gate=True, qk_norm=True, positions=RotaryConfig(size=2)), GATED_DELTA, SOFTMAX, GATED_DELTA
    ),
    "kda": with_layers(PLAIN, KDA, dataclasses.replace(DELTA_NET, gate="none")),
    "retention": with_layers(PLAIN, GLA, RETENTION),
    "rg_lru": with_layers(GPT2, RGLRUConfig(size=12, blocks=3), RGLRUConfig(size=12, blocks=2)),
    "rwkv7": with_layers(
        dataclasses.replace(PLAIN, embedding_norm=True),
        RWKV7,
        dataclasses.replace(RWKV7, value_rank=8),
        feed_forwards=(ChannelMixConfig(9), ChannelMixConfig(11)),
    ),
    "s4d": with_layers(
        GPT2,
        S4DConfig(state_size=6),
        S4DConfig(state_size=6, complex=False),
    ),
    "light_conv": with_layers(
        GPT2,
        LightConvConfig(size=15, heads=5, taps=4),
        LightConvConfig(size=15, heads=5, taps=4, dynamic=True),
    ),
    "moe": with_layers(
        GPT2,
        LINEAR,
        LINEAR,
        feed_forwards=(MOE, MoEConfig(experts=5, size=3, top=1, renormalize=False, activation="relu", gated=False)),
    ),
    "shared_weights": with_layers(LLAMA, SOFTMAX, SHARED, SHARED),
    # all-attention: a memory in each layer, and no feed-forward
    "memory_softmax": with_layers(LLAMA, SoftmaxConfig(memory=3), LINEAR),
    "memory_window": with_layers(GPT2, WindowConfig(3, 2, memory=4)),
    "memory": with_layers(
        LLAMA,
        linear(memory=4),
        linear(positions="drop", normalizer="none", memory=3),
        feed_forwards=(NO_FFN, NO_FFN),
    ),
    "mixed": with_layers(LLAMA, LSTMConfig(), LINEAR, DROPPED, feed_forwards=(Dense(), MEMORY, NO_FFN)),
}
# variants of one layer with separate test suites; providers are tested with them too
FORMS = {
    "conv": with_layers(GPT2, linear(conv=2), linear(conv=2, output_gate=True)),
    "elu": with_layers(GPT2, linear(4, "elu")),
    "hedgehog": with_layers(LLAMA, linear(6, "hedgehog")),
    "dpfp": with_layers(GPT2, linear(8, "dpfp", guard=CLAMP)),
    "rfa": with_layers(WIDE, linear(6, "rfa", guard=CLAMP)),
    "favor": with_layers(LLAMA, linear(5, "favor")),
    "no_z": with_layers(GPT2, linear(normalizer="none")),
    "head_norms": with_layers(WIDE, linear(normalizer="group_norm"), linear(normalizer="rms_norm")),
    "delta_wide": with_layers(WIDE, *(dataclasses.replace(layer, feature_size=16) for layer in DELTA)),
    "llama3_scaling": LLAMA.with_attention(positions=RotaryConfig(5e5, Llama3Scaling(8.0, original_max_positions=32))),
    "yarn": with_layers(YARN, SOFTMAX, WINDOW, HYBRID, HybridConfig(3, 6, positions="after", sinks=2), LINEAR),
    "ntk": with_layers(LLAMA.with_attention(positions=RotaryConfig(500.0, NtkScaling(4.0))), SOFTMAX, LINEAR, WINDOW),
    "yarn_span": with_layers(YARN, SpanConfig(9, ramp=3), linear(6, positions="after")),
    "gated_delta_wide": with_layers(
        WIDE.with_attention(gate=True), dataclasses.replace(GATED_DELTA, key_size=16, value_size=17), WINDOW, LINEAR
    ),
    "span": with_layers(LLAMA, SpanConfig(9, ramp=3), LINEAR),
    "alibi_kinds": with_layers(
        ALIBI.with_attention(softcap=3.0),
        SpanConfig(9, ramp=3),
        SoftmaxConfig(memory=3),
        SOFTMAX,
        SHARED,
        WindowConfig(3, 2, memory=4),
        HybridConfig(3, K, update_rule="gated", gate="data", sinks=1, merge="token"),
        CompressiveConfig(4, blocks=3, rate=2),
        DROPPED,
    ),
    "residual_gate": with_layers(LLAMA, LINEAR, SOFTMAX, residual_gate=ResidualGateConfig(0.5)),
    "repeats": with_layers(
        GPT2, LINEAR, SOFTMAX, repeats=2, depth_positions=True, position="sinusoidal", max_positions=None
    ),
    "product_keys": with_layers(GPT2, LINEAR, LINEAR, feed_forwards=(Dense(), MEMORY)),
}
MODELS = CONFIGS | FORMS
SOURCE_VOCABULARY, M = 13, 9  # source vocabulary, and length of the longest source


def translator(
    cross: MixerConfig = SOFTMAX, encoder: MixerConfig = SOFTMAX, base: UniformConfig | str = "sinusoidal", **other: Any
) -> UniformConfig:
    """A model with an encoder that has other heads, and its own vocabulary by default."""
    base = MODELS[base] if isinstance(base, str) else base
    asked: dict[str, Any] = {
        "layers": (encoder, encoder),
        "attention": HeadsConfig(heads=2, kv_heads=2, head_size=5, qkv_bias=False),
        "ffn_size": 12,
        "vocab_size": other.pop("source_vocabulary", SOURCE_VOCABULARY),
        "max_positions": None if base.max_positions is None else M + 5,
    }
    tokens = {"start_tokens": (3,), "banned_tokens": (5, 0)}
    crosses = (cross,) * len(base.layers)
    return dataclasses.replace(base, encoder=UniformEncoder(**asked), crosses=crosses, **tokens, **other)


LINEAR_CROSS = linear(8, guard=CLAMP)
TRANSLATORS = {
    "softmax": translator(base="softmax"),
    "cross_linear": translator(LINEAR_CROSS),
    "cross_mixed": translator(linear(8, "hedgehog"), base="hybrid_sum", source_vocabulary=None),
    "cross_normed": translator(
        linear(7, normalizer="rms_norm", query_scale=0.5), base="learned", attention=WIDE.attention
    ),
    "encoder_linear": translator(LINEAR_CROSS, linear(6), "gated", norm_position="post", last_norm=False),
    "marian": translator(
        SOFTMAX,
        base="softmax",
        norm_position="post",
        last_norm=False,
        embedding_norm=True,
        embedding_scale=3.1,
        head_bias=True,
        source_vocabulary=None,
    ),
    "merged": translator(MergeConfig()),
    "merged_gated": translator(MergeConfig(), linear(6), "gated"),
    "merged_softmax": translator(MergeConfig(), base="softmax"),
    "merged_shared": translator(MergeConfig(shared=True)),
    "merged_hidden": translator(
        MergeConfig(feed_forward=True),
        base="softmax",
        attention=HeadsConfig(heads=3, kv_heads=3, head_size=V),
        ffn_size=4 * 3,
        feed_forwards=(NO_FFN, NO_FFN),
    ),
    "cross_lstm": translator(base=with_layers(GPT2, LSTMConfig(), LINEAR)),
    "cross_shared": dataclasses.replace(translator(), crosses=(SOFTMAX, SHARED)),
    "shared": dataclasses.replace(
        translator(base=with_layers(GPT2, SOFTMAX, SHARED, LINEAR)), crosses=(SOFTMAX, SHARED, SHARED)
    ),
    "cross_average": translator(LINEAR_CROSS, base=with_layers(GPT2, AverageConfig(ffn_size=12), AverageConfig())),
}
MODELS |= {f"translator_{name}": config for name, config in TRANSLATORS.items()}


def float64_tolerance(name: str) -> float:
    """Tolerance between two float64 forms of MODELS[name]: a rotary window's float32 tables differ per form."""
    return 1e-6 if name == "window_rotary" else 1e-10


def built(config: UniformConfig | ModelConfig | str) -> ModelConfig:
    """The config of a model: a name in MODELS, a short config, or a full one."""
    config = MODELS[config] if isinstance(config, str) else config
    return config if isinstance(config, ModelConfig) else config.build()


def mixers(config: ModelConfig, group: str = "layers") -> list[MixerConfig | PartConfig]:
    """Each layer's mixer in a group: the inner mixer of its attention, or another part."""
    return [mixer_of(next(part for part in layer.mixers if part.group == group)) for layer in config.layers]


def described(layer: dict[str, Any], place: int = 0) -> dict[str, Any]:
    """The described mixer of a layer's part."""
    part: dict[str, Any] = layer["parts"][place]
    inside: dict[str, Any] = part.get("inside", part)
    return inside


def owner(name: str, config: ModelConfig) -> str:
    """A weight's name by its layer's mixers and feed-forward, independent of their place in the layer."""
    match = re.fullmatch(r"((?:encoder\.)?)blocks\.(\d+)\.(parts|norms|norms_after|norms_sum)\.(\d+)\.(.+)", name)
    if match is None:
        return name
    stack = config.encoder if match[1] else config
    assert stack is not None
    block, kind, rest = f"{match[1]}blocks.{match[2]}.", match[3].removesuffix("_sum"), match[5]
    if stack.layers[int(match[2])].parts[int(match[4])].mixes:
        return f"{block}{'mixers' if kind == 'parts' else kind}.{match[4]}.{rest}"
    return f"{block}{ {'parts': 'ffn', 'norms': 'ffn_norm', 'norms_after': 'ffn_norm_after'}[kind] }.{rest}"


def model(config: UniformConfig | ModelConfig | str = GPT2, seed: int = 0) -> Transformer:
    """A model with random weights, also in biases and norms: a forgotten zero or one would go unnoticed."""
    made = Transformer(built(config)).eval()
    for name, weight in made.named_parameters():
        # seeded by owner: a weight is the same at any place
        generator = torch.Generator().manual_seed(zlib.crc32(f"{owner(name, made.config)} {seed}".encode()))
        centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        weight.data = centre + 0.4 * torch.randn(weight.shape, generator=generator)
    return made


def checkpoint(config: UniformConfig | ModelConfig | str = GPT2, seed: int = 0) -> Checkpoint:
    """A checkpoint that was never saved."""
    made = model(config, seed)
    return Checkpoint(made.config, made, None, {}, f"{seed:064x}")


def graph(
    path: Path, config: UniformConfig | ModelConfig | str = GPT2, **options: Any
) -> tuple[Checkpoint, ExportReport]:
    """A checkpoint and its graph at `path`; `options` are those of ExportConfig."""
    made = checkpoint(config)
    return made, export(made, path, ExportConfig(**options))


def newer_opset(path: Path) -> None:
    """Give a graph the first opset that ONNX Runtime does not support."""
    model = onnx.load(path)
    (ours,) = (opset for opset in model.opset_import if opset.domain == "")
    ours.version = 29
    onnx.save(model, path)


def proof(made: Checkpoint, path: Path, steps: int) -> Report:
    """The report of `verify` for the graph."""
    return margins.noted(verify(made, path, steps=steps, rounding=bool(margins.FILE)))


def ids(batch: int = B, length: int = T, seed: int = 0, vocabulary: int = VOCABULARY) -> Tensor:
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(seed))


def sources(
    batch: int = B, length: int = M, seed: int = 0, vocabulary: int = SOURCE_VOCABULARY
) -> tuple[Tensor, Tensor]:
    """Source tokens (B, M) and lengths (B,): the first row is full, each other one shorter."""
    lengths = torch.tensor([max(1, length - 3 * row) for row in range(batch)])
    return ids(batch, length, seed + 1, SOURCE_VOCABULARY), lengths


def states(made: Transformer, batch: int = B, seed: int = 0) -> State:
    """Random nonzero states; every row at its own position, caches of `CACHED` tokens."""
    generator = torch.Generator().manual_seed(seed)
    out: State = {}
    for spec in made.state_spec():
        shape = spec.dims(batch, CACHED, M)
        if spec.name == SOURCE_LENGTH_STATE:
            out[spec.name] = torch.arange(M, M - batch, -1, dtype=torch.int32)
        elif spec.dtype == "int32":
            out[spec.name] = torch.arange(CACHED, CACHED + 2 * batch, 2, dtype=torch.int32)
        elif spec.dtype == "int8":
            out[spec.name] = torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)
        elif "_scale." in spec.name:
            out[spec.name] = (1 + torch.rand(shape, generator=generator)) / 127
        elif spec.name.startswith(("z", "source_z")):  # a sum of non-negative features
            out[spec.name] = 0.5 + torch.rand(shape, generator=generator)
        else:
            out[spec.name] = torch.randn(shape, generator=generator)
    return in_precision_of(made, out)


def in_precision_of(made: Transformer, values: State) -> State:
    wide = made.head.weight.dtype
    return {name: value.to(wide) if value.is_floating_point() else value for name, value in values.items()}


def by_steps(made: Transformer, tokens: Tensor, start: State) -> tuple[Tensor, State]:
    """`prefill` by one step per token."""
    logits = []
    for column in tokens.T:
        row, start = made.step(column, start)
        logits.append(row)
    return torch.stack(logits, 1), start


def arrays(values: State) -> dict[str, np.ndarray]:
    return {name: value.detach().numpy() for name, value in values.items()}


def assert_states(received: State, expected: State, tolerance: float) -> None:
    """All states are within `tolerance` of their largest value, and the names are equal."""
    assert received.keys() == expected.keys()
    for name, value in expected.items():
        found = torch.as_tensor(received[name])
        assert found.shape == value.shape, name
        error = (found.double() - value.double()).abs().max() / value.double().abs().max()
        assert error <= tolerance, (name, float(error))


def assert_learns(module: torch.nn.Module, y: Tensor) -> None:
    """Every weight of the module gets a gradient from y."""
    y.square().sum().backward()
    for name, weight in module.named_parameters():
        assert weight.grad is not None and weight.grad.abs().sum() > 0, name
