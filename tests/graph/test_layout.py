"""States per layer or packed: which tensors a graph has, and that packing loses nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import small
from small import CONFIGS, B, G, K, V
from t2r_export.config.export import ExportConfig
from t2r_export.export import build
from t2r_export.graph.layout import pack, states_in, unpack
from t2r_runtime import Decoder
from t2r_runtime.contract.signature import Signature
from t2r_runtime.contract.state_spec import StateSpec


def built(name: str, layout: str = "packed") -> tuple[onnx.ModelProto, Signature]:
    bundle, _ = build(small.checkpoint(name), ExportConfig(state_layout=layout))
    return bundle.step, bundle.signature


def test_packed_is_one_tensor_of_each_kind() -> None:
    model, signature = built("hybrid")
    assert {spec.name: spec.shape for spec in signature.states} == {
        "S": ("B", 2, G, K, V),
        "z": ("B", 2, G, K),
        "k": ("B", 1, G, "T", V),
        "v": ("B", 1, G, "T", V),
        "position": ("B",),
    }
    assert signature.state_layout == "packed"
    assert [value.name for value in model.graph.input] == ["input_ids", *(s.past for s in signature.states)]
    assert [value.name for value in model.graph.output] == ["logits", *(s.present for s in signature.states)]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("layout", ["layers", "packed"])
def test_pack_and_unpack_are_inverses(name: str, layout: str) -> None:
    made = small.model(name)
    specs, states = made.state_spec(), small.states(made)
    stored = states_in(specs, built(name, layout)[1])
    fed = pack(states, stored)
    assert {n: a.shape for n, a in fed.items()} == {s.name: s.dims(B, small.CACHED) for s in stored}
    for key, value in unpack(fed, specs).items():
        np.testing.assert_array_equal(value, states[key].numpy())


@given(st.integers(1, 5), st.floats(-1e6, 1e6, width=32))
def test_initial_value_and_dtype_are_kept(layers: int, initial: float) -> None:
    specs = [StateSpec(f"m.{i}", "float32", ("B", 3), initial) for i in range(layers)]
    assert states_in(specs, built("none")[1]) == [StateSpec("m", "float32", ("B", layers, 3), initial)]


def test_the_companions_are_packed_too(tmp_path: Path) -> None:
    made, _ = small.graph(tmp_path / "g.onnx", "rotary_keep", state_layout="packed", prefill=True, draft_check=True)
    assert Decoder(tmp_path / "g.onnx").signature.state_layout == "packed"
    assert small.proof(made, tmp_path / "g.onnx", steps=20).passed  # includes prefill and draft check
