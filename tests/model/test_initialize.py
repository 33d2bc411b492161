"""Random weights: which parts start as in GPT-2, and which by their own class."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from small import CONFIGS, GPT2, SOFTMAX
from t2r_export.config.uniform import Dense
from t2r_export.lab.config.product_key import ProductKeyConfig
from t2r_export.lab.config.recurrent import LSTMConfig
from t2r_export.model.initialize import initialize

WIDE = dataclasses.replace(GPT2, width=64, ffn_size=128, layers=(SOFTMAX, LSTMConfig()))
MEMORY = ProductKeyConfig(32, 16)


def test_projection_initial_scale() -> None:
    made = initialize(WIDE.build(), 0).state_dict()
    for name, std in (
        ("embedding.weight", 0.02),
        ("blocks.0.parts.1.up.weight", 0.02),
        ("blocks.0.parts.0.o.weight", 0.01),
    ):
        assert float(made[name].std()) == pytest.approx(std, rel=0.1), name
    assert not made["blocks.0.parts.1.up.bias"].any()


def test_other_parts_keep_own_initialization() -> None:
    made = initialize(dataclasses.replace(WIDE, feed_forwards=(MEMORY, Dense())).build(), 0)
    parameters = made.state_dict()
    gates = parameters["blocks.1.parts.0.rnn.weight_hh_l0"]
    assert float(gates.std()) == pytest.approx(64**-0.5 / math.sqrt(3), rel=0.05)  # torch's: uniform, ± D^-0.5
    assert float(parameters["blocks.0.parts.1.values"].std()) == pytest.approx(64**-0.5, rel=0.05)


def test_tokens_are_as_large_as_what_they_meet() -> None:
    bare = dataclasses.replace(WIDE, norm="none")
    sines = dataclasses.replace(WIDE, position="sinusoidal", max_positions=None)
    for config, std in ((bare, 1.0), (sines, math.sqrt(0.5))):
        table = initialize(config.build(), 0).state_dict()["embedding.weight"]
        assert float(table.std()) == pytest.approx(std, rel=0.1)


def test_the_seed_decides() -> None:
    first, again, other = (initialize(CONFIGS["mixed"].build(), seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])
