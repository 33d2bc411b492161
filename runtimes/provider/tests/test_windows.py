"""Windows of stored rows: one operation scores their rows, another sums them; separate nodes compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import onnxruntime_ep_t2r as plugin
import pytest
from differential import compared
from one_node import on_provider, options, same_results, several
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


class InPlace:
    """Windows of a model in one buffer each, which a run reads and turns."""

    def __init__(self, made: bytes, feeds: dict[str, np.ndarray], threads: int) -> None:
        self.session = ort.InferenceSession(made, options(threads))
        past = (name for name in feeds if name.startswith("past_"))
        self.windows = {name[5:]: ort.OrtValue.ortvalue_from_numpy(feeds[name].copy()) for name in past}

    def step(self, feeds: dict[str, np.ndarray], turned: object, apart: str = "") -> dict[str, np.ndarray]:
        """The results besides the windows; of the window `apart`, input and output are two buffers."""
        binding, run = self.session.io_binding(), ort.RunOptions()
        for name, x in feeds.items():
            if not name.startswith("past_"):
                binding.bind_cpu_input(name, x)
        for name, window in self.windows.items():
            binding.bind_ortvalue_input(f"past_{name}", window)
            other = ort.OrtValue.ortvalue_from_numpy(window.numpy().copy()) if name == apart else window
            binding.bind_ortvalue_output(f"present_{name}", other)
        others = [each.name for each in self.session.get_outputs() if each.name[8:] not in self.windows]
        for name in others:
            binding.bind_output(name)
        run.add_run_config_entry("ep.t2rexecutionprovider.windows", str(turned))
        self.session.run_with_iobinding(binding, run)
        bound = binding.get_outputs()[len(self.windows) :]
        return {name: value.numpy() for name, value in zip(others, bound, strict=True)}

    def ordered(self, turned: int) -> dict[str, np.ndarray]:
        """The windows as they are without this option: from the oldest row on."""
        return {f"past_{name}": np.roll(window.numpy(), -turned, axis=2) for name, window in self.windows.items()}


def next_rows(feeds: dict[str, np.ndarray], step: int) -> dict[str, np.ndarray]:
    """Other queries and new rows."""
    return {
        name: x if name.startswith("past_") else np.roll(x, step + 1, axis=3).copy() if name != "bias" else x
        for name, x in feeds.items()
    }


@pytest.mark.parametrize("bits", [8, 32])
@pytest.mark.parametrize("rotates, sinks", [(True, 4), (False, 0)])
@pytest.mark.parametrize("sizes", SIZES[:3])
def test_windows_in_place(bits: int, rotates: bool, sinks: int, sizes: tuple[int, ...]) -> None:
    """Step by step as those that move, bit by bit for any number of threads, for more steps than a window has rows."""
    feeds, constants = given(bits, sinks, *sizes)
    made = model(attention(bits, rotates, sinks), feeds, constants)
    plain = ort.InferenceSession(made, options(1))
    names = [each.name for each in plain.get_outputs()]
    for threads, first in ((1, 0), (2, 5), (3, 0)):  # a count of tokens need not begin with 0
        ours, now = InPlace(made, feeds, threads), dict(feeds)
        for name, window in ours.windows.items():
            window.update_inplace(np.roll(feeds[f"past_{name}"], first, axis=2))
        for turned in range(first, first + 2 * sizes[3] + 3):
            now = next_rows(now, turned)
            expected = dict(zip(names, plain.run(None, now), strict=True))
            for name, y in ours.step(now, turned).items():
                np.testing.assert_array_equal(y, expected[name])
            now |= {f"past_{name}": expected[f"present_{name}"] for name in ours.windows}
            for name, window in ours.ordered(turned + 1).items():
                np.testing.assert_array_equal(window, now[name])
        assert plugin.get_operations() == (10 if sinks else 4)


@pytest.mark.parametrize("bits", [8, 32])
def test_the_oldest_row_of_a_window_in_place(bits: int) -> None:
    """Other nodes read the row that leaves, as the linear half of a hybrid layer does."""
    feeds, constants = given(bits, 0, 2, 3, 2, 5, 6, 7)
    nodes = [*attention(bits, True, 0)[:-1], node("Identity", "old_k", "extra"), attention(bits, True, 0)[-1]]
    made = model(nodes, feeds, constants)
    plain, ours, now = ort.InferenceSession(made, options(1)), InPlace(made, feeds, 2), dict(feeds)
    names = [each.name for each in plain.get_outputs()]
    for turned in range(13):
        now = next_rows(now, turned)
        expected = dict(zip(names, plain.run(None, now), strict=True))
        for name, y in ours.step(now, turned).items():
            np.testing.assert_array_equal(y, expected[name])
        now |= {f"past_{name}": expected[f"present_{name}"] for name in ours.windows}


def test_a_run_that_fails_leaves_windows_as_they_are() -> None:
    feeds, constants = given(8, 0, 2, 3, 2, 5, 6, 7)
    last = attention(8, True, 0)[-1]
    nodes = [*attention(8, True, 0)[:-1], node("Gather", "table place", "extra"), last]
    feeds["place"] = np.array([1])
    ours = InPlace(model(nodes, feeds, constants | {"table": np.ones(3, np.float32)}), feeds, 2)
    ours.step(feeds, 3)
    before = ours.ordered(4)
    with pytest.raises(Exception, match="expected numbers that the operators take"):
        ours.step(feeds | {"place": np.array([3])}, 4)
    for name, window in ours.ordered(4).items():
        np.testing.assert_array_equal(window, before[name])


def test_windows_that_cannot_be_in_place() -> None:
    """One of two buffers, one that another node reads, and counts that are none."""
    feeds, constants = given(32, 0, 2, 3, 2, 5, 6, 7)
    made = model(attention(32, True, 0), feeds, constants)
    with pytest.raises(Exception, match="one buffer as input and output of a window"):
        InPlace(made, feeds, 1).step(feeds, 0, apart="v")
    for turned in ("-1", "two", "", str(1 << 63)):
        with pytest.raises(Exception, match="expected a number of windows from 0"):
            InPlace(made, feeds, 1).step(feeds, turned)
    nodes = attention(32, True, 0)
    read = [*nodes[:-1], node("ReduceMax", "present_v axes", "extra", keepdims=1), nodes[-1]]
    read_too = model(read, feeds, constants | {"axes": np.array([2])})
    with pytest.raises(Exception, match="two buffers for a state that is no window"):
        InPlace(read_too, feeds, 1).step(feeds, 0)
