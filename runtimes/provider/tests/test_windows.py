"""Windows of stored rows: one operation scores their rows, another sums them; separate nodes compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime_ep_t2r as plugin
import pytest
from differential import compared
from one_node import on_provider, same_results, several
from onnx import ModelProto, NodeProto, TensorProto, helper

MASKED = -1e9


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def shifted(name: str) -> list[NodeProto]:
    return [
        node("Split", f"past_{name} row", f"old_{name} rest_{name}", axis=2),
        node("Concat", f"rest_{name} {name}", f"present_{name}", axis=2),
    ]


def rows(name: str, bits: int, whole: str) -> list[NodeProto]:
    """A window and its new row, as they are stored → the window as it is read, `whole`."""
    if bits == 32:
        first, second = shifted(name)
        second.output[0] = whole
        return [first, second]
    return [
        *shifted(name),
        *shifted(f"{name}_scale"),
        node("Cast", f"present_{name}", f"wide_{name}", to=TensorProto.FLOAT),
        node("Mul", f"wide_{name} present_{name}_scale", whole),
    ]


def attention(bits: int, rotates: bool, sinks: int) -> list[NodeProto]:
    """q (B, G, R, D), windows of k and v, bias (B, 1, 1, sinks + W) → y (B, G, R, V).

    With sinks, their scores and values are given.
    """
    keys, scores = "present_k" if bits == 32 else "keys", "joined" if sinks else "s"
    turned = [
        node("Split", f"{keys} halves", "left right", axis=3),
        node("Mul", f"{keys} same", "kept"),
        node("Concat", "right left", "exchanged", axis=3),
        node("Mul", "exchanged other", "more"),
        node("Add", "kept more", "rotated"),
    ]
    values = "present_v" if bits == 32 else "values"
    return [
        *rows("k", bits, keys),
        *rows("v", bits, values),
        *(turned if rotates else []),
        node("Transpose", "rotated" if rotates else keys, "turned", perm=[0, 1, 3, 2]),
        node("MatMul", "q turned", "s"),
        *([node("Concat", "sink_s s", "joined", axis=3)] if sinks else []),
        node("Add", f"{scores} bias", "biased"),
        node("Softmax", "biased", "weights", axis=-1),
        *([node("Split", "weights parts", "of_sinks of_window", axis=3)] if sinks else []),
        *([node("MatMul", "of_sinks sink_v", "y_sinks")] if sinks else []),
        node("MatMul", f"{'of_window' if sinks else 'weights'} {values}", "y_window" if sinks else "y"),
        *([node("Add", "y_sinks y_window", "y")] if sinks else []),
    ]


def given(
    bits: int, sinks: int, batch: int, heads: int, queries: int, window: int, size: int, width: int, empty: int = 0
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Inputs and constants; of the rows, the first `empty` are zeros."""
    random = np.random.default_rng(window + size)

    def normal(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    feeds = {"q": normal(batch, heads, queries, size) / 8, "bias": np.zeros((batch, 1, 1, sinks + window), np.float32)}
    feeds["bias"][..., sinks : sinks + empty - 1] = MASKED
    for name, last in (("k", size), ("v", width)):
        for part, count in ((f"past_{name}", window), (name, 1)):
            numbers = random.integers(-127, 128, (batch, heads, count, last)).astype(np.int8)
            feeds[part] = numbers if bits == 8 else normal(batch, heads, count, last)
            if bits == 8:
                feeds[f"{part}_scale"] = np.abs(normal(batch, heads, count, 1)) / 127
        for part in (f"past_{name}", f"past_{name}_scale"):
            if part in feeds:
                feeds[part][:, :, :empty] = 0
    constants = {"row": np.array([1, window - 1]), "halves": np.array([size // 2, size - size // 2])}
    constants |= {"same": normal(1, 1, window, size), "other": normal(1, 1, window, size)}
    if sinks:
        feeds |= {"sink_s": normal(batch, heads, queries, sinks), "sink_v": normal(batch, heads, sinks, width)}
        constants["parts"] = np.array([sinks, window])
    return feeds, constants


def model(nodes: list[NodeProto], feeds: dict[str, np.ndarray], constants: dict[str, np.ndarray]) -> bytes:
    used = {name for each in nodes for name in each.input}
    made = helper.make_model(helper.make_graph([], "", [], []))
    made.ParseFromString(several(nodes, feeds, {name: x for name, x in constants.items() if name in used}))
    names = [output for each in nodes for output in each.output if output.startswith("present_")]
    made.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    whole: bytes = made.SerializeToString()
    return whole


SIZES = [  # batch, heads, queries, window, size, width
    (1, 3, 3, 37, 64, 64),
    (2, 1, 1, 2, 6, 5),
    (1, 2, 9, 33, 20, 7),
    (3, 2, 4, 64, 34, 33),
    (2, 3, 5, 130, 128, 71),
]


@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("rotates", [True, False])
@pytest.mark.parametrize("sinks", [0, 4])
@pytest.mark.parametrize("sizes", SIZES)
def test_as_onnx_runtime_computes_it(bits: int, rotates: bool, sinks: int, sizes: tuple[int, ...]) -> None:
    for empty in (0, 1, sizes[3]):  # in the first step, no row is there yet
        feeds, constants = given(bits, sinks, *sizes, empty=empty)
        same_results(model(attention(bits, rotates, sinks), feeds, constants), feeds, bound=1e-5)
        # scores, bias, softmax and sum; with sinks, four copies, a product and a sum
        assert plugin.get_operations() == (10 if sinks else 4)


@pytest.mark.parametrize("bits", [8, 32])
def test_the_number_of_threads_changes_nothing(bits: int) -> None:
    feeds, constants = given(bits, 4, 2, 3, 3, 200, 64, 96)
    made = model(attention(bits, True, 4), feeds, constants)
    one, *others = (on_provider(made, feeds, threads) for threads in (1, 2, 3, 5))
    for other in others:
        for ours, theirs in zip(other, one, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("bits", [8, 32])
def test_others_stay_separate(bits: int) -> None:
    """More rows than one, a rotation of other parts or of all rows alike, and a cache that another node reads."""
    feeds, constants = given(bits, 0, 2, 3, 3, 9, 12, 8)
    two = {name: np.concatenate([x, x], 2) if name[0] in "kv" else x for name, x in feeds.items()}
    nodes = attention(bits, True, 0)
    of_two = constants | {"row": np.array([2, 7])}
    alike = constants | {"same": constants["same"][:, :, :1], "other": constants["other"][:, :, :1]}
    for x, fixed in ((two, of_two), (feeds, alike)):
        same_results(model(nodes, x, fixed), x, bound=1e-5)
        assert plugin.get_operations() > 4
    read = [*nodes[:-1], node("ReduceMax", "present_v axes", "extra", keepdims=1), nodes[-1]]
    if bits == 8:
        read[-2].input[0] = "present_v_scale"
    same_results(model(read, feeds, constants | {"axes": np.array([2])}), feeds, bound=1e-5)
    assert plugin.get_operations() > 5


def changed(bits: int, name: str) -> tuple[list[NodeProto], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Attention to a window that differs in one thing: nodes, inputs and constants."""
    nodes = attention(bits, True, 0)
    feeds, constants = given(bits, 0, 2, 3, 3, 8, 7 if name == "odd rows" else 6, 6)
    halves = [each for each in nodes if each.input[-1] in ("halves", "left")]  # the split, and the join after it
    parts = {"one sequence": np.s_[:1], "one head": np.s_[:, :1]}
    if name.startswith("scales of "):
        for part in ("past_k_scale", "k_scale"):
            scale = feeds[part]
            feeds[part] = scale.repeat(6, 3) if name == "scales of numbers" else scale[parts[name[10:]]]
    elif name.startswith("queries of "):
        feeds["q"] = feeds["q"][parts[name[11:]]]
    elif name.startswith("keys of "):
        feeds |= {part: x[parts[name[8:]]] for part, x in feeds.items() if "v" not in part}
    elif name == "queries of all":
        feeds["q"] = feeds["q"][0]
    elif name == "two new rows":
        feeds |= {part: np.concatenate([x, x], 2) for part, x in feeds.items() if part[0] in "kv"}
        feeds["bias"] = np.zeros((2, 1, 1, 9), np.float32)
        constants |= {part: np.concatenate([x, x[:, :, :1]], 2) for part, x in constants.items() if x.ndim == 4}
    elif name == "unequal halves":
        constants["halves"] = np.array([2, 4])
    elif name in ("halves of the rows", "halves by the last axis"):
        constants["halves"] = np.array([4, 4]) if name == "halves of the rows" else constants["halves"]
        for each in halves:
            each.attribute[0].i = 2 if name == "halves of the rows" else -1
    elif name == "a factor for all rows":
        constants["same"] = constants["same"][0, 0, 0]
    return nodes, feeds, constants


@pytest.mark.parametrize(
    "bits, name",
    [
        *((8, f"scales of {what}") for what in ("one sequence", "one head", "numbers")),
        *(
            (bits, f"{of} of one {what}")
            for bits in (8, 32)
            for of in ("queries", "keys")
            for what in ("sequence", "head")
        ),
        *((32, name) for name in ("two new rows", "odd rows", "unequal halves", "halves of the rows")),
        (8, "a factor for all rows"),
    ],
)
def test_what_is_almost_a_window(bits: int, name: str) -> None:
    nodes, feeds, constants = changed(bits, name)
    made = ModelProto.FromString(model(nodes, feeds, constants))
    assert compared(made, feeds, 1e-5) == "equal", plugin.get_refusal()
    assert plugin.get_operations() > 4


def test_halves_by_the_last_axis() -> None:
    """Its number, or -1."""
    nodes, feeds, constants = changed(8, "halves by the last axis")
    same_results(model(nodes, feeds, constants), feeds, bound=1e-5)
    assert plugin.get_operations() == 4
