"""Attention of a step to a cache: fused, and with caches that stay in one buffer from step to step."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import onnxruntime_ep_t2r as plugin
import pytest
from one_node import on_cpu, on_provider, options
from onnx import NodeProto, helper, numpy_helper

B, G, D, V = 2, 3, 20, 7  # sequences, caches of each, sizes of keys and values
BEYOND = 5.0  # in the rows of a buffer that no step has written


def node(op: str, inputs: str, output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs.split(), [output], **attributes)


def attention(form: str) -> bytes:
    """q (B, G, R, D) and new rows of two caches → the caches and the result.

    Args:
        form: "plain", "capped" scores, "read", with another output that reads the keys too, or "int8", rows of 8 bits
            with scales.
    """
    caches = names(form)
    capped = [node("Mul", "s inverse", "a"), node("Tanh", "a", "b"), node("Mul", "b cap", "c")]
    scaled = [
        each
        for name in "kv"
        for each in (
            node("Cast", f"present_{name}", f"f{name}", to=1),
            node("Mul", f"f{name} present_{name}s", f"r{name}"),
        )
    ]
    rows = "r" if form == "int8" else "present_"
    nodes = [
        *(node("Concat", f"past_{name} {name}", f"present_{name}", axis=2) for name in caches),
        *(scaled if form == "int8" else []),
        node("Transpose", f"{rows}k", "turned", perm=[0, 1, 3, 2]),
        node("MatMul", "q turned", "s"),
        *(capped if form == "capped" else []),
        node("Softmax", "c" if form == "capped" else "s", "weights", axis=-1),
        node("MatMul", f"weights {rows}v", "y"),
        *([node("ReduceSum", "present_k axis", "sums")] if form == "read" else []),
    ]
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), ["B", G, f"L{name}", x.shape[3]])
        for name, x in feeds(1, form=form).items()
    ]
    constants = {"inverse": np.float32(0.5), "cap": np.float32(2), "axis": np.array([2])}
    results = [*(f"present_{name}" for name in caches), "y", *(["sums"] if form == "read" else [])]
    graph = helper.make_graph(
        nodes,
        form,
        given,
        [helper.make_empty_tensor_value_info(name) for name in results],
        [numpy_helper.from_array(np.asarray(x), name) for name, x in constants.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return made.SerializeToString()


def names(form: str) -> list[str]:
    """The caches: of keys and values, and with 8 bits of their scales."""
    return ["k", "v", "ks", "vs"] if form == "int8" else ["k", "v"]


def feeds(rows: int, queries: int = 2, new: int = 1, seed: int = 0, form: str = "plain") -> dict[str, np.ndarray]:
    sizes = {"q": (queries, D), "past_k": (rows, D), "k": (new, D), "past_v": (rows, V), "v": (new, V)}
    random = np.random.default_rng(seed)
    made = {name: random.standard_normal((B, G, *size)).astype(np.float32) for name, size in sizes.items()}
    if form != "int8":
        return made
    scales = {f"{name}s": random.uniform(0.01, 0.02, (*x.shape[:3], 1)).astype(np.float32) for name, x in made.items()}
    numbers = {name: x if name == "q" else np.rint(40 * x).clip(-127, 127).astype(np.int8) for name, x in made.items()}
    return numbers | {name: x for name, x in scales.items() if name != "qs"}


def room(cache: np.ndarray, capacity: int) -> ort.OrtValue:
    """A buffer with room for more rows."""
    whole = np.full((B, G, capacity, cache.shape[3]), BEYOND, cache.dtype)
    whole[:, :, : cache.shape[2]] = cache
    return ort.OrtValue.ortvalue_from_numpy(whole)


def in_place(
    session: ort.InferenceSession, given: dict[str, np.ndarray], rooms: dict[str, ort.OrtValue], rows: object
) -> list[np.ndarray]:
    binding, run = session.io_binding(), ort.RunOptions()
    for name in ("q", *rooms):
        binding.bind_cpu_input(name, given[name])
    for name, value in rooms.items():
        binding.bind_ortvalue_input(f"past_{name}", value)
        binding.bind_ortvalue_output(f"present_{name}", value)
    others = [each.name for each in session.get_outputs()[len(rooms) :]]
    for name in others:
        binding.bind_output(name)
    run.add_run_config_entry("ep.t2rexecutionprovider.rows", str(rows))
    session.run_with_iobinding(binding, run)
    return [value.numpy() for value in binding.get_outputs() if tuple(value.shape()) not in shapes_of(rooms)]


def shapes_of(rooms: dict[str, ort.OrtValue]) -> list[tuple[int, ...]]:
    return [tuple(value.shape()) for value in rooms.values()]


@pytest.mark.parametrize("form", ["plain", "capped", "int8"])
@pytest.mark.parametrize("rows, queries, new", [(0, 1, 1), (1, 2, 1), (255, 9, 1), (256, 3, 2), (600, 17, 260)])
def test_as_onnx_runtime_computes_it(form: str, rows: int, queries: int, new: int) -> None:
    made, given = attention(form), feeds(rows, queries, new, form=form)
    for ours, theirs in zip(on_provider(made, given), on_cpu(made, given), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=3e-6)
    assert plugin.get_operations() == 2


@pytest.mark.parametrize("form, operations", [("plain", 2), ("capped", 2), ("int8", 2), ("read", 10)])
def test_caches_in_place(form: str, operations: int) -> None:
    """Step by step as with copies, bit by bit for any number of threads; rows beyond the cache are not touched."""
    made, first, capacity = attention(form), 254, 259
    plain = ort.InferenceSession(made, options(1))
    for threads in (1, 2, 3):
        session, given = ort.InferenceSession(made, options(threads)), feeds(first, form=form)
        rooms = {name: room(given[f"past_{name}"], capacity) for name in names(form)}
        for rows in range(first, capacity):
            given |= {name: value for name, value in feeds(0, seed=rows, form=form).items() if "past" not in name}
            results = plain.run(None, given)
            caches, expected = dict(zip(rooms, results, strict=False)), results[len(rooms) :]
            for ours, theirs in zip(in_place(session, given, rooms, rows), expected, strict=True):
                np.testing.assert_array_equal(ours, theirs)
            for name, cache in caches.items():
                given[f"past_{name}"] = cache
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
