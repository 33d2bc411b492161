from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import small
from small import GPT2, SOFTMAX, K
from t2r_export.checkpoints.untrained import marked, untrained, without_layers
from t2r_export.config.mixers import HybridConfig, LinearConfig, MixerConfig, WindowConfig
from t2r_export.convert import conversion, provenance


@pytest.mark.parametrize(
    "mixer, layers, parts",
    [
        (LinearConfig(K), "all", [0, 1, 2]),
        (LinearConfig(K), "1", [1]),
        (LinearConfig(K, feature_map="elu"), "0,2", [0, 2]),  # noise, without a new parameter
        (HybridConfig(3, 4), "2", [2]),
        (WindowConfig(4, 1), "all", []),
        (WindowConfig(4, 1, memory=2), "1", [1]),  # learned keys and values
    ],
    ids=str,
)
def test_parts_that_need_training_are_marked(mixer: MixerConfig, layers: str, parts: list[int]) -> None:
    source = small.checkpoint(dataclasses.replace(GPT2, layers=(SOFTMAX,) * 3))
    if isinstance(mixer, LinearConfig) and mixer.feature_map == "elu":
        mixer = dataclasses.replace(mixer, feature_size=source.config.heads[0].head_size)
    made = conversion(source.model, mixer, layers)
    assert made.untrained == [f"blocks.{n}.parts.0" for n in parts]
    before, after = (sum(p.numel() for p in model.parameters()) for model in (source.model, made.model))
    assert made.added == after - before
    assert untrained(provenance(source, made.untrained)) == made.untrained


def test_second_conversion_keeps_the_marks_of_the_first() -> None:
    source = small.checkpoint(dataclasses.replace(GPT2, layers=(SOFTMAX,) * 3))
    for layer in ("2", "0"):
        made = conversion(source.model, LinearConfig(K), layer)
        source = dataclasses.replace(
            source, config=made.model.config, model=made.model, provenance=provenance(source, made.untrained)
        )
    assert untrained(source.provenance) == ["blocks.0.parts.0", "blocks.2.parts.0"]


def test_marks_follow_their_layers() -> None:
    parts = ["blocks.0.parts.0", "blocks.2.parts.1", "blocks.11.parts.0", "encoder.blocks.1.parts.0"]
    assert without_layers(parts, {1, 2}) == ["blocks.0.parts.0", "blocks.9.parts.0", "encoder.blocks.1.parts.0"]
    assert without_layers(parts, ()) == parts


@pytest.mark.parametrize("value", [None, 3, "x", {"a": 1}, [3, None], ["blocks.x.parts.0", "blocks.3", ""]])
def test_other_values_mark_nothing(value: Any) -> None:
    assert untrained({"untrained": value}) == [] == untrained({})
    assert marked({"untrained": value, "a": 1}, []) == {"a": 1}
