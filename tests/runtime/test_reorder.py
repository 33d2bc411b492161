"""Rows of a batch are dropped, repeated and exchanged in place, with the result of copying through the host."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from runtime import graphs
from runtime.conftest import Open
from t2r_runtime import Decoder, UserError
from t2r_runtime.session import gather
from t2r_runtime.session.providers import CPU
from t2r_runtime.session.states import States

ROWS = ([2, 0, 1], [1, 1, 1], [2], [0, 2], [2, 0, 2, 1, 1])  # of three rows
kinds = pytest.mark.parametrize("kind", [*graphs.KINDS, "silent"])


@pytest.fixture(params=["numpy", "graph", "host"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How rows are copied: in main memory, on a device (the same graph, on the CPU), or as on WebGPU."""
    right = gather.gather_rows
    if request.param == "graph":
        monkeypatch.setitem(gather.PROVIDERS, "cpu", CPU)
    if request.param == "host":
        monkeypatch.setattr("t2r_runtime.session.buffers.gather_rows", lambda *given: right(*given[:3], "webgpu"))
    return str(request.param)


def filled(kind: str, opened: Open, length: int = 3) -> Decoder:
    """A decoder with three sequences in random states."""
    decoder = opened(kind)
    decoder.set_state(graphs.random_states(kind, 3, length), length)
    return decoder


@kinds
@pytest.mark.parametrize("rows", ROWS)
def test_reorder_selects_rows(kind: str, rows: list[int], way: str, opened: Open) -> None:
    decoder, expected = filled(kind, opened), opened(kind)
    decoder.step([1, 2, 3])  # the states are now in the second buffers
    expected.set_state({name: state[rows] for name, state in decoder.state().items()}, decoder.position)
    decoder.reorder(rows)
    assert (decoder.batch, decoder.position) == (expected.batch, expected.position) == (len(rows), 4)
    for _ in range(2):
        for name, state in decoder.state().items():
            np.testing.assert_array_equal(state, expected.state()[name])
        ids = np.arange(len(rows))
        np.testing.assert_array_equal(decoder.step(ids), expected.step(ids))
        rows = rows[::-1]
        decoder.reorder(list(range(len(rows)))[::-1])
        expected.set_state({name: state[::-1] for name, state in expected.state().items()}, expected.position)


@kinds
@pytest.mark.parametrize("in_place", [True, False])
def test_kept_rows(kind: str, in_place: bool, way: str, opened: Open) -> None:
    """Fewer and fewer rows, in the first rows' memory or, as on a device, in new memory."""
    states = filled(kind, opened)._states
    states._in_place = in_place
    for rows, sources in (([2, 2], [2, 1]), ([1], [0])):
        states.step(np.arange(states.batch) + 1)
        before = states.read()
        states.keep(np.array(rows), np.array(sources))
        assert states.batch == len(rows)
        for spec in states._graph.signature.states:
            taken = sources if spec.constant else rows
            np.testing.assert_array_equal(states.read()[spec.name], before[spec.name][taken], spec.name)
        again = opened(kind)
        again.set_state(states.read(), 5)
        ids = np.arange(len(rows)) + 3
        np.testing.assert_array_equal(states.step(ids)[0], again.step(ids))


@kinds
def test_reorder_stays_on_device(kind: str, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, expected = filled(kind, opened), opened(kind)
    expected.set_state({name: state[[0, 1]] for name, state in decoder.state().items()}, decoder.position)
    logits = expected.step([1, 2])
    for name in ("read", "write"):  # by way of the host
        monkeypatch.setattr(States, name, None)
    decoder.reorder([1, 0, 2])
    decoder.reorder([1, 0])
    np.testing.assert_array_equal(decoder.step([1, 2]), logits)


def test_reorder_reuses_buffers(opened: Open) -> None:
    decoder = filled("constant", opened)
    states = decoder._states
    decoder.reorder([2, 2, 0])
    assert decoder._states is states
    decoder.reorder([2, 0])
    assert decoder._states is not states


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("dtype", gather.ELEMENTS)
def test_rows_of_several_tensors(dtype: str, parts: int) -> None:
    random = np.random.default_rng(parts)
    arrays = [random.integers(-99, 99, (2 + i, 3, 5)).astype(dtype) for i in range(parts)]
    rows = [random.integers(0, 2 + i, 4 - i) for i in range(parts)]
    values = [ort.OrtValue.ortvalue_from_numpy(array) for array in arrays]
    expected = np.concatenate([array[taken] for array, taken in zip(arrays, rows, strict=True)])
    out = ort.OrtValue.ortvalue_from_shape_and_type(expected.shape, expected.dtype.type)
    taken = list(zip(values, rows, strict=True))
    gather.on_device(taken, out, gather.session(dtype, parts, CPU))
    np.testing.assert_array_equal(out.numpy(), expected)
    out.update_inplace(np.zeros_like(expected))
    gather.gather_rows(taken, out, dtype, "cpu")
    np.testing.assert_array_equal(out.numpy(), expected)


def test_rows_of_several_decoders(opened: Open) -> None:
    one = filled("constant", opened)
    other, both = one.fork(), one.fork()
    other.prefill([4, 5])
    states = [decoder.state() for decoder in (one, other)]
    both.take([(one, [2, 0]), (other, [0])])
    assert (both.batch, both.position) == (3, 3)
    for name, state in both.state().items():
        np.testing.assert_array_equal(state, np.concatenate([states[0][name][[2, 0]], states[1][name]]))
    both.reorder([2])
    assert both.position == 2, "that of the furthest has gone"


def test_caches_of_several_decoders(opened: Open) -> None:
    one = opened("growing")
    with pytest.raises(UserError, match="expected states of constant size for sequences of several decoders; received"):
        one.take([(one, [0]), (one.fork(), [0])])


@pytest.mark.parametrize(
    "rows, message",
    [
        ([], "expected rows (N,) of a batch, integers in 0 … 2; received []; choose rows to keep"),
        ([0, 3], "expected rows (N,) of a batch, integers in 0 … 2; received [0, 3]; choose rows to keep"),
        ([-1], "expected rows (N,) of a batch, integers in 0 … 2; received [-1]; choose rows to keep"),
        (1, "expected rows (N,) of a batch, integers in 0 … 2; received 1; choose rows to keep"),
        ([True], "expected rows (N,) of a batch, integers in 0 … 2; received [True]; choose rows to keep"),
    ],
)
def test_invalid_arguments(rows: object, message: str, opened: Open) -> None:
    decoder = filled("both", opened)
    before = decoder.state()
    with pytest.raises(UserError) as caught:
        decoder.reorder(rows)  # type: ignore[arg-type]
    assert str(caught.value) == message
    for name, state in decoder.state().items():
        np.testing.assert_array_equal(state, before[name])


def test_a_fixed_batch(opened: Open) -> None:
    decoder = opened("constant", batch=2)
    decoder.reorder([1, 1])
    with pytest.raises(UserError, match="expected a batch of 2, fixed at export; received 1; export"):
        decoder.reorder([1])
