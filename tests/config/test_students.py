"""The defaults of a student: one table for the command line, Python and recipes."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

import small
from t2r_export.config.mixers import Guard, HybridConfig, LinearConfig, WindowConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.positions import RotaryConfig, SinusoidalConfig
from t2r_export.config.scalings import LinearScaling
from t2r_export.config.students import reason, student_mixer, suited
from t2r_runtime.errors import UserError

GATE = {"update_rule": "gated", "gate": "data"}
PAIR = {"update_rule": "gated", "gate": "pair"}
LLAMA = dataclasses.replace(small.LLAMA, layers=(small.SOFTMAX,) * 2)
LEARNED, ROTARY = small.MODELS["softmax"].build(), LLAMA.build()
SINES = dataclasses.replace(LEARNED, positions=SinusoidalConfig())
NONE = dataclasses.replace(LEARNED, positions=None)


@pytest.mark.parametrize("model", [LEARNED, SINES, NONE, None], ids=["learned", "sines", "none", "unknown"])
def test_without_rotation_the_gate_is_the_default(model: ModelConfig | None) -> None:
    assert student_mixer("linear", {}, model) == (LinearConfig(32, update_rule="gated", gate="data"), GATE)
    for options in ({"feature_map": "hedgehog", "feature_size": 8}, {"normalizer": "none"}, {"conv": 3}):
        assert student_mixer("linear", options, model)[1] == GATE


def test_rotary_students_rotate_features() -> None:
    whole = {**PAIR, "positions": "after"}
    assert suited("linear", {}, ROTARY) == suited("linear", {"feature_size": 8}, ROTARY) == whole
    assert suited("linear", {"feature_map": "relu2"}, ROTARY) == suited("linear", {"conv": 4}, ROTARY) == whole
    assert suited("linear", {"positions": "after"}, ROTARY) == PAIR
    assert suited("linear", {"gate": "data"}, ROTARY) == {"update_rule": "gated", "positions": "after"}
    for options in ({"feature_size": 5}, {"feature_size": 6, "rotary_size": 2}, {"moving_average": True}):
        turned = {"rotary_size": 4} if options == {"feature_size": 5} else {}  # features rotate in pairs
        assert suited("linear", options, ROTARY) == {**GATE, "positions": "after", **turned}
        assert student_mixer("linear", options, ROTARY)[0].gate == "data"
    for options in ({"feature_size": 1}, {"positions": "keep"}, {"feature_map": "elu"}, {"normalizer": "none"}):
        assert suited("linear", options, ROTARY) == GATE
    assert student_mixer("linear", {}, ROTARY)[0] == LinearConfig(32, **whole, guard=Guard(eps=1.0))


@pytest.mark.parametrize(
    "given, chosen",
    [
        ({"update_rule": "linear"}, {}),
        ({"gate": "none"}, {}),
        ({"memory": 2}, {}),
        ({"update_rule": "delta", "normalizer": "none"}, {}),
        ({"gate": "fixed"}, {"update_rule": "gated"}),
        ({"update_rule": "gated"}, {"gate": "data"}),
        ({"update_rule": "gated_delta", "normalizer": "none"}, {"gate": "data"}),
        ({"moving_average": True}, GATE),
    ],
)
def test_what_somebody_chose_stays(given: dict[str, Any], chosen: dict[str, Any]) -> None:
    config, found = student_mixer("linear", given, LEARNED)
    assert found == chosen
    assert {name: getattr(config, name) for name in given} == given


def test_exceptions() -> None:
    translator = small.TRANSLATORS["softmax"].build()
    assert student_mixer("linear", {}, translator) == (LinearConfig(32), {})
    assert student_mixer("hybrid", {"window": 3}, translator) == (HybridConfig(3, 32), {})
    assert student_mixer("window", {"window": 3}, LEARNED) == (WindowConfig(3), {})


def test_hybrid_students_start_as_their_window() -> None:
    quiet, turned = {"map_scale": 0.02}, {**PAIR, "positions": "after"}
    assert student_mixer("hybrid", {"window": 3}, LEARNED) == (HybridConfig(3, 32, map_scale=0.02), quiet)
    whole = HybridConfig(3, 32, **turned, map_scale=0.02)
    assert student_mixer("hybrid", {"window": 3}, ROTARY) == (whole, {**turned, **quiet})
    assert suited("hybrid", {"window": 3, "update_rule": "linear"}, ROTARY) == quiet
    assert suited("hybrid", {"window": 3, "map_scale": 1.0}, ROTARY) == turned
    for loud in ({"merge": "gate"}, {"feature_map": "relu2"}):  # map_scale applies to neither
        assert student_mixer("hybrid", {"window": 3, **loud}, ROTARY)[1] == turned
    assert suited("hybrid", {"window": 3, "merge": "gate", "update_rule": "linear"}, ROTARY) == {}
    assert "window alone" in reason(quiet)


def test_a_guard_may_be_given_in_part() -> None:
    for given, guard in (({"kind": "clamp"}, Guard("clamp", 1.0)), ({"eps": 0.1}, Guard("add", 0.1))):
        assert student_mixer("linear", {"guard": given}, ROTARY)[0].guard == guard
    assert student_mixer("linear", {"guard": {"kind": "clamp"}}, LEARNED)[0] == LinearConfig(
        32, guard=Guard("clamp", 1e-6), update_rule="gated", gate="data"
    )


def test_the_reason_is_one_line() -> None:
    assert reason(suited("linear", {}, LEARNED)).startswith("default options: update_rule=gated,gate=data (without ")
    both = reason(suited("linear", {"feature_size": 5}, ROTARY))
    assert "positions=after,rotary_size=4" in both and "\n" not in both
    assert "gate=pair" in reason(suited("linear", {}, ROTARY))


@pytest.mark.parametrize(
    "kind, given, message",
    [
        ("linaer", {}, "a mixer of softmax, linear, .*; received 'linaer'; did you mean linear?"),
        ("linear", {"feature_sise": 3}, "options of the mixer linear (feature_size, "),
        ("linear", {"feature_sise": 3}, "; received feature_sise; did you mean feature_size?"),
        ("linear", {"feature_map": "rela"}, "received 'rela'; did you mean relu?"),
        ("lstm", {"window": 3}, "options of the mixer lstm (none); received window; leave it out"),
        ("window", {"sinks": 3}, "window for the mixer window; received none; name window"),
        ("linear", {"feature_size": "many"}, "feature_size to be an integer"),
    ],
)
def test_errors(kind: str, given: dict[str, Any], message: str) -> None:
    for model in (None, LEARNED, ROTARY):
        with pytest.raises(UserError, match=re.escape(message).replace(r"\.\*", ".*")):
            student_mixer(kind, given, model)


def test_own_frequency_scale_of_a_scaled_teacher() -> None:
    scaled = LLAMA.with_attention(positions=RotaryConfig(5e5, LinearScaling(2.0))).build()
    assert student_mixer("linear", {"frequency_scale": 0.5}, scaled)[0] == LinearConfig(
        32, **PAIR, positions="after", frequency_scale=0.5
    )
