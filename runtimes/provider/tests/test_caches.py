"""Attention of a step to a cache: fused, and with caches that stay in one buffer from step to step."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import onnxruntime_ep_t2r as plugin
import pytest
from one_node import on_cpu, on_provider, options
from onnx import NodeProto, TensorProto, helper, numpy_helper

B, G, D, V = 2, 3, 20, 7  # sequences, caches of each, sizes of keys and values
BEYOND = 5.0  # in the rows of a buffer that no step has written


def node(op: str, inputs: str, output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs.split(), [output], **attributes)


def attention(form: str) -> bytes:
    """q (B, G, R, D) and new rows of two caches → the caches and the result.

    Args:
        form: "plain", "capped" scores, or "read", with another output that reads the keys too.
    """
    capped = [node("Mul", "s inverse", "a"), node("Tanh", "a", "b"), node("Mul", "b cap", "c")]
    nodes = [
        node("Concat", "past_k k", "present_k", axis=2),
        node("Concat", "past_v v", "present_v", axis=2),
        node("Transpose", "present_k", "turned", perm=[0, 1, 3, 2]),
        node("MatMul", "q turned", "s"),
        *(capped if form == "capped" else []),
        node("Softmax", "c" if form == "capped" else "s", "weights", axis=-1),
        node("MatMul", "weights present_v", "y"),
        *([node("ReduceSum", "present_k axis", "sums")] if form == "read" else []),
    ]
    shapes = {"q": "R D", "past_k": "T D", "k": "N D", "past_v": "T V", "v": "N V"}
    given = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", G, *shape.replace("D", str(D)).split()])
        for name, shape in shapes.items()
    ]
    constants = {"inverse": np.float32(0.5), "cap": np.float32(2), "axis": np.array([2])}
    results = ["present_k", "present_v", "y", *(["sums"] if form == "read" else [])]
    graph = helper.make_graph(
        nodes,
        form,
        given,
        [helper.make_empty_tensor_value_info(name) for name in results],
        [numpy_helper.from_array(np.asarray(x), name) for name, x in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return made.SerializeToString()


def feeds(rows: int, queries: int = 2, new: int = 1, seed: int = 0) -> dict[str, np.ndarray]:
    sizes = {"q": (queries, D), "past_k": (rows, D), "k": (new, D), "past_v": (rows, V), "v": (new, V)}
    random = np.random.default_rng(seed)
    return {name: random.standard_normal((B, G, *size)).astype(np.float32) for name, size in sizes.items()}


def room(cache: np.ndarray, capacity: int) -> ort.OrtValue:
    """A buffer with room for more rows."""
    whole = np.full((B, G, capacity, cache.shape[3]), BEYOND, np.float32)
    whole[:, :, : cache.shape[2]] = cache
    return ort.OrtValue.ortvalue_from_numpy(whole)


def in_place(
    session: ort.InferenceSession, given: dict[str, np.ndarray], rooms: dict[str, ort.OrtValue], rows: object
) -> list[np.ndarray]:
    binding, run = session.io_binding(), ort.RunOptions()
    for name in ("q", "k", "v"):
        binding.bind_cpu_input(name, given[name])
    for name, value in rooms.items():
        binding.bind_ortvalue_input(f"past_{name}", value)
        binding.bind_ortvalue_output(f"present_{name}", value)
    others = [each.name for each in session.get_outputs()[2:]]
    for name in others:
        binding.bind_output(name)
    run.add_run_config_entry("ep.t2rexecutionprovider.rows", str(rows))
    session.run_with_iobinding(binding, run)
    return [value.numpy() for value in binding.get_outputs() if tuple(value.shape()) not in shapes_of(rooms)]


def shapes_of(rooms: dict[str, ort.OrtValue]) -> list[tuple[int, ...]]:
    return [tuple(value.shape()) for value in rooms.values()]


@pytest.mark.parametrize("form", ["plain", "capped"])
@pytest.mark.parametrize("rows, queries, new", [(0, 1, 1), (1, 2, 1), (255, 9, 1), (256, 3, 2), (600, 17, 260)])
def test_as_onnx_runtime_computes_it(form: str, rows: int, queries: int, new: int) -> None:
    made, given = attention(form), feeds(rows, queries, new)
    for ours, theirs in zip(on_provider(made, given), on_cpu(made, given), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=3e-6)
    assert plugin.get_operations() == 2


@pytest.mark.parametrize("form, operations", [("plain", 2), ("capped", 2), ("read", 10)])
def test_caches_in_place(form: str, operations: int) -> None:
    """Step by step as with copies, bit by bit for any number of threads; rows beyond the cache are not touched."""
    made, first, capacity = attention(form), 254, 259
    plain = ort.InferenceSession(made, options(1))
    for threads in (1, 2, 3):
        session, given = ort.InferenceSession(made, options(threads)), feeds(first)
        rooms = {name: room(given[f"past_{name}"], capacity) for name in "kv"}
        for rows in range(first, capacity):
            given |= {name: value for name, value in feeds(0, seed=rows).items() if "past" not in name}
            k, v, *expected = plain.run(None, given)
            for ours, theirs in zip(in_place(session, given, rooms, rows), expected, strict=True):
                np.testing.assert_array_equal(ours, theirs)
            given |= {"past_k": k, "past_v": v}
            for name, cache in {"k": k, "v": v}.items():
                np.testing.assert_array_equal(rooms[name].numpy()[:, :, : rows + 1], cache)
                assert (rooms[name].numpy()[:, :, rows + 1 :] == BEYOND).all()
        assert plugin.get_operations() == operations
        with pytest.raises(Exception, match="room for more"):
            in_place(session, given, rooms, capacity)


def test_shapes_and_places_change_between_runs() -> None:
    """The caches of two texts by turns, in place and with copies, in one session."""
    session = ort.InferenceSession(attention("plain"), options(2))
    texts = [feeds(rows, seed=rows) for rows in (5, 40)]
    rooms = [{name: room(text[f"past_{name}"], 64) for name in "kv"} for text in texts]
    for text, (given, own, rows) in enumerate([*zip(texts, rooms, (5, 40), strict=True)] * 2):
        expected = session.run(["y"], given)[0]
        np.testing.assert_array_equal(in_place(session, given, own, rows)[0], expected, str(text))


@pytest.mark.parametrize("rows", ["-1", "one", "", "1.5", str(1 << 40)])
def test_a_wrong_number_of_rows(rows: str) -> None:
    given = feeds(3)
    with pytest.raises(Exception, match="expected a number of rows from 0"):
        in_place(
            ort.InferenceSession(attention("plain"), options()),
            given,
            {name: room(given[f"past_{name}"], 9) for name in "kv"},
            rows,
        )


def test_caches_of_two_buffers_are_not_in_place() -> None:
    run = ort.RunOptions()
    run.add_run_config_entry("ep.t2rexecutionprovider.rows", "2")
    with pytest.raises(Exception, match="one buffer as input and output"):
        ort.InferenceSession(attention("plain"), options()).run(None, feeds(3), run)
