"""A translator's config: to plain data and back, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

import small
from small import GPT2, SOFTMAX, TRANSLATORS, linear
from t2r_export.config.attention import RotaryConfig
from t2r_export.config.encoder import EncoderConfig
from t2r_export.config.mixers import LSTMConfig, MergedConfig, SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_runtime.errors import UserError

ATTENTION = GPT2.attention
assert ATTENTION is not None
MERGED, ROTATED = MergedConfig(), dataclasses.replace(ATTENTION, rotary=RotaryConfig())
GATED = linear(update_rule="gated", gate="data")


@pytest.mark.parametrize("name", TRANSLATORS)
def test_to_plain_data_and_back(name: str) -> None:
    config = TRANSLATORS[name]
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_an_encoder_has_the_rest_from_its_decoder() -> None:
    config = TRANSLATORS["marian"]
    made = config.of_encoder()
    assert (made.norm_position, made.embedding_scale, made.last_norm) == ("post", 3.1, False)
    assert (made.vocab_size, made.ffn_size, len(made.layers)) == (config.vocab_size, 12, 2)
    assert made.encoder is None and made.crosses == ()


def test_an_encoders_table_of_positions_is_its_own() -> None:
    config = TRANSLATORS["cross_normed"]
    assert (config.max_positions, config.of_encoder().max_positions) == (small.POSITIONS, small.M + 5)


def encoder(**changes: Any) -> EncoderConfig:
    return EncoderConfig(**{"layers": (SOFTMAX,), "attention": ATTENTION, **changes})


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"layers": ()}, "1 to 1024 layers; received 0; correct the encoder"),
        ({"layers": (LSTMConfig(),)}, "encoder layers of the kinds softmax, linear; received lstm"),
        ({"layers": (GATED,)}, "no update_rule in encoder layers; received update_rule gated; leave update_rule out"),
        ({"layers": (linear(conv=3),)}, "no conv in encoder layers; received conv 3"),
        ({"layers": (SoftmaxConfig(memory=2),)}, "no memory in encoder layers; received memory 2"),
        ({"layers": (linear(5, "elu"),)}, "feature_size to be the head size, 4"),
        ({"ffn_size": 0}, "ffn_size to be an integer from 1"),
        ({"vocab_size": 1 << 40}, "vocab_size to be an integer from 1"),
    ],
)
def test_an_encoder_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        encoder(**changes)
    assert str(caught.value).startswith(f"expected {message}")


@pytest.mark.parametrize(
    "changes, message",
    [
        (
            {"crosses": (SOFTMAX,)},
            "2 layers that look at a source, one per layer where there is an encoder; received 1",
        ),
        ({"encoder": None}, "0 layers that look at a source, one per layer where there is an encoder; received 2"),
        ({"crosses": (LSTMConfig(),) * 2}, "cross layers of the kinds softmax, linear, shared, merged; received lstm"),
        ({"crosses": (SOFTMAX, GATED)}, "no update_rule in cross layers"),
        ({"attention": None, "layers": (LSTMConfig(),) * 2}, "an attention config for the cross layers; received none"),
        (
            {"crosses": (MERGED,) * 2, "layers": (small.WINDOW,) * 2},
            "softmax layers, or linear ones of the update rules",
        ),
        (
            {"crosses": (MERGED,) * 2, "layers": small.DELTA},
            "softmax layers, or linear ones of the update rules linear",
        ),
        ({"crosses": (MERGED,) * 2, "layers": (linear(conv=2),) * 2}, "no conv in merged layers; received 2"),
        ({"crosses": (MERGED,) * 2, "attention": ROTATED}, "merged layers without rotary positions and qk_norm"),
        ({"start_tokens": ()}, "start_tokens where there is an encoder, and neither these nor banned_tokens where"),
        ({"start_tokens": (17,)}, "special tokens from 0 to 16; received 17"),
        ({"banned_tokens": (-1,)}, "special tokens from 0 to 16; received -1"),
        ({"last_norm": 1}, "last_norm to be true or false; received 1"),
        ({"position": "learned", "max_positions": 9}, "max_positions to be an integer from 1"),  # of the encoder
    ],
)
def test_a_translator_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        dataclasses.replace(TRANSLATORS["cross_linear"], **changes)
    assert str(caught.value).startswith(f"expected {message}")


def test_a_decoder_alone_has_no_start_tokens() -> None:
    with pytest.raises(UserError, match="start_tokens where there is an encoder"):
        dataclasses.replace(GPT2, start_tokens=(1,))


@pytest.mark.parametrize(
    "key, value",
    [("crosses", {}), ("crosses", [{"kind": "window", "window": 3}]), ("encoder", []), ("encoder", {"layers": 3})],
)
def test_plain_data_of_the_wrong_form(key: str, value: object) -> None:
    with pytest.raises(UserError):
        ModelConfig.from_dict({**TRANSLATORS["softmax"].to_dict(), key: value})
