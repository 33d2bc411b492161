"""Handmade tiny step graphs and the same arithmetic in numpy: runtime tests need no exporter.

Sizes are small and all different: B = 2 (where fixed), G = 3, K = 5, V = 4, D = 7, vocabulary 11.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from t2r_runtime.contract.sampling import Sampling
from t2r_runtime.contract.signature import INPUT_IDS, LOG_SUM, LOGITS, TOP_LOGITS, TOP_TOKENS, Signature
from t2r_runtime.contract.source import Source
from t2r_runtime.contract.state_spec import StateSpec

G, K, V, D, VOCABULARY = 3, 5, 4, 7, 11
EPS = 0.01
# kinds of states: constant shape, growing, both, constant shape with a learned table of 9 positions, and with a state
# that no step changes
KINDS = ("constant", "growing", "both", "table", "source")
ELEMENTS = {"float32": TensorProto.FLOAT, "int32": TensorProto.INT32, "int64": TensorProto.INT64}

TOP = ((TOP_LOGITS, "float32"), (TOP_TOKENS, "int64"))
Array = NDArray[Any]
S = StateSpec("S.0", "float32", ("B", G, K, V))
Z = StateSpec("z.0", "float32", ("B", G, K))
CACHE = StateSpec("cache.1", "float32", ("B", "T", D))
POSITION = StateSpec("position", "int32", ("B",))
SOURCE = StateSpec("source_m", "float32", ("B", D), 0.25, constant=True)
TRANSLATES = Source((), 11, None, 8, None, (1,), (0,))
GREEDY = Sampling(temperature=0, stop_tokens=())


def states(kind: str) -> tuple[StateSpec, ...]:
    if kind == "growing":
        return (CACHE,)
    if kind == "silent":  # no state holds the position
        return (S, Z)
    return (S, Z, POSITION, *({"both": (CACHE,), "source": (SOURCE,)}.get(kind, ())))


def signature(kind: str = "constant", **changes: Any) -> Signature:
    plain = Signature(
        states=states(kind),
        vocab_size=VOCABULARY,
        bos_token=1,
        eos_tokens=(2,),
        batch=None,
        max_positions=9 if kind == "table" else None,
        past_end="refuse",
        state_layout="layers",
        layers=({"kind": "linear"},),
        target="portable",
        quantization="none",
        checkpoint_sha256="c0ffee" * 10 + "beef",
        producer="tests 1",
        tokenizer=None,
        top_k=None,
        role="step",
        graphs={},
        source=TRANSLATES if kind == "source" else None,
    )
    return dataclasses.replace(plain, **changes)


def weights(seed: int = 0) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    shapes = {
        "embedding": (VOCABULARY, D),
        "positions": (9, D),
        "w_q": (D, G * K),
        "w_k": (D, G * K),
        "w_v": (D, G * V),
        "w_o": (G * V, VOCABULARY),
        "w_c": (D, VOCABULARY),
    }
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


class Eager:
    """The graph's arithmetic in numpy, independent of it: `step` updates `states` and returns the logits."""

    def __init__(self, kind: str, batch: int, seed: int = 0) -> None:
        self.kind, self.w = kind, weights(seed)
        self.states: dict[str, Array] = {
            spec.name: np.full(spec.dims(batch), spec.initial, spec.dtype) for spec in states(kind)
        }

    def step(self, ids: Sequence[int]) -> Array:
        w, state = self.w, self.states
        x = w["embedding"][np.asarray(ids)]  # (B, D)
        if self.kind == "table":
            x = x + w["positions"][state["position"]]
        if self.kind == "source":
            x = x + state["source_m"]
        logits = np.zeros((len(x), VOCABULARY), np.float32)
        if "S.0" in state:
            q = np.maximum(x @ w["w_q"], 0).reshape(-1, G, K)
            k = np.maximum(x @ w["w_k"], 0).reshape(-1, G, K)
            v = (x @ w["w_v"]).reshape(-1, G, V)
            state["S.0"] = state["S.0"] + np.einsum("bgk,bgv->bgkv", k, v)
            state["z.0"] = state["z.0"] + k
            state["position"] = state["position"] + np.int32(1)
            above, below = np.einsum("bgk,bgkv->bgv", q, state["S.0"]), np.einsum("bgk,bgk->bg", q, state["z.0"])
            logits = logits + (above / np.maximum(below, EPS)[..., None]).reshape(len(x), -1) @ w["w_o"]
        if "cache.1" in state:
            state["cache.1"] = np.concatenate([state["cache.1"], x[:, None]], axis=1)
            logits = logits + state["cache.1"].mean(axis=1) @ w["w_c"]
        return logits


def model(kind: str = "constant", seed: int = 0, **changes: Any) -> onnx.ModelProto:
    """A step graph with metadata; `changes` are fields of its signature."""
    sig = signature(kind, **changes)
    nodes: list[onnx.NodeProto] = []
    shapes = {"shape_k": (-1, G, K), "shape_v": (-1, G, V), "shape_o": (-1, G * V), "axis_1": (1,), "axis_last": (-1,)}
    constants = weights(seed) | {name: np.array(shape, np.int64) for name, shape in shapes.items()}
    constants |= {"eps": np.array(EPS, np.float32), "one": np.array(1, np.int32)}

    def op(kind: str, inputs: str, output: str, **attributes: Any) -> None:
        nodes.append(helper.make_node(kind, inputs.split(), [output], **attributes))

    op("Gather", "embedding input_ids", "x")
    if kind == "table":
        op("Gather", "positions past_position", "place")
        op("Add", "x place", "placed")
    if kind == "source":
        op("Add", "x source_m", "placed")
    x = "placed" if kind in ("table", "source") else "x"
    parts = []
    if kind != "growing":
        _linear(op, x)
        if kind != "silent":
            op("Add", "past_position one", "present_position")
        parts.append("linear")
    if kind in ("growing", "both"):
        op("Unsqueeze", "x axis_1", "newest")
        op("Concat", "past_cache.1 newest", "present_cache.1", axis=1)
        op("ReduceMean", "present_cache.1 axis_1", "mean", keepdims=0)
        op("MatMul", "mean w_c", "cached")
        parts.append("cached")
    op("Sum", " ".join(parts), LOGITS)
    if sig.top_k is not None:
        constants["top_k"] = np.array([sig.top_k], np.int64)
        nodes.append(helper.make_node("TopK", [LOGITS, "top_k"], [TOP_LOGITS, TOP_TOKENS]))
    if sig.has_log_sum:
        op("ReduceLogSumExp", f"{LOGITS} axis_last", LOG_SUM, keepdims=0)
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "step",
        [_value(INPUT_IDS, "int64", ("B",), sig), *(_value(s.past, s.dtype, s.shape, sig) for s in sig.states)],
        [
            _value(LOGITS, "float32", ("B", VOCABULARY), sig),
            *(_value(name, dtype, ("B", sig.top_k), sig) for name, dtype in TOP if sig.top_k is not None),
            *(_value(name, "float32", ("B",), sig) for name in (LOG_SUM,) if sig.has_log_sum),
            *(_value(s.present, s.dtype, ["grown" if d == "T" else d for d in s.shape], sig) for s in sig.chained),
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items() if name in used],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    helper.set_model_props(made, sig.to_metadata())
    return made


def _linear(op: Callable[..., None], x: str) -> None:
    for name, shape in (("q", "shape_k"), ("k", "shape_k"), ("v", "shape_v")):
        op("MatMul", f"{x} w_{name}", f"{name}_flat")
        op("Reshape", f"{name}_flat {shape}", f"{name}_heads")
    op("Relu", "q_heads", "q")
    op("Relu", "k_heads", "k")
    op("Einsum", "k v_heads", "outer", equation="bgk,bgv->bgkv")
    op("Add", "past_S.0 outer", "present_S.0")
    op("Add", "past_z.0 k", "present_z.0")
    op("Einsum", "q present_S.0", "above", equation="bgk,bgkv->bgv")
    op("Einsum", "q present_z.0", "below", equation="bgk,bgk->bg")
    op("Max", "below eps", "guarded")
    op("Unsqueeze", "guarded axis_last", "divisor")
    op("Div", "above divisor", "out")
    op("Reshape", "out shape_o", "out_flat")
    op("MatMul", "out_flat w_o", "linear")


def _value(name: str, dtype: str, shape: Sequence[int | str], sig: Signature) -> onnx.ValueInfoProto:
    dims = [sig.batch if d == "B" and sig.batch else d for d in shape]
    return helper.make_tensor_value_info(name, ELEMENTS[dtype], dims)


def save(
    path: Path, kind: str = "constant", edit: Callable[[onnx.ModelProto], None] | None = None, **changes: Any
) -> Path:
    """Write a step graph after applying `edit`."""
    made = model(kind, **changes)
    if edit is not None:
        edit(made)
    path.write_bytes(made.SerializeToString())
    return path


def metadata(made: onnx.ModelProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in made.metadata_props}


def random_states(kind: str, batch: int, length: int = 3, seed: int = 1) -> dict[str, Array]:
    """Positive random states, as sums of features are, at position `length`."""
    random = np.random.default_rng(seed)
    made = {s.name: random.uniform(0.1, 1, s.dims(batch, length)).astype(s.dtype) for s in states(kind)}
    if "position" in made:
        made["position"] = np.full(batch, length, np.int32)
    return made
