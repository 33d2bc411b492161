"""Graphs for accelerators that compute in float16: the same model, and sums that grow past the precision of a float."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import faults
import small
from small import G, K, V
from t2r_export.config.export import ExportConfig
from t2r_export.config.mixers import MixerConfig
from t2r_export.graph.layout import low_name, pack, unpack, with_low
from t2r_export.verify import verify
from t2r_runtime import Decoder
from t2r_runtime.contract.state_spec import StateSpec
from t2r_runtime.errors import UserError

MODELS = ["learned", "rotary_keep", "rotary_drop", "sinusoidal", "average"]
SUMS = ("S", "z", "sum")


@pytest.mark.parametrize("target", ["portable", "npu"])
@pytest.mark.parametrize("name", MODELS)
def test_the_model(name: str, target: str, tmp_path: Path) -> None:
    made, report = small.graph(tmp_path / "g.onnx", name, target=target, float16_safe=True)
    names = [s.name for s in report.signature.states]
    assert [n for n in names if "low" in n] == [low_name(n) for n in names if n.partition(".")[0] in SUMS]
    outcome = small.proof(made, tmp_path / "g.onnx", steps=60)
    assert outcome.passed, outcome


def test_a_lost_low_part_is_seen(tmp_path: Path) -> None:
    made, _ = small.graph(tmp_path / "g.onnx", "learned", float16_safe=True)
    proof = verify(made, faults.inject(tmp_path / "g.onnx", faults.unread("S_low.0")), steps=20)
    assert not proof.passed


def test_a_sum_goes_on_past_its_last_digit(tmp_path: Path) -> None:
    """A state so large that float32 rounds away what one token adds to it, 40 times."""
    small.graph(tmp_path / "g.onnx", "learned", float16_safe=True)
    small.graph(tmp_path / "plain.onnx", "learned")
    added = {}
    for name in ("g", "plain"):
        decoder = Decoder(tmp_path / f"{name}.onnx", threads=1)
        decoder.reset(batch=1)
        large = {k: np.full_like(v, 2.0**30) if k in ("S.0", "z.0") else v for k, v in decoder.state().items()}
        decoder.set_state(large)
        for _ in range(40):
            decoder.step(np.array([3]))
        state = decoder.state()
        added[name] = state["z.0"].astype(np.float64) + state.get("z_low.0", 0) - 2.0**30
    assert not added["plain"].any()
    assert added["g"].any()


def test_low_names() -> None:
    assert [low_name(n) for n in ("S.3", "z", "a.b.1")] == ["S_low.3", "z_low", "a_low.b.1"]


def test_a_state_is_its_two_parts() -> None:
    specs = [StateSpec("S.0", "float32", ("B", G, K, V)), StateSpec("n", "int32", ("B",))]
    states = {"S.0": torch.randn(2, G, K, V).numpy(), "n": np.array([3, 4], np.int32)}
    packed = pack(states, with_low(specs, ["past_S.0"]))
    assert set(packed) == {"S.0", "S_low.0", "n"}
    assert (packed["S.0"] == packed["S.0"].astype(np.float16)).all()
    assert packed["S_low.0"].any()
    for name, value in unpack(packed, specs).items():
        np.testing.assert_array_equal(value, states[name])


@pytest.mark.parametrize("options", [{"target": "fused"}, {"target": "standard"}, {"state_layout": "packed"}])
def test_unsupported_options(options: dict[str, str]) -> None:
    with pytest.raises(
        UserError, match="expected --state-layout layers and a target of standard operators with --float16"
    ):
        ExportConfig(float16_safe=True, **options)  # type: ignore[arg-type]


def test_not_with_a_graph_for_prompts() -> None:
    with pytest.raises(UserError, match="expected one of --prefill and --float16-safe; received both; leave out one"):
        ExportConfig(float16_safe=True, prefill=True)


@pytest.mark.parametrize("layer", [small.WINDOW, small.linear(update_rule="gated", gate="data", guard=small.CLAMP)])
def test_constant_size_states_unchanged(layer: MixerConfig, tmp_path: Path) -> None:
    config = small.with_layers(small.GPT2, layer)
    made, safe = small.graph(tmp_path / "g.onnx", config, float16_safe=True)
    _, plain = small.graph(tmp_path / "plain.onnx", config)
    assert safe.signature.states == plain.signature.states
    assert small.proof(made, tmp_path / "g.onnx", 8).passed
