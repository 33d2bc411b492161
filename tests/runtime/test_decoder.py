"""The decoder against numpy, and its errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from runtime import graphs
from runtime.conftest import Open
from t2r_runtime import Decoder, UserError
from t2r_runtime.session import buffers
from t2r_runtime.session.states import LOGITS_ALONE

CLOSE = {"rtol": 1e-5, "atol": 2e-6}  # measured: 1e-6, from another order of sums

kinds = pytest.mark.parametrize("kind", graphs.KINDS)


def tokens(batch: int, time: int, seed: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, graphs.VOCABULARY, (batch, time))


@kinds
@pytest.mark.parametrize("fixed", [None, 2])
def test_steps_from_random_states_match_numpy(kind: str, fixed: int | None, opened: Open) -> None:
    decoder, eager = opened(kind, batch=fixed), graphs.Eager(kind, batch=2)
    eager.states = graphs.random_states(kind, batch=2)
    decoder.set_state(eager.states)
    assert (decoder.batch, decoder.position) == (2, 3)
    for count, column in enumerate(tokens(2, 6).T):
        np.testing.assert_allclose(decoder.step(column), eager.step(column), **CLOSE)
        assert decoder.position == 4 + count
    for name, state in decoder.state().items():
        assert state.dtype == eager.states[name].dtype
        np.testing.assert_allclose(state, eager.states[name], **CLOSE)


@kinds
def test_prefill_equals_steps(kind: str, opened: Open) -> None:
    ids = tokens(2, 7)
    one, other = opened(kind), opened(kind)
    one.reset(batch=2)
    other.reset(batch=2)
    logits = one.prefill(ids)
    for column in ids.T:
        last = other.step(column)
    np.testing.assert_array_equal(logits, last)
    assert one.position == other.position == 7
    for name, state in one.state().items():
        np.testing.assert_array_equal(state, other.state()[name])


@kinds
def test_batch_equals_rows(kind: str, opened: Open) -> None:
    ids = tokens(3, 7)
    decoder = opened(kind)
    decoder.reset(batch=3)
    together = decoder.prefill(ids)
    for row in range(3):
        decoder.reset(batch=1)
        np.testing.assert_allclose(decoder.prefill(ids[row])[0], together[row], **CLOSE)


@kinds
def test_reset_forgets(kind: str, opened: Open) -> None:
    decoder = opened(kind)
    first = decoder.prefill([3, 1, 4])
    decoder.prefill([2, 5])  # the same text twice can double both sums, with an equal quotient
    assert not np.array_equal(decoder.prefill([3, 1, 4]), first)
    decoder.reset()
    assert decoder.position == 0
    np.testing.assert_array_equal(decoder.prefill([3, 1, 4]), first)


def test_initial_values_are_those_of_the_metadata(opened: Open) -> None:
    start = (graphs.S, graphs.StateSpec("z.0", "float32", ("B", graphs.G, graphs.K), initial=0.5), graphs.POSITION)
    decoder = opened("constant", states=start)
    decoder.step(3)
    decoder.reset(batch=2)
    assert (decoder.state()["z.0"] == 0.5).all()
    assert (decoder.state()["S.0"] == 0).all()


@kinds
def test_returned_arrays_are_copies(kind: str, opened: Open) -> None:
    decoder = opened(kind)
    logits, states = decoder.prefill([3, 1]), decoder.state()
    kept = logits.copy(), {name: array.copy() for name, array in states.items()}
    given = decoder.state()
    decoder.set_state(given)
    for array in given.values():
        array[...] = 77  # the decoder has its own copy
    decoder.prefill([4, 1, 5])
    np.testing.assert_array_equal(logits, kept[0])
    for name, array in states.items():
        np.testing.assert_array_equal(array, kept[1][name])


def test_past_and_present_buffers_differ(opened: Open) -> None:
    decoder = opened("both")
    decoder.step(1)
    bindings = decoder._states._bindings[LOGITS_ALONE]
    for binding in bindings:
        bound_in, bound_out = binding._bound_inputs, binding._bound_outputs
        for spec in graphs.states("constant"):
            past, present = bound_in[spec.past], bound_out[spec.present]
            assert not np.shares_memory(past.numpy(), present.numpy())
    assert bindings[0]._bound_inputs["past_S.0"] is bindings[1]._bound_outputs["present_S.0"]


@pytest.mark.parametrize("ids", [3, [3], np.array([3], np.uint8), np.array(3, np.int32)])
def test_step_integer_dtypes(ids: object, opened: Open) -> None:
    np.testing.assert_array_equal(opened().step(ids), opened().step([3]))


@pytest.mark.parametrize(
    "ids, message",
    [
        ([], "expected at least one token; received none; start from the BOS token, 1"),
        ([1.0], "expected ids that are integers; received float64; encode the text first"),
        ([True], "expected ids that are integers; received bool; encode the text first"),
        (["a"], "expected ids that are integers; received text; encode the text first"),
        ([-1], "expected ids in 0 … 10; received -1; use the tokenizer of this model"),
        ([11], "expected ids in 0 … 10; received 11; use the tokenizer of this model"),
        ([1, 2], "expected ids of the shape (1,); received (2,); pass one token per sequence"),
        ([[1]], "expected ids of the shape (1,); received (1, 1); pass one token per sequence"),
    ],
)
def test_step_refuses(ids: object, message: str, opened: Open) -> None:
    decoder = opened()
    with pytest.raises(UserError) as caught:
        decoder.step(ids)
    assert str(caught.value) == message
    assert decoder.position == 0


def test_prefill_refuses(opened: Open) -> None:
    decoder = opened()
    with pytest.raises(UserError, match="at least one token; received none; start from the BOS token, 1"):
        decoder.prefill([])
    with pytest.raises(
        UserError, match=r"shape \(1, T\) or \(T,\); received \(2, 3\); pass one row of tokens per sequ"
    ):
        decoder.prefill(tokens(2, 3))
    with pytest.raises(UserError, match="received 1 … 11"):
        decoder.prefill([1, 2, 11])
    decoder.reset(batch=2)
    with pytest.raises(UserError, match=r"shape \(2, T\); received \(2,\)"):
        decoder.prefill([1, 2])
    assert decoder.position == 0
    with pytest.raises(UserError, match="none; start from any token"):
        opened(bos_token=None).prefill([])


@pytest.mark.parametrize("batch", [0, -1, 2.0, True])
def test_reset_refuses_a_bad_batch(batch: int, opened: Open) -> None:
    with pytest.raises(UserError, match="expected a batch of at least 1; received .*; choose another"):
        opened().reset(batch=batch)


def test_reset_memory_limit(opened: Open) -> None:
    decoder = opened()
    with pytest.raises(UserError, match="states of at most 17179869184 bytes; received .*; choose a smaller batch"):
        decoder.reset(batch=10**9)
    assert decoder.batch == 1


def test_fixed_batch_reset(opened: Open) -> None:
    decoder = opened(batch=2)
    assert decoder.batch == 2
    decoder.reset(batch=2)
    with pytest.raises(UserError, match="a batch of 2, fixed at export; received 3; export the model"):
        decoder.reset(batch=3)
    with pytest.raises(UserError, match=r"S.0 float32 \(3, 3, 5, 4\) for float32 \('B', 3, 5, 4\)"):
        decoder.set_state(graphs.random_states("constant", batch=3))


def test_step_past_last_position(opened: Open) -> None:
    decoder = opened("table")
    decoder.prefill([1] * 8)
    message = "at most 9 tokens, where this model's positions end; received 2 more after 8; reset, read fewer tokens"
    with pytest.raises(UserError, match=message):
        decoder.prefill([1, 1])
    decoder.step(1)
    with pytest.raises(UserError, match="1 more after 9"):
        decoder.step(1)
    before = decoder.state()
    decoder.set_state(before)  # the token count comes from the position state
    with pytest.raises(UserError, match="1 more after 9"):
        decoder.step(1)


def test_clamped_positions_unlimited(opened: Open) -> None:
    decoder = opened("constant", max_positions=2, past_end="clamp")
    decoder.prefill([1, 2, 3])
    assert decoder.position == 3


def test_set_state_invalid(opened: Open) -> None:
    decoder = opened("both")
    decoder.prefill([1, 2])
    before = decoder.state()
    good = graphs.random_states("both", batch=2)
    without = {name: array for name, array in good.items() if name != "z.0"}
    bad = [
        (without | {"z.1": good["z.0"]}, "missing z.0; unexpected z.1"),
        (good | {"z.0": good["z.0"].astype(np.float64)}, r"z.0 float64 \(2, 3, 5\) for float32 \('B', 3, 5\)"),
        (good | {"z.0": good["z.0"].astype(">f4")}, r"z.0 >f4 \(2, 3, 5\) for"),
        (good | {"z.0": good["z.0"][:1]}, r"z.0 float32 \(1, 3, 5\) for float32 \('B', 3, 5\)"),
        (good | {"S.0": good["S.0"].swapaxes(2, 3)}, r"S.0 float32 \(2, 3, 4, 5\) for"),
        (good | {"S.0": good["S.0"][..., 0]}, r"S.0 float32 \(2, 3, 5\) for"),
        ({name: array[:0] for name, array in good.items()}, r"S.0 float32 \(0, 3, 5, 4\) for"),
        (good | {"position": np.array([3, -1], np.int32)}, "positions of at least 0; received a negative one"),
    ]
    for states, message in bad:
        with pytest.raises(UserError, match=message):
            decoder.set_state(states)
        assert (decoder.batch, decoder.position) == (1, 2)
        for name, state in decoder.state().items():
            np.testing.assert_array_equal(state, before[name])


def test_caches_outgrow_their_memory(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two buffers with room for more tokens take turns, and are replaced when they are full."""
    monkeypatch.setattr(buffers, "MIN_ROOM", 5)
    decoder, eager = opened("both", batch=2), graphs.Eager("both", batch=2)
    addresses = []
    for column in tokens(2, 23).T:
        np.testing.assert_allclose(decoder.step(column), eager.step(column), **CLOSE)
        addresses.append(decoder._states._caches["cache.1"].data_ptr())
        np.testing.assert_allclose(decoder.state()["cache.1"], eager.states["cache.1"], **CLOSE)
    assert addresses[0] != addresses[1]
    assert addresses[:6] == addresses[:2] * 3, "room for five tokens behind the first"
    decoder.set_state(decoder.state())  # other memory
    np.testing.assert_allclose(decoder.step(column), eager.step(column), **CLOSE)


def test_position_without_position_state(opened: Open) -> None:
    decoder = opened("growing")
    decoder.prefill([1, 2, 3])
    decoder.set_state(decoder.state())
    assert decoder.position == 3
    silent = opened("silent")
    silent.set_state(silent.state(), position=5)
    assert silent.position == 5


def test_failed_step_keeps_states(tmp_path: Path) -> None:
    # the table has 9 rows but the metadata promises 12: the graph itself fails at the tenth token
    decoder = Decoder(graphs.save(tmp_path / "g.onnx", "table", max_positions=12), threads=1)
    decoder.prefill([1] * 9)
    before = decoder.state()
    with pytest.raises(
        UserError, match="expected the graph to run a step; received .*; export the model again"
    ) as error:
        decoder.step(1)
    assert "\n" not in str(error.value)
    assert decoder.position == 9
    for name, state in decoder.state().items():
        np.testing.assert_array_equal(state, before[name])


def test_failed_prefill_position(tmp_path: Path) -> None:
    path = graphs.save(tmp_path / "g.onnx", "table", max_positions=12)  # as above
    decoder, other = Decoder(path, threads=1), Decoder(path, threads=1)
    ids = [3, 1, 4, 1, 5, 9, 2, 6, 5, 8, 7]
    with pytest.raises(UserError) as error:
        decoder.prefill(ids)
    assert error.value.kind == "runtime"
    assert decoder.position == 9
    np.testing.assert_array_equal(decoder.history(), ids[:9])
    other.prefill(ids[:9])
    for name, state in other.state().items():
        np.testing.assert_array_equal(decoder.state()[name], state)


def test_nonfinite_logits_position(tmp_path: Path) -> None:
    """The prompt has been read; the decoder continues from there."""

    def infinite(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            if tensor.name == "w_o":
                tensor.CopyFrom(onnx.numpy_helper.from_array(np.full(tensor.dims, np.nan, np.float32), tensor.name))

    decoder = Decoder(graphs.save(tmp_path / "g.onnx", edit=infinite), threads=1)
    good = Decoder(graphs.save(tmp_path / "good.onnx"), threads=1)
    with pytest.raises(UserError, match="^expected finite logits; ") as error:
        decoder.generate([4, 3, 5], 6)
    assert error.value.kind == "graph" and decoder.position == 3
    good.prefill([4, 3, 5])
    for name, state in good.state().items():
        np.testing.assert_array_equal(decoder.state()[name], state)


@kinds
def test_top_k_largest_logits(kind: str, opened: Open) -> None:
    ids = tokens(2, 5)
    plain, decoder = opened(kind), opened(kind, top_k=3)
    for each in (plain, decoder):
        each.reset(batch=2)
    for part in (ids[:, :2], ids[:, 2:3], ids[:, 3:]):
        expected = plain.prefill(part)
        logits, places = decoder.top_k(part)
        best = np.argsort(-expected, axis=-1, kind="stable")[:, :3]
        np.testing.assert_array_equal(places, best)
        np.testing.assert_array_equal(logits, np.take_along_axis(expected, best, -1))
    np.testing.assert_array_equal(decoder.step([1, 2]), plain.step([1, 2]))  # all logits remain available
    for name, value in plain.state().items():
        np.testing.assert_array_equal(decoder.state()[name], value)


def test_top_k_ties(tmp_path: Path) -> None:
    def flat(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            if tensor.name == "w_o":
                tensor.CopyFrom(onnx.numpy_helper.from_array(np.ones(tensor.dims, np.float32), tensor.name))

    logits, places = Decoder(graphs.save(tmp_path / "g.onnx", edit=flat, top_k=4), threads=1).top_k([3])
    assert places.tolist() == [[0, 1, 2, 3]]
    assert np.ptp(logits) == 0


def test_top_k_without_outputs(opened: Open) -> None:
    with pytest.raises(UserError) as caught:
        opened().top_k([1])
    assert str(caught.value) == ("expected a graph with top-k outputs; received one without; export with --top-k")
