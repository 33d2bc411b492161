"""A handmade tiny translator, step graph and encoder graph, and the same arithmetic in numpy.

A recurrent decoder (h starts from the source) that attends to its source by softmax and by one vector; with `cache`,
also to the mean of its read tokens. Sizes are small and all different.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper, parser

from runtime import graphs
from t2r_runtime import Signature, StateSpec
from t2r_runtime.contract.source import Source

D, TARGET, SOURCE = 7, 29, 13  # width, and the two vocabularies
STATES = (
    StateSpec("h", "float32", ("B", D)),
    StateSpec("position", "int32", ("B",)),
    StateSpec("source_k", "float32", ("B", "M", D), constant=True),
    StateSpec("source_length", "int32", ("B",), 1, constant=True),
    StateSpec("source_m", "float32", ("B", D), constant=True),
)
CACHE = StateSpec("cache", "float32", ("B", "T", D))
ENDS, BANNED, START = (2,), (0,), (3, 1)
Array = NDArray[Any]
Edit = Callable[[onnx.ModelProto], None]


def signature(cache: bool = False, **changes: Any) -> Signature:
    source = {"start_states": ("h",), "source_vocab_size": SOURCE, "source_tokenizer": None, "max_source": 12}
    source |= {"source_length": None, "start_tokens": START, "banned_tokens": BANNED}
    source |= {name: changes.pop(name) for name in [*changes] if name in source}
    values = {"states": (*STATES, *([CACHE] if cache else [])), "vocab_size": TARGET, "eos_tokens": ENDS}
    values |= {"source": Source(**source), "graphs": {"encoder": "encoder.onnx"}}
    return graphs.signature(**{**values, **changes})


def weights(seed: int = 0) -> dict[str, Array]:
    """Normal random weights; end tokens are likely."""
    random = np.random.default_rng(seed)
    shapes = {"e": (TARGET, D), "w_h": (D, D), "w_o": (D, TARGET), "e_s": (SOURCE, D), "w_s": (D, D)}
    made = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    ends = np.isin(np.arange(TARGET), ENDS)
    return {**made, "w_o": made["w_o"] / 2, "b_o": np.where(ends, 2, 0).astype(np.float32)}


class Eager:
    """The graphs' arithmetic in numpy, independent of them."""

    def __init__(self, seed: int = 0, cache: bool = False, ends: tuple[int, ...] = ENDS) -> None:
        self.w, self.cache, self.ends = weights(seed), cache, ends

    def encode(self, ids: Array, lengths: Array) -> dict[str, Array]:
        inside = (np.arange(ids.shape[1]) < lengths[:, None])[..., None]
        k = np.where(inside, self.w["e_s"][ids], np.float32(0))
        h = np.tanh(k.sum(axis=1) @ self.w["w_s"])
        m = k.sum(axis=1) / lengths[:, None].astype(np.float32)
        states = {"h": h, "position": np.zeros(len(ids), np.int32), "source_k": k}
        states |= {"source_length": lengths.astype(np.int32), "source_m": m}
        return states | ({"cache": np.zeros((len(ids), 0, D), np.float32)} if self.cache else {})

    def step(self, states: dict[str, Array], ids: Array) -> tuple[Array, dict[str, Array]]:
        x = self.w["e"][ids] + states["source_m"]
        h = np.tanh(states["h"] @ self.w["w_h"] + x)
        scores = np.einsum("bd,bmd->bm", h, states["source_k"])
        inside = np.arange(scores.shape[1]) < states["source_length"][:, None]
        attention = np.where(inside, np.exp(scores), 0)
        attention = attention / attention.sum(axis=1, keepdims=True)
        out = h + np.einsum("bm,bmd->bd", attention, states["source_k"])
        after = {**states, "h": h, "position": states["position"] + np.int32(1)}
        if self.cache:
            after["cache"] = np.concatenate([states["cache"], x[:, None]], axis=1)
            out = out + after["cache"].mean(axis=1)
        return (out @ self.w["w_o"] + self.w["b_o"]).astype(np.float32), after


STEP = """
step (int64[B] input_ids, float[B, 7] past_h, int32[B] past_position, float[B, M, 7] source_k,
      int32[B] source_length, float[B, 7] source_m%(cache_in)s) =>
     (float[B, 29] logits, float[B, 7] present_h, int32[B] present_position%(cache_out)s%(top_out)s)
<int32 one = {1}, int64[1] last = {-1}, int64[1] first = {1}, int64[1] k = {%(top_k)d},
 int64 zero = {0}, int64 step = {1}, float low = {-1e9}> {
    token = Gather(e, input_ids)
    x = Add(token, source_m)
    turned = MatMul(past_h, w_h)
    sum = Add(turned, x)
    present_h = Tanh(sum)
    present_position = Add(past_position, one)
    column = Unsqueeze(present_h, last)
    products = MatMul(source_k, column)
    scores = Squeeze(products, last)
    shape = Shape(scores)
    m = Gather(shape, one)
    places = Range(zero, m, step)
    lengths = Cast <to = 7> (source_length)
    ends = Unsqueeze(lengths, first)
    inside = Less(places, ends)
    masked = Where(inside, scores, low)
    weights = Softmax <axis = 1> (masked)
    row = Unsqueeze(weights, first)
    read = MatMul(row, source_k)
    context = Squeeze(read, first)
    seen = Add(present_h, context)
    %(cache)s
    projected = MatMul(out, w_o)
    logits = Add(projected, b_o)
    %(top)s
}"""
CACHED = """newest = Unsqueeze(x, first)
    present_cache = Concat <axis = 1> (past_cache, newest)
    mean = ReduceMean <keepdims = 0> (present_cache, first)
    out = Add(seen, mean)"""
TOP = """top_logits, top_tokens = TopK(logits, k)
    log_sum = ReduceLogSumExp <keepdims = 0> (logits, last)"""
ENCODER = """
encoder (int64[B, M] source_ids, int64[B] source_lengths) =>
        (float[B, M, 7] source_k, int32[B] source_length, float[B, 7] source_m, float[B, 7] present_h)
<int64 one = {1}, int64[1] last = {-1}, int64[1] first = {1}, int64 zero = {0}, float nothing = {0}> {
    source_length = Cast <to = 6> (source_lengths)
    shape = Shape(source_ids)
    m = Gather(shape, one)
    places = Range(zero, m, one)
    ends = Unsqueeze(source_lengths, first)
    inside = Less(places, ends)
    mask = Unsqueeze(inside, last)
    embedded = Gather(e_s, source_ids)
    source_k = Where(mask, embedded, nothing)
    sum = ReduceSum <keepdims = 0> (source_k, first)
    counts = Cast <to = 1> (ends)
    source_m = Div(sum, counts)
    mixed = MatMul(sum, w_s)
    present_h = Tanh(mixed)
}"""


def step_model(seed: int = 0, cache: bool = False, **changes: Any) -> onnx.ModelProto:
    sig = signature(cache, **changes)
    fields = {"cache_in": ", float[B, T, 7] past_cache", "cache_out": ", float[B, U, 7] present_cache", "cache": CACHED}
    if not cache:
        fields = {"cache_in": "", "cache_out": "", "cache": "out = Identity(seen)"}
    fields |= {"top": "", "top_out": ""}
    if sig.top_k is not None:
        k = sig.top_k
        fields |= {"top": TOP, "top_out": f", float[B, {k}] top_logits, int64[B, {k}] top_tokens, float[B] log_sum"}
    return _made(STEP % {**fields, "top_k": sig.top_k or 1}, sig, seed)


def encoder_model(seed: int = 0, cache: bool = False, **changes: Any) -> onnx.ModelProto:
    return _made(ENCODER, signature(cache, **changes).companion("encoder"), seed)


def _made(text: str, sig: Signature, seed: int) -> onnx.ModelProto:
    graph = parser.parse_graph(text.replace("[B", f"[{sig.batch or 'B'}"))
    known = {value.name for value in (*graph.input, *graph.output)} | weights(seed).keys()
    for node in graph.node:  # names distinct from those of an enclosing graph
        for names in (node.input, node.output):
            names[:] = [name if name in known else f"t.{name}" for name in names]
    for tensor in graph.initializer:
        tensor.name = f"t.{tensor.name}"
    used = {name for node in graph.node for name in node.input}
    graph.initializer.extend(numpy_helper.from_array(w, name) for name, w in weights(seed).items() if name in used)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    helper.set_model_props(made, sig.to_metadata())
    return made


def save(folder: Path, seed: int = 0, cache: bool = False, edit: Edit | None = None, **changes: Any) -> Path:
    """Write both graphs into a folder → the step graph's path. `edit` may change the encoder's."""
    step = step_model(seed, cache, **changes)
    encoder = encoder_model(seed, cache, **changes)
    if edit is not None:
        edit(encoder)
    folder.mkdir(exist_ok=True)
    (folder / "encoder.onnx").write_bytes(encoder.SerializeToString())
    (folder / "step.onnx").write_bytes(step.SerializeToString())
    return folder / "step.onnx"


def padded(sources: Sequence[Sequence[int]]) -> tuple[Array, Array]:
    """Padded sources and their lengths; padding must not affect translations."""
    lengths = np.array([len(source) for source in sources])
    ids = np.full((len(sources), lengths.max()), SOURCE - 1)
    for row, source in zip(ids, sources, strict=True):
        row[: len(source)] = source
    return ids, lengths
