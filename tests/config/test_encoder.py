"""A translator's config: to plain data and back, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

import small
from small import GPT2, SOFTMAX, TRANSLATORS, linear
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.norm import NormConfig
from t2r_export.config.plain import from_plain, to_plain
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.uniform import UniformConfig, UniformEncoder
from t2r_export.lab.config.merged import MergeConfig
from t2r_export.lab.config.recurrent import LSTMConfig
from t2r_runtime.errors import UserError

ATTENTION = GPT2.attention
assert ATTENTION is not None
MERGED, ROTATED = MergeConfig(), dataclasses.replace(ATTENTION, positions=RotaryConfig())
GATED = linear(update_rule="gated", gate="data")


@pytest.mark.parametrize("name", TRANSLATORS)
def test_to_plain_data_and_back(name: str) -> None:
    config = TRANSLATORS[name].build()
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_encoder_inherits_decoder_options() -> None:
    config = TRANSLATORS["marian"].build()
    made = config.encoder
    assert made is not None
    assert (made.embedding_scale, made.last_norm, made.embedding_norm) == (3.1, None, NormConfig("layer", 1e-5))
    attention, dense = made.layers[0].parts
    assert (attention.norm, attention.norm_sum) == (None, NormConfig("layer", 1e-5))
    assert (config.source_vocab_size, dense.size, len(made.layers)) == (config.vocab_size, 12, 2)


def test_encoder_position_table() -> None:
    config = TRANSLATORS["cross_normed"].build()
    assert config.encoder is not None
    assert (config.max_positions, config.encoder.max_positions) == (small.POSITIONS, small.M + 5)


def encoder(**changes: Any) -> UniformEncoder:
    return UniformEncoder(**{"layers": (SOFTMAX,), "attention": ATTENTION, **changes})


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"layers": ()}, "1 to 1024 layers; received 0; correct the number of layers"),
        ({"layers": (LSTMConfig(),)}, "a mixer inside encoder_attention; received"),
        ({"layers": (GATED,)}, "no update_rule in encoder layers; received update_rule gated; leave update_rule out"),
        ({"layers": (linear(conv=3),)}, "no conv in encoder layers; received conv 3"),
        ({"layers": (SoftmaxConfig(memory=2),)}, "no memory in encoder layers; received memory 2"),
        ({"layers": (linear(5, "elu"),)}, "feature_size to be the head size, 4"),
        ({"ffn_size": 0}, "ffn_size to be an integer from 1"),
        ({"vocab_size": 1 << 40}, "vocab_size to be an integer from 1"),
    ],
)
def test_invalid_encoder(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        dataclasses.replace(TRANSLATORS["cross_linear"], encoder=encoder(**changes))
    assert str(caught.value).startswith(f"expected {message}")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"crosses": (SOFTMAX,)}, "2 crosses for 2 layers; received 1; correct crosses"),
        ({"encoder": None}, "0 crosses for 2 layers; received 2; correct crosses"),
        ({"crosses": (LSTMConfig(),) * 2}, "a mixer inside cross; received"),
        ({"crosses": (SOFTMAX, GATED)}, "no update_rule in cross layers"),
        (
            {"attention": None, "layers": (LSTMConfig(),) * 2},
            "an attention config for layer 0, a linear layer; received none",
        ),
        ({"crosses": (MERGED,) * 2, "layers": (small.WINDOW,) * 2}, "softmax layers, or linear layers with the update"),
        ({"crosses": (MERGED,) * 2, "layers": small.DELTA}, "softmax layers, or linear layers with the update rule"),
        ({"crosses": (MERGED,) * 2, "layers": (linear(conv=2),) * 2}, "no conv in merged layers; received 2"),
        (
            {"crosses": (MERGED,) * 2, "attention": ROTATED},
            "merged layers without positions, qk_norm, gate and sink",
        ),
        (
            {"start_tokens": ()},
            "start_tokens for a translator, and neither start_tokens nor banned_tokens for a decoder",
        ),
        ({"start_tokens": (17,)}, "special tokens from 0 to 16; received 17"),
        ({"banned_tokens": (-1,)}, "special tokens from 0 to 16; received -1"),
        ({"last_norm": 1}, "last_norm to be true or false; received 1"),
        ({"position": "learned", "max_positions": 9}, "max_positions to be an integer from 1"),  # the encoder's
    ],
)
def test_invalid_translator(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        dataclasses.replace(TRANSLATORS["cross_linear"], **changes)
    assert str(caught.value).startswith(f"expected {message}")


def test_decoder_without_start_tokens() -> None:
    with pytest.raises(UserError, match="start_tokens for a translator"):
        dataclasses.replace(GPT2, start_tokens=(1,))


@pytest.mark.parametrize(
    "key, value",
    [("crosses", {}), ("crosses", [{"kind": "window", "window": 3}]), ("encoder", []), ("encoder", {"layers": 3})],
)
def test_invalid_plain_data(key: str, value: object) -> None:
    with pytest.raises(UserError):
        from_plain(UniformConfig, {**to_plain(TRANSLATORS["softmax"]), key: value}, "model")
