"""Rotary positions of config.json files, beside the frequencies of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.rotary import PARTIAL, ROTARY, rotary
from t2r_export.config.positions import RotaryConfig
from t2r_export.model.positions.rotary import rotary_frequencies
from t2r_runtime.errors import UserError

HEAD = 12


def read(config: dict[str, Any], partial: float | None = None) -> RotaryConfig:
    """Of a family that may rotate a part of each head, and of one that may not."""
    table = ROTARY if partial is None else PARTIAL
    aliases = {"rotary_pct": "partial_rotary_factor"} if partial is not None else {}
    return rotary(Fields(config, "config.json", keys(read=table, aliases=aliases)), HEAD, partial)


@pytest.mark.parametrize(
    "config, size",
    [
        ({"rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 0.5}}, 6),
        ({"rope_parameters": {"rope_theta": 50.0}, "partial_rotary_factor": 0.4}, 4),  # int(4.8)
        ({"rope_theta": 50.0, "rotary_pct": 0.5}, 6),
        ({"rope_theta": 50.0}, 3 * 4 // 6),  # the family's own share
        ({"rope_theta": 50.0, "partial_rotary_factor": 1}, None),
        ({"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 50.0}, "partial_rotary_factor": 0.4}, 6),
    ],
)
def test_a_part_of_each_head(config: dict[str, Any], size: int | None) -> None:
    assert read(config, partial=0.2) == RotaryConfig(theta=50.0, size=size)


def test_frequencies_of_a_part_are_those_of_transformers() -> None:
    from transformers import GPTNeoXConfig
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding

    theirs = GPTNeoXConfig(hidden_size=4 * HEAD, num_attention_heads=4, rotary_pct=0.5, rotary_emb_base=70.0)
    ours = read({"rope_parameters": theirs.rope_parameters}, partial=0.25)
    assert ours.size == 6
    assert torch.equal(rotary_frequencies(ours, 6), GPTNeoXRotaryEmbedding(theirs).inv_freq)


@pytest.mark.parametrize("share", [0, 1.5, 0.01, True, "half"])
def test_an_impossible_share_is_refused(share: Any) -> None:
    with pytest.raises(UserError, match="partial_rotary_factor in .* to be "):
        read({"rope_parameters": {"partial_rotary_factor": share}}, partial=0.5)


def test_a_family_that_rotates_whole_heads_refuses_a_share() -> None:
    with pytest.raises(UserError, match="partial_rotary_factor in the rotary parameters of config.json to be absent"):
        read({"rope_parameters": {"partial_rotary_factor": 0.5}})
