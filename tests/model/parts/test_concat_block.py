"""Parts aside, and Zamba2's block. tests/checkpoints/importers/test_recurrent.py compares it with transformers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import small
from small import MAMBA2, PLAIN
from t2r_export.config.layer import LayerConfig
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.norm import NormConfig
from t2r_export.config.parts import ConcatBlockConfig, DenseConfig
from t2r_export.model.initialize import initialize
from t2r_runtime.errors import UserError

NORM = NormConfig("rms")
BLOCK = ConcatBlockConfig(inside=SoftmaxConfig(), aside=True, heads=6, kv_heads=3, head_size=5, size=7)
MIXER = dataclasses.replace(MAMBA2, norm=NORM, least_step=0.0, largest_step=None)
ASIDE = DenseConfig(5, aside=True, norm=NORM, multiplier=0.5)


def model(*layers: LayerConfig) -> ModelConfig:
    return dataclasses.replace(PLAIN.build(), layers=layers)


@torch.no_grad()
def test_a_part_aside_gives_what_the_next_part_reads() -> None:
    made = small.model(model(LayerConfig(parts=(ASIDE, MIXER)), LayerConfig(parts=(MIXER,))))
    ids, block = small.ids(), made.blocks[0]
    step = made.context(made.init_state(len(ids)), made.ops(ids.shape[1]))
    x = made.embed(ids, step)
    trace = block.trace(x, made.layer_state(made.init_state(len(ids)), 0), step)
    y = 0.5 * block.parts[0](block.norms[0](x, step.ops), {}, step)[0]
    torch.testing.assert_close(trace.parts[1].normed, block.norms[1](x + y, step.ops))
    torch.testing.assert_close(trace.output, x + trace.parts[1].mixed)


def test_every_weight_learns() -> None:
    made = initialize(model(LayerConfig(parts=(BLOCK, MIXER))), 0)
    small.assert_learns(made, made(small.ids()))
    block: Any = made.blocks[0].parts[0]
    assert block.q.weight.shape == (30, 20) and block.o.weight.shape == (10, 30)
    assert [spec.name for spec in made.state_spec()] == ["k.0", "v.0", "S.0", "conv.0"]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: LayerConfig(parts=(MIXER, ASIDE)), "a part that reads the stream behind a part aside"),
        (
            lambda: LayerConfig(parts=(ASIDE, dataclasses.replace(MIXER, beside=True))),
            "a part that reads the stream behind a part aside",
        ),
        (lambda: dataclasses.replace(ASIDE, rezero=True), "a part aside with a plain residual"),
        (lambda: dataclasses.replace(ASIDE, norm_sum=NORM), "a part aside with a plain residual"),
        (lambda: dataclasses.replace(ASIDE, residual=False), "a part aside with a plain residual"),
    ],
)
def test_what_a_part_aside_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()
