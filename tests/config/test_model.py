"""Configs are validated on construction, with errors that name the fault, and round-trip through JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from small import CONFIGS, DROPPED, GPT2, LINEAR, LLAMA
from t2r_export.config.mixers import INSIDES, Guard, LinearConfig, SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import PARTS
from t2r_export.config.parts.attention import ACTIVATIONS
from t2r_export.config.plain import from_plain, to_plain
from t2r_export.config.positions import POSITIONS, RotaryConfig
from t2r_export.config.scalings import ChosenScaling, LinearScaling, Llama3Scaling, LongropeScaling, ScalingConfig
from t2r_export.config.tagged import resolve
from t2r_export.config.uniform import LAYERS, UniformConfig
from t2r_export.model.mixers.base import AttentionMixer
from t2r_export.model.mixers.cross import CrossMixer
from t2r_export.model.parts.base import Part
from t2r_export.model.positions.base import Positions
from t2r_export.model.positions.scores import ScorePositions
from t2r_runtime.errors import UserError

guards = st.builds(Guard, st.sampled_from(Guard.KINDS), st.floats(1e-9, 1e3))
# feature map -> feature sizes that it allows with heads of size 4
SIZES = {
    "relu": st.integers(1, 1 << 20),
    "relu2": st.integers(1, 1 << 20),
    "elu": st.just(4),
    "rfa": st.integers(1, 1 << 19).map(lambda half: 2 * half),
    "favor": st.integers(1, 1 << 20),
    "dpfp": st.integers(1, 7).map(lambda n: 8 * n),
    "hedgehog": st.integers(1, 1 << 19).map(lambda half: 2 * half),
}
# (positions, rotary_size): what rotates, and how many features
ROTATED = (("keep", None), ("drop", None), ("after", 2), ("after", 4))
linears = st.sampled_from([(name, *rotated) for name in LinearConfig.FEATURE_MAPS for rotated in ROTATED]).flatmap(
    lambda case: st.builds(
        LinearConfig,
        feature_size=SIZES[case[0]].filter(lambda size: size >= (case[2] or 0)),
        positions=st.just(case[1]),
        rotary_size=st.just(case[2]),
        query_scale=st.floats(1e-6, 1e6),
        guard=guards,
        feature_map=st.just(case[0]),
        normalizer=st.sampled_from(LinearConfig.NORMALIZERS),
        sigma=st.floats(1e-3, 1e3) if case[0] == "rfa" else st.just(1.0),
        fixed_sigma=st.booleans() if case[0] == "rfa" else st.just(False),
        redraw=st.booleans() if case[0] in LinearConfig.RANDOM else st.just(False),
    )
)
PAIRS = LLAMA.attention.head_size // 2 if LLAMA.attention is not None else 0
rotaries = st.builds(
    RotaryConfig,
    theta=st.floats(1.0, 1e9),
    scaling=st.none()
    | st.builds(LinearScaling, st.floats(0.1, 100))
    | st.builds(Llama3Scaling, st.floats(0.1, 100), original_max_positions=st.integers(1, 1 << 31))
    | st.tuples(*[st.floats(0.1, 100)] * PAIRS).map(LongropeScaling)
    | st.builds(ChosenScaling, st.tuples(*[st.integers(0, 7)] * PAIRS), st.just(16), st.floats(0.1, 100)),
)
softmaxes = st.just(SoftmaxConfig())
models = st.builds(
    dataclasses.replace,
    rotaries.map(lambda rotary: LLAMA.with_attention(positions=rotary)),
    layers=st.lists(linears | softmaxes, min_size=1, max_size=4).map(tuple),
    norm=st.sampled_from(UniformConfig.NORMS),
    activation=st.sampled_from(ACTIVATIONS),
    bos_token=st.none() | st.integers(0, 16),
    eos_tokens=st.lists(st.integers(0, 16), max_size=3).map(tuple),
)


def read(data: Any) -> ModelConfig:
    """The config of a model in short form, as in a recipe."""
    return from_plain(UniformConfig, data, "model").build()


@given(models)
def test_json_round_trip(uniform: UniformConfig) -> None:
    config = uniform.build()
    assert read(json.loads(json.dumps(to_plain(uniform)))) == config
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("name", CONFIGS)
def test_json_round_trip_every_kind(name: str) -> None:
    config = CONFIGS[name].build()
    assert read(json.loads(json.dumps(to_plain(CONFIGS[name])))) == config
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        GPT2.width = 3  # type: ignore[misc]


def test_defaults_may_be_left_out() -> None:
    attention = {"heads": 2, "kv_heads": 1, "head_size": 3}
    data = {"vocab_size": 5, "width": 4, "attention": attention, "ffn_size": 6, "max_positions": 9}
    config = read(data | {"layers": [{"kind": "linear", "feature_size": 2}, {"kind": "softmax"}]})
    assert [layer.mixers[0].inside for layer in config.layers] == [LinearConfig(2), SoftmaxConfig()]


def test_tables_name_a_class_of_every_kind() -> None:
    for kind, position in POSITIONS.items():
        assert position.config.kind == kind
        assert issubclass(resolve(position.model), ScorePositions if position.config.biases else Positions)
    for kind, part in PARTS.items():
        assert part.config.kind == kind
        assert issubclass(resolve(part.model), Part)
    for kind, inside in INSIDES.items():
        assert inside.config.kind == kind
        for form, name in inside.forms.items():
            assert issubclass(resolve(name), CrossMixer if form == "cross" else AttentionMixer)


HUGE = 1 << 20
BAD_MODELS: list[tuple[dict[str, Any], str]] = [
    ({"vocab_size": 0}, "vocab_size to be an integer from 1 to 4194304; received 0; correct vocab_size"),
    ({"width": HUGE + 1}, f"width to be an integer from 1 to {HUGE}; received {HUGE + 1}; correct width"),
    ({"heads": True}, f"heads to be an integer from 1 to {HUGE}; received True"),
    ({"kv_heads": -3}, f"kv_heads to be an integer from 1 to {HUGE}; received -3"),
    ({"head_size": 4.0}, f"head_size to be an integer from 1 to {HUGE}; received 4.0"),
    ({"ffn_size": "9"}, f"ffn_size to be an integer from 1 to {HUGE}; received '9'"),
    ({"layers": ()}, "1 to 1024 layers; received 0; correct the number of layers"),
    ({"layers": (LINEAR,) * 1025}, "1 to 1024 layers; received 1025"),
    ({"kv_heads": 4}, "kv_heads to divide heads=6; received 4; correct kv_heads"),
    ({"norm": "batch"}, "norm to be one of layer, rms, none; received 'batch'; choose one of those for norm"),
    (
        {"activation": "tanh"},
        "activation to be one of relu, gelu, gelu_tanh, silu, quick_gelu, relu2, mish, gelu_10; received 'tanh'",
    ),
    (
        {"position": "cosine"},
        "position to be one of learned, sinusoidal, rotary, alibi, t5, shaw, transformer_xl, da_transformer, none; "
        "received 'cosine'",
    ),
    ({"norm_eps": 0.0}, "norm_eps to be a finite positive number; received 0.0; correct norm_eps"),
    ({"norm_eps": math.nan}, "norm_eps to be a finite positive number; received nan"),
    ({"norm_eps": 10**400}, "norm_eps to be a finite positive number; received 1000"),
    ({"gated_ffn": 1}, "gated_ffn to be true or false; received 1; correct gated_ffn"),
    ({"max_positions": None}, "max_positions to be an integer from 1 to 2147483648; received None"),
    (
        {"position": "none"},
        "no max_positions with positions of the kind none, which are unlimited; received 40; leave max_positions out",
    ),
    (
        {"positions": RotaryConfig(), "head_size": 3},
        "an even head_size of at most 16384 for rotary positions; received 3; correct head_size",
    ),
    (
        {"position": "sinusoidal", "max_positions": None, "width": 9},
        "an even width of at most 16384 for sinusoidal positions; received 9; correct width",
    ),
    ({"bos_token": 17}, "special tokens from 0 to 16; received 17; correct the special tokens"),
    ({"eos_tokens": (2, -1)}, "special tokens from 0 to 16; received -1"),
    ({"eos_tokens": (True,)}, "special tokens from 0 to 16; received True"),
    (
        {"layers": (LinearConfig(5, shared_features=True),)},
        "as many kv heads as query heads with shared_features; received 3 kv heads, 6 query heads; leave",
    ),
    (
        {
            "positions": RotaryConfig(),
            "layers": (LinearConfig(5, folded=True),),
        },
        "an unfolded layer if q and k rotate before φ; received folded=True with positions='keep'; set posi",
    ),
    ({"layers": (LinearConfig(6, positions="after"),)}, "positions after only for a rotary model; received no rotary"),
    (
        {"positions": RotaryConfig(), "layers": (LinearConfig(5, positions="after"),)},
        "an even feature_size of at most 16384 for rotary positions; received 5; correct feature_size",
    ),
    (
        {"positions": RotaryConfig(), "layers": (LinearConfig(4, positions="after", rotary_size=6),)},
        "a rotary_size of at most 4; received 6; correct it",
    ),
    (
        {"positions": RotaryConfig(), "layers": (LinearConfig(4, rotary_size=2),)},
        "rotary_size, rotary_pairs and frequency_scale only with positions after; received keep; leave them out",
    ),
    (
        {"positions": RotaryConfig(), "layers": (LinearConfig(4, positions="after", rotary_pairs=(1,), rotary_of=8),)},
        "2 rotary pairs for 4 numbers; received 1; correct them",
    ),
    (
        {"positions": RotaryConfig(), "layers": (LinearConfig(2, positions="after", rotary_pairs=(4,), rotary_of=8),)},
        "a rotary pair to be an integer from 0 to 3; received 4; correct a rotary pair",
    ),
]


@pytest.mark.parametrize("changes, message", BAD_MODELS)
def test_model_refuses(changes: dict[str, Any], message: str) -> None:
    of_attention = {name: value for name, value in changes.items() if hasattr(GPT2.attention, name)}
    others = {name: value for name, value in changes.items() if name not in of_attention}
    with pytest.raises(UserError) as caught:
        dataclasses.replace(GPT2.with_attention(**of_attention), **others)
    assert str(caught.value).startswith(f"expected {message}")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"feature_size": 0}, f"feature_size to be an integer from 1 to {HUGE}; received 0; correct feature_size"),
        ({"feature_map": "tanh"}, "feature_map to be one of relu, relu2, elu, rfa, favor, dpfp, hedgehog; received"),
        ({"positions": "rotate"}, "positions to be one of keep, after, drop; received 'rotate'"),
        ({"query_scale": math.inf}, "query_scale to be a finite positive number; received inf"),
        ({"query_scale": "1"}, "query_scale to be a finite positive number; received '1'"),
        ({"shared_features": "no"}, "shared_features to be true or false; received 'no'"),
        ({"folded": None}, "folded to be true or false; received None"),
        ({"normalizer": "l1"}, "normalizer to be one of z, none, group_norm, rms_norm; received 'l1'"),
        ({"sigma": 0}, "sigma to be a finite positive number; received 0"),
        ({"sigma": 0.5}, "sigma only with the feature map rfa; received relu; leave sigma out"),
        ({"fixed_sigma": True}, "fixed_sigma only with the feature map rfa; received relu; leave fixed_sigma out"),
        ({"redraw": True}, "redraw only with the feature map rfa or favor; received relu; leave redraw out"),
        (
            {"feature_map": "elu", "shared_features": True},
            "shared_features only with the feature map relu or relu2 or hedgehog; received elu",
        ),
        ({"guard": 1e-2}, "a guard with kind and eps; received 0.01; correct the guard"),
    ],
)
def test_linear_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        dataclasses.replace(DROPPED, **changes)
    assert str(caught.value).startswith(f"expected {message}")


def test_guard_refuses() -> None:
    with pytest.raises(UserError, match="expected guard kind to be one of clamp, add; received 'abs'"):
        Guard("abs")
    with pytest.raises(UserError, match="expected guard eps to be a finite positive number; received -1"):
        Guard(eps=-1)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"theta": 0}, "rotary theta to be a finite positive number; received 0"),
        ({"scaling": "yarn"}, "a rotary scaling of a kind, or none; received 'yarn'; correct the rotary scaling"),
    ],
)
def test_rotary_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        RotaryConfig(**changes)
    assert str(caught.value).startswith(f"expected {message}")


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: LinearScaling(math.nan), "rotary factor to be a finite positive number; received nan"),
        (lambda: Llama3Scaling(2.0, False), "rotary low_freq_factor to be a finite positive number; received False"),
        (lambda: LongropeScaling((2.0, -1.0)), "rotary factors to be a finite positive number; received -1.0"),
        (lambda: LongropeScaling((2.0,), 1.0, (3.0,)), "long_factors with original_max_positions, or neither"),
        (lambda: LongropeScaling((2.0,), 1.0, (3.0,), 0), "original_max_positions to be an integer from 1"),
        (
            lambda: Llama3Scaling(2.0, original_max_positions=0),
            "rotary original_max_positions to be an integer from 1 to 2147483648",
        ),
        (
            lambda: Llama3Scaling(2.0, 4.0),
            "rotary high_freq_factor above low_freq_factor; received 4.0 and 4.0; correct the rotary scaling",
        ),
    ],
)
def test_scalings_refuse(make: Callable[[], ScalingConfig], message: str) -> None:
    with pytest.raises(UserError) as caught:
        make()
    assert str(caught.value).startswith(f"expected {message}")


ATTENTION = {"heads": 2, "kv_heads": 1, "head_size": 4}
BAD_DATA: list[tuple[dict[str, Any], str]] = [
    ({"widht": 3}, "missing none, unexpected ['widht']; did you mean width?"),
    (
        {"layers": "linear"},
        "expected model.layers to be a list of at most 1024; received str; correct the config",
    ),
    ({"layers": [3]}, "expected model.layers to be a JSON object; received int; correct the config"),
    (
        {"layers": [{}]},
        f"expected model.layers.kind to be one of {', '.join(LAYERS)}; received None; choose one",
    ),
    ({"layers": [{"kind": ["linear"]}]}, f"one of {', '.join(LAYERS)}; received ['linear']; choose one"),
    (
        {"layers": [{"kind": "linear"}]},
        "missing ['feature_size'], unexpected none; correct model.layers (linear)",
    ),
    (
        {"layers": [{"kind": "softmax", "feature_size": 3}]},
        "missing none, unexpected ['feature_size']; correct model.layers",
    ),
    (
        {"layers": [{"kind": "linear", "feature_size": 3, "guard": {"epsilon": 1}}]},
        "expected model.layers (linear).guard to have the keys eps, kind; received missing none, unexpected ['epsilo",
    ),
    (
        {"attention": {**ATTENTION, "positions": {"kind": "rotary", "base": 1}}},
        "expected model.attention.positions (rotary) to have the keys scaling, size, theta; received",
    ),
    (
        {"attention": {**ATTENTION, "positions": 10000}},
        "expected model.attention.positions to be a JSON object; received int",
    ),
    (
        {"attention": {"heads": 2}},
        "expected model.attention to have the keys gate, gate_per_head, head_size, heads, kv_heads, norm_eps",
    ),
    ({"attention": 8}, "expected model.attention to be a JSON object; received int"),
    (
        {"eos_tokens": 2},
        "expected model.eos_tokens to be a list of at most 1048576; received int; correct the config",
    ),
]


@pytest.mark.parametrize("changes, message", BAD_DATA)
def test_from_dict_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        read(to_plain(LLAMA) | changes)
    assert message in str(caught.value)


def test_from_dict_names_what_is_missing() -> None:
    data = to_plain(GPT2)
    del data["width"], data["layers"]
    with pytest.raises(UserError, match=r"received missing \['layers', 'width'\], unexpected none; correct model"):
        read(data)
    with pytest.raises(UserError, match="expected model to be a JSON object; received list"):
        ModelConfig.from_dict([])  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [10**290, 1 << 54, float("nan"), float("inf"), True, "1"])
def test_numbers_that_arithmetic_would_not_take(value: object) -> None:
    data = to_plain(GPT2.build())
    data["layers"][0]["parts"][0]["inside"]["query_scale"] = value
    with pytest.raises(UserError, match="query_scale to be a finite positive number"):
        ModelConfig.from_dict(data)


@pytest.mark.parametrize("value", [np.zeros(3), np.zeros(0), [1], {"a": 1}, 1j])
@pytest.mark.parametrize("name", ["gate", "feature_size", "query_scale", "conv"])
def test_options_that_are_no_scalars(name: str, value: object) -> None:
    with pytest.raises(UserError, match=name):
        LinearConfig(**{"feature_size": 5, name: value})


def test_whole_numbers_are_read_as_floats() -> None:
    data = to_plain(GPT2.build()) | {"last_norm": {"kind": "layer", "eps": 1}, "logit_softcap": 30}
    read = to_plain(ModelConfig.from_dict(data))
    assert [repr(value) for value in (read["last_norm"]["eps"], read["logit_softcap"])] == ["1.0", "30.0"]
