"""RWKV-7 parts: their states, what they need of layers below, and training. tests/checkpoints/importers/test_rwkv7.py
compares them with a definition in NumPy."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import small
from small import RWKV7, WIDTH, G
from t2r_export.config.parts import ChannelMixConfig, RWKV7Config
from t2r_export.model.initialize import initialize
from t2r_runtime.errors import UserError


def test_states_and_words() -> None:
    made = small.model("rwkv7")
    shapes = {spec.name: spec.shape for spec in made.state_spec()}
    last, S = ("B", 1, 1, WIDTH), ("B", G, 16, 16)
    own = {"last": last, "S": S, "last_1": last}
    assert shapes == {f"{name}.{layer}": shape for layer in (0, 1) for name, shape in own.items()}
    assert RWKV7.summary() == "heads=3,head_size=16,decay_rank=5,erase_rank=6,gate_rank=7"


def test_every_weight_learns() -> None:
    made = initialize(small.built("rwkv7"), 0)
    small.assert_learns(made, made(small.ids()))


BELOW: list[tuple[tuple[RWKV7Config, ...], str]] = [
    ((dataclasses.replace(RWKV7, value_rank=2),), "below layer 0, which reads its value; received none"),
    (
        (RWKV7, dataclasses.replace(RWKV7, heads=2, value_rank=2)),
        "an rwkv7 part of 32 channels and value_rank=0 below layer 1, which reads its value; received 48 channels",
    ),
]


@pytest.mark.parametrize("layers, message", BELOW)
def test_a_value_must_be_below(layers: tuple[RWKV7Config, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        small.with_layers(small.LLAMA, *layers)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"decay_rank": 0}, "decay_rank to be an integer from 1"),
        ({"value_rank": -1}, "value_rank to be an integer from 0"),
        ({"head_size": 2.0}, "head_size to be an integer from 1"),
    ],
)
def test_impossible_sizes_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        dataclasses.replace(RWKV7, **changes)


def test_an_encoder_has_no_channel_mix() -> None:
    encoder = small.translator().build().encoder
    assert encoder is not None
    layer = encoder.layers[0].replaced(encoder.layers[0].parts[1], ChannelMixConfig(9))
    with pytest.raises(UserError, match="bidirectional parts in the encoder; received a channel_mix part"):
        dataclasses.replace(encoder, layers=(layer,))


def test_the_first_value_reaches_the_last_layer() -> None:
    made, ids = small.model("rwkv7"), small.ids()
    with torch.no_grad():
        before = made(ids)
        made.blocks[1].parts[0].v0.fill_(-1e4)
        assert float((made(ids) - before).abs().max()) > 1e-4
