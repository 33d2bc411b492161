"""States a layer or packed: which tensors a graph has, and that packing loses nothing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import small
from small import CONFIGS, LINEAR, B, G, K, V
from t2r_export.graph.layout import group, pack, unpack
from t2r_runtime.errors import UserError
from t2r_runtime.signature import StateSpec


def test_layers_stay_as_they_are() -> None:
    specs = small.model("hybrid").state_spec()
    groups = group(specs, "layers")
    assert [g.spec for g in groups] == specs
    assert not any(g.packed for g in groups)


def test_packed_is_one_tensor_a_kind() -> None:
    groups = group(small.model("hybrid").state_spec(), "packed")
    assert {g.spec.name: (g.spec.shape, [m.name for m in g.members]) for g in groups} == {
        "S": (("B", 2, G, K, V), ["S.0", "S.2"]),
        "z": (("B", 2, G, K), ["z.0", "z.2"]),
        "k": (("B", 1, G, "T", V), ["k.1"]),
        "v": (("B", 1, G, "T", V), ["v.1"]),
        "position": (("B",), ["position"]),
    }
    assert [g.packed for g in groups] == [True, True, True, True, False]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("layout", ["layers", "packed"])
def test_pack_and_unpack_are_inverses(name: str, layout: str) -> None:
    made = small.model(name)
    groups, states = group(made.state_spec(), layout), small.states(made)
    packed = pack(states, groups)
    assert {n: a.shape for n, a in packed.items()} == {g.spec.name: g.spec.dims(B, small.CACHED) for g in groups}
    for key, value in unpack(packed, groups).items():
        np.testing.assert_array_equal(value, states[key].numpy())


@given(st.integers(1, 5), st.floats(-1e6, 1e6, width=32))
def test_initial_value_and_dtype_are_kept(layers: int, initial: float) -> None:
    specs = [StateSpec(f"m.{i}", "float32", ("B", 3), initial) for i in range(layers)]
    (packed,) = group(specs, "packed")
    assert packed.spec == StateSpec("m", "float32", ("B", layers, 3), initial)


def test_unknown_layout() -> None:
    with pytest.raises(UserError) as caught:
        group([], "flat")
    assert str(caught.value) == "expected a state layout of layers, packed; received 'flat'; choose one of those"


def test_what_differs_cannot_be_packed() -> None:
    other = dataclasses.replace(LINEAR, feature_size=K + 1)
    made = small.model(dataclasses.replace(CONFIGS["none"], layers=(LINEAR, other)))
    with pytest.raises(UserError) as caught:
        group(made.state_spec(), "packed")
    assert str(caught.value) == (
        "expected states of one shape to pack into S; received S.0 ['B', 3, 5, 4] and S.1 ['B', 3, 6, 4]; "
        "export with --state-layout layers"
    )
