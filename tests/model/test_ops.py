"""The two sets of operators are one: the same methods, and the graph that one records computes what the other does."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from torch import Tensor, nn

from small import FFN, WIDTH, B, G, H, K, T, V
from t2r_export.config.mixers import Guard
from t2r_export.config.targets import TARGETS
from t2r_export.graph.portable import GraphOps
from t2r_export.graph.recorder import Dim, Recorder, Value, product, value_info
from t2r_export.graph.targets import FusedOps
from t2r_export.graph.weights import array
from t2r_export.model import torch_ops
from t2r_export.model.ops import Erase, Experts, Ops
from t2r_export.model.torch_ops import TorchOps

P = 9  # tokens that came before, in a cache
LETTERS = {"B": B, "T": T, "P": P, "N4": 2, "N7": 1, "N10": 1, "N64": 1}  # Nn: chunks of n that T tokens fill

Build = Callable[[Any, "Weights", list[Any]], Any]


class Weights(nn.Module):
    """Something for operators to take parameters from."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for name, shape in {"table": (9, WIDTH), "weight": (FFN, WIDTH), "bias": (FFN,), "scale": (WIDTH,)}.items():
            setattr(self, name, nn.Parameter(torch.randn(shape, generator=generator)))
        self.shift = nn.Parameter(torch.randn(WIDTH, generator=generator))
        self.layers = nn.ModuleDict({name: nn.Linear(WIDTH, size) for name, size in {"a": 3, "b": 4, "c": 5}.items()})
        self.bare = nn.ModuleDict({name: nn.Linear(WIDTH, size, bias=False) for name, size in {"a": 3, "b": 4}.items()})
        for name, shape in {"pairs": (5, 6, WIDTH), "up": (5, 3, WIDTH), "down": (5, WIDTH, 3)}.items():  # of experts
            setattr(self, name, nn.Parameter(torch.randn(shape, generator=generator)))
        self.lstm, self.gru = nn.LSTM(WIDTH, WIDTH), nn.GRU(WIDTH, WIDTH)


WEIGHTS = Weights()


pytestmark = pytest.mark.usefixtures("newest_opset")


def listed(result: Any) -> list[Any]:
    """What an operator gave: one tensor, or several of which some may be None."""
    return [x for x in (result if isinstance(result, list | tuple) else [result]) if x is not None]


def form(x: Tensor, batch: Dim, many: bool) -> tuple[Dim, ...]:
    """The shape of x with letters for what a graph does not know: sizes are all different, so they tell."""
    if x.ndim == 0:
        return ()
    first = {B: batch, B * T: product([batch, "T"])}.get(x.shape[0], x.shape[0])
    return (first, *({T: "T", P: "P"}.get(d, d) if many else d for d in x.shape[1:]))


def run(
    build: Build, inputs: Sequence[Tensor], many: bool = False, target: str = "portable", letter: bool = True
) -> list[tuple[Value, np.ndarray]]:
    """Record `build` over graph inputs of the tensors' forms, run it in ONNX Runtime on the tensors."""
    batch: Dim = "B" if letter else B
    ops = TARGETS[target].ops(WEIGHTS, batch, "T" if many else None)
    values = [Value(f"in{i}", str(x.dtype).removeprefix("torch."), form(x, batch, many)) for i, x in enumerate(inputs)]
    given, feeds = list(values), [*inputs]
    if many:  # a graph knows how many tokens there are from their embeddings
        given.append(Value("embeddings", "float32", (batch, "T", 1)))
        feeds.append(torch.zeros(B, T, 1))
        ops.flatten_tokens(given[-1])
    outputs = [ops.settled(value) for value in listed(build(ops, WEIGHTS, values))]
    graph = helper.make_graph(
        ops.nodes,
        "test",
        [value_info(v) for v in given],
        [value_info(v) for v in outputs],
        [
            *ops.constants.values(),
            *(onnx.numpy_helper.from_array(array(w), n) for n, w in ops.weights.items()),
        ],
    )
    opsets = [helper.make_opsetid(*pair) for pair in TARGETS[target].opsets.items()]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=TARGETS[target].ir_version)
    onnx.checker.check_model(model, full_check=True)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    got = session.run([v.name for v in outputs], {v.name: x.numpy() for v, x in zip(given, feeds, strict=True)})
    return list(zip(outputs, got, strict=True))


@torch.no_grad()
def compare(build: Build, *inputs: Tensor, many: bool = False, target: str = "portable") -> None:
    """Values, dtypes and the shapes that the recorder wrote down, with a free batch and with a fixed one."""
    expected = listed(build(TorchOps(T if many else None, WEIGHTS.weight), WEIGHTS, list(inputs)))
    for letter in (True, False):
        received = run(build, inputs, many, target, letter)
        for wanted, (value, got) in zip(expected, received, strict=True):
            assert str(wanted.dtype) == f"torch.{value.dtype}" == f"torch.{got.dtype}"
            recorded = [eval(d, {}, LETTERS) if isinstance(d, str) else d for d in value.shape]
            assert list(got.shape) == list(wanted.shape) == recorded
            np.testing.assert_allclose(got, wanted.numpy(), rtol=2e-5, atol=2e-6)


def floats(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


IDS = torch.tensor([3, 8])
PLACES = torch.tensor([0, 70], dtype=torch.int32)
X = floats(B, WIDTH)
Y = floats(B, 3, 5, 4)
Z = floats(B, 3, 4, 6, seed=1)
TURNING = [0.5 * floats(WIDTH, seed=1).tanh(), floats(B, WIDTH, seed=2)]  # a factor of complex numbers, and a state
CLAMP, ADD = Guard("clamp", 0.25), Guard("add", 0.25)
STATE = [floats(B, G, K, V, seed=3), floats(B, G, K, seed=4)]


def heads(tokens: int) -> list[Tensor]:
    """q, k, v, S, z, a gate and a rate of that many tokens."""
    q, k, v = (floats(B, n, tokens, size, seed=n) for n, size in ((H, K), (G, K), (G, V)))
    k = nn.functional.normalize(k, dim=-1)  # longer ones would let a delta rule grow
    return [q, k, v, *STATE, -floats(B, G, tokens, 1, seed=5).abs(), floats(B, G, tokens, 1, seed=6).sigmoid()]


def erased(ops: Any, x: list[Any], many: bool = False) -> Any:
    """Linear attention with an erase vector of its own, of a log gate a key channel and H heads that share G keys."""
    attend = ops.linear_attention_chunks if many else ops.linear_attention
    return attend(*x[:4], None, x[4], None, Erase(*x[5:]))


def by_channel(tokens: int, keys: int) -> list[Tensor]:
    """q, k, v, S, log gates, read and write of that many tokens, H heads of the state and so many of q and k."""
    q, k, read = (floats(B, n, tokens, K, seed=seed) for n, seed in ((keys, 1), (keys, 2), (H, 3)))
    k, read = (nn.functional.normalize(x, dim=-1) for x in (k, read))
    gate, rate = floats(B, H, tokens, K, seed=4), floats(B, H, tokens, K, seed=5).sigmoid()
    return [q, k, floats(B, H, tokens, V, seed=6), floats(B, H, K, V, seed=7), -gate.exp(), read, -read * rate]


RATE = floats(B, H, 1, 1, seed=8).sigmoid()
CACHED = [floats(B, H, 1, K), floats(B, G, P, K, seed=1), floats(B, G, P, V, seed=2)]
WITH_Z = slice(0, 5)  # of `heads`: q, k, v, S, z
RULES = {"linear": (), "gated": (5,), "delta": (None, 6), "gated_delta": (5, 6)}


def experts(
    ops: Any, w: Weights, x: Any, top: int, renormalize: bool, activation: str, gated: bool, *router: Any
) -> Any:
    return ops.experts(*x, Experts(w.pairs if gated else w.up, w.down, top, renormalize, activation, gated, *router))


# one node on target fused, but for those of gelu, whose activations it lacks
EXPERTS = {
    "gated": (2, True, "silu", True),
    "of all": (3, False, "silu", True),
    "top 1": (1, False, "relu", False),
    "silu": (5, True, "silu", False),
    "by tanh": (2, True, "gelu_tanh", False),
    "gelu": (2, True, "gelu", False),
    "scaled": (2, True, "silu", True, "softmax", None, 2.5),
    "sigmoids": (2, True, "silu", True, "sigmoid", None, 0.5, 0.25),
    "sigmoids, each alone": (3, False, "relu", False, "sigmoid"),
    "sigmoids, gelu": (3, True, "gelu", False, "sigmoid", None, 2.0),
    "gated gelu": (4, False, "gelu_tanh", True),
}

# "operator" or "operator: how" -> how it is used, and on what; one token of each sequence is read
CASES: dict[str, tuple[Build, list[Tensor]]] = {
    "parameter": (lambda ops, w, x: ops.add(x[0], ops.parameter(w.shift)), [X]),
    "constant": (lambda ops, w, x: ops.add(x[0], ops.constant(np.arange(4.0), "float32", "row")), [Y]),
    "constant: whole": (lambda ops, w, x: ops.mul(x[0], ops.constant([3], "int32", "three")), [PLACES]),
    "embedding": (lambda ops, w, x: ops.embedding(x[0], w.table), [IDS]),
    "embedding: of matrices": (lambda ops, w, x: ops.embedding(x[0], w.pairs), [torch.tensor([[3, 1, 4], [0, 0, 2]])]),
    "embedding: of an operand": (lambda ops, w, x: ops.embedding(x[0], x[1]), [IDS, floats(9, 3)]),
    "linear": (lambda ops, w, x: ops.linear(x[0], w.weight, w.bias), [X]),
    "linear: no bias": (lambda ops, w, x: ops.linear(x[0], w.weight, None), [X]),
    "linears": (lambda ops, w, x: ops.linears(x[0], [[w.layers["a"], w.layers["b"]], [w.layers["c"]]]), [X]),
    "linears: no bias": (lambda ops, w, x: ops.linears(x[0], [[w.bare["a"]], [w.bare["b"]]]), [X]),
    "linears: one group": (lambda ops, w, x: ops.linears(x[0], [[w.bare["a"], w.bare["b"]]]), [X]),
    "layer_norm": (lambda ops, w, x: ops.layer_norm(x[0], w.scale, w.shift, 0.1), [X]),
    "layer_norm: of a sum": (lambda ops, w, x: ops.layer_norm(ops.add(*x), w.scale, w.shift, 0.1), [X, X.flip(1)]),
    "rms_norm": (lambda ops, w, x: ops.rms_norm(x[0], w.scale, 0.1), [X]),
    "rms_norm: of a sum": (lambda ops, w, x: ops.rms_norm(ops.add(*x), w.scale, 0.1), [X, X.flip(1)]),
    "rms_norm: no scale": (lambda ops, w, x: ops.rms_norm(x[0], None, 0.1), [Y]),
    "add": (lambda ops, w, x: ops.add(*x), [Y, floats(B, 1, 5, 1, seed=2)]),
    "add: a number": (lambda ops, w, x: ops.add(x[0], 1), [PLACES]),
    "sub": (lambda ops, w, x: ops.sub(*x), [Y, floats(B, 3, 5, 4, seed=2)]),
    "sub: from a number": (lambda ops, w, x: ops.sub(1.0, x[0]), [Y]),
    "mul": (lambda ops, w, x: ops.mul(*x), [Y, floats(B, 3, 1, 4, seed=2)]),
    "mul: a number": (lambda ops, w, x: ops.mul(x[0], 0.3), [Y]),
    "div": (lambda ops, w, x: ops.div(*x), [Y, 1 + floats(B, 3, 5, 1, seed=2).abs()]),
    "matmul": (lambda ops, w, x: ops.matmul(*x), [Y, Z]),
    "matmul: broadcast": (lambda ops, w, x: ops.matmul(*x), [Y, floats(B, 1, 4, 7)]),
    "maximum": (lambda ops, w, x: ops.maximum(x[0], 0.25), [Y]),
    "minimum": (lambda ops, w, x: ops.minimum(x[0], 0.25), [Y]),
    "minimum: whole": (lambda ops, w, x: ops.minimum(x[0], 39), [PLACES]),
    "relu": (lambda ops, w, x: ops.relu(x[0]), [Y]),
    "exp": (lambda ops, w, x: ops.exp(x[0]), [Y]),
    "exp: of a log_sigmoid": (lambda ops, w, x: ops.exp(ops.log_sigmoid(x[0])), [Y]),
    "log": (lambda ops, w, x: ops.log(x[0]), [Y.abs()]),
    "sigmoid": (lambda ops, w, x: ops.sigmoid(x[0]), [Y]),
    "log_sigmoid": (lambda ops, w, x: ops.log_sigmoid(x[0]), [torch.tensor([[-100.0, -9, -1], [0, 9, 100]])]),
    "elu": (lambda ops, w, x: ops.elu(x[0]), [Y]),
    "silu": (lambda ops, w, x: ops.silu(x[0]), [Y]),
    "soft_cap": (lambda ops, w, x: ops.soft_cap(x[0], 0.7), [Y]),
    "soft_cap:none": (lambda ops, w, x: ops.mul(ops.soft_cap(x[0], None), 2.0), [Y]),
    "tanh": (lambda ops, w, x: ops.tanh(x[0]), [Y]),
    "gelu": (lambda ops, w, x: ops.gelu(x[0], tanh=False), [Y]),
    "gelu: tanh": (lambda ops, w, x: ops.gelu(x[0], tanh=True), [Y]),
    "softplus": (lambda ops, w, x: ops.softplus(x[0]), [torch.tensor([[-30.0, -9, -1], [0, 9, 100]])]),
    "expm1": (lambda ops, w, x: ops.div(ops.expm1(x[0]), x[0]), [-torch.logspace(-30, 4, 50).view(B, 25)]),
    "sqrt": (lambda ops, w, x: ops.sqrt(x[0]), [Y.abs()]),
    "sin": (lambda ops, w, x: ops.sin(x[0]), [Y]),
    "cos": (lambda ops, w, x: ops.cos(x[0]), [Y]),
    "softmax": (lambda ops, w, x: ops.softmax(x[0]), [Y]),
    "mean": (lambda ops, w, x: ops.mean(x[0]), [Y]),
    "reduce_max": (lambda ops, w, x: ops.reduce_max(x[0]), [Y]),
    "top_k": (lambda ops, w, x: ops.top_k(x[0], 2), [Y]),
    "gather": (lambda ops, w, x: ops.gather(*x), [Y, torch.randint(0, 4, (B, 3, 5, 7))]),
    "cast: to int64": (lambda ops, w, x: ops.cast(x[0], "int64"), [PLACES]),
    "cast: to int32": (lambda ops, w, x: ops.cast(x[0], "int32"), [IDS]),
    "cast: to float32": (lambda ops, w, x: ops.cast(x[0], "float32"), [PLACES]),
    "reshape": (lambda ops, w, x: ops.reshape(x[0], (-1, 5, 12)), [Y]),
    "reshape: kept and left": (lambda ops, w, x: ops.reshape(x[0], (0, 0, -1, 2, 1)), [Y]),
    "unsqueeze": (lambda ops, w, x: ops.unsqueeze(x[0], 1), [Y]),
    "unsqueeze: last": (lambda ops, w, x: ops.unsqueeze(x[0], -1), [PLACES]),
    "squeeze": (lambda ops, w, x: ops.squeeze(x[0], 1), [floats(B, 1, 4)]),
    "squeeze: last": (lambda ops, w, x: ops.squeeze(x[0], -1), [floats(B, 4, 1)]),
    "transpose": (lambda ops, w, x: ops.transpose(x[0], (0, 3, 1, 2)), [Y]),
    "transpose: of an axis of 1": (lambda ops, w, x: ops.transpose(x[0], (0, 2, 1, 3)), [floats(B, 3, 1, 4)]),
    "split": (lambda ops, w, x: ops.split(x[0], [1, 2, 7]), [X]),
    "split: equal": (lambda ops, w, x: ops.split(x[0], [5, 5]), [X]),
    "split: an axis": (lambda ops, w, x: ops.split(x[0], [3, 2], axis=2), [Y]),
    "split: one part": (lambda ops, w, x: ops.split(x[0], [4]), [Y]),
    "concat": (lambda ops, w, x: ops.concat(x), [Y, floats(B, 3, 5, 2)]),
    "concat: an axis": (lambda ops, w, x: ops.concat(x, axis=1), [Y, floats(B, 2, 5, 4)]),
    "repeat_heads": (lambda ops, w, x: ops.repeat_heads(x[0], H), [floats(B, G, 1, K)]),
    "repeat_heads: of one": (lambda ops, w, x: ops.repeat_heads(x[0], H), [floats(B, 1, 1, K)]),
    "repeat_heads: none": (lambda ops, w, x: ops.mul(ops.repeat_heads(x[0], G), 2.0), [floats(B, G, 1, K)]),
    "slice_from": (lambda ops, w, x: ops.slice_from(x[0], 2), [Y]),
    "slice_from: all": (lambda ops, w, x: ops.slice_from(x[0], 0), [Y]),
    "slice_last": (lambda ops, w, x: ops.slice_last(x[0], 2), [Y]),
    "drop_last": (lambda ops, w, x: ops.drop_last(x[0], 2), [Y]),
    "pad_front": (lambda ops, w, x: ops.pad_front(x[0], 3), [Y]),
    "digits": (lambda ops, w, x: ops.digits(x[0], 256, 4), [torch.tensor([2**31 - 1, 70_000], dtype=torch.int32)]),
    "flatten_tokens": (lambda ops, w, x: ops.flatten_tokens(x[0]), [X]),
    "last_token": (lambda ops, w, x: ops.last_token(x[0]), [X]),
    "split_heads": (lambda ops, w, x: ops.split_heads(x[0], G), [floats(B, G * V)]),
    "merge_heads": (lambda ops, w, x: ops.merge_heads(x[0]), [floats(B, G, 1, V)]),
    "advance": (lambda ops, w, x: ops.advance(x[0]), [PLACES]),
    "causal_attention": (lambda ops, w, x: ops.causal_attention(*x, 0.3), CACHED),
    "causal_attention: softcap": (lambda ops, w, x: ops.causal_attention(*x, 0.7, 1.5), CACHED),
    "pack_for_fused": (lambda ops, w, x: ops.pack_for_fused(x[0]), [X]),
    "damp": (lambda ops, w, x: ops.damp(x[0]), [Y]),
    "divide": (lambda ops, w, x: ops.divide(*x, CLAMP), [Y, floats(B, 3, 5, 1, seed=2)]),
    "divide: eps added": (lambda ops, w, x: ops.divide(*x, ADD), [Y, floats(B, 3, 5, 1, seed=2).abs()]),
    "guarded": (lambda ops, w, x: ops.guarded(x[0], "clamp", 0.25), [Y]),
    "guarded: added": (lambda ops, w, x: ops.guarded(x[0], "add", 0.25), [Y]),
    "accumulate": (lambda ops, w, x: ops.accumulate(*x), [Y, floats(B, 3, 5, 4, seed=2)]),
    "each": (
        lambda ops, w, x: ops.each(ops.relu, *ops.split(ops.split_heads(x[0], H + G), [H, G], axis=1)),
        [floats(B, (H + G) * V)],
    ),
    "rotate": (lambda ops, w, x: ops.rotate(*x), [floats(B, H, 1, 6), floats(B, 1, 1, 3), floats(B, 1, 1, 3)]),
    "rotate: a part of a head": (
        lambda ops, w, x: ops.rotate(*x),
        [floats(B, H, 1, 7), floats(B, 1, 1, 2), floats(B, 1, 1, 2)],
    ),
    "rotate: by constants": (lambda ops, w, x: ops.rotate(*x), [floats(B, H, 5, 6), floats(5, 3), floats(5, 3)]),
    "group_queries": (lambda ops, w, x: ops.group_queries(x[0], G), [floats(B, H, 1, K)]),
    "group_queries: each its own": (lambda ops, w, x: ops.group_queries(x[0], H), [floats(B, H, 1, K)]),
    "ungroup_queries": (lambda ops, w, x: ops.ungroup_queries(x[0], H), [floats(B, G, 2, K)]),
    **{
        f"linear_attention: {rule}": (
            lambda ops, w, x, given=given: ops.linear_attention(*x[:4], None, *(i and x[i] for i in given)),
            heads(1),
        )
        for rule, given in RULES.items()
    },
    "linear_attention: heads share keys": (
        lambda ops, w, x: ops.linear_attention(*x[:4], None),
        by_channel(1, G),
    ),
    "linear_attention: a gate a channel": (
        lambda ops, w, x: ops.linear_attention(*x[:4], None, x[4]),
        by_channel(1, G),
    ),
    "linear_attention: a gate a channel, with z": (
        lambda ops, w, x: ops.linear_attention(*x[:4], x[7], x[4]),
        [*by_channel(1, G), floats(B, H, K, seed=9)],
    ),
    "linear_attention: the same gates a channel for all": (
        lambda ops, w, x: ops.linear_attention(*x[:4], None, x[7]),
        [*by_channel(1, G), -floats(1, H, 1, K, seed=9).exp()],
    ),
    "linear_attention: a gate a channel, delta": (
        lambda ops, w, x: ops.linear_attention(*x[:4], None, x[4], x[7]),
        [*by_channel(1, G), RATE],
    ),
    "linear_attention: erase": (lambda ops, w, x: erased(ops, x), by_channel(1, H)),
    "linear_attention: erase, heads share keys": (lambda ops, w, x: erased(ops, x), by_channel(1, G)),
    "linear_recurrence": (
        lambda ops, w, x: ops.linear_recurrence(*x),
        [X, -floats(B, WIDTH, seed=1).exp(), floats(B, WIDTH, seed=2)],
    ),
    "linear_recurrence: one gate for all": (
        lambda ops, w, x: ops.linear_recurrence(*x),
        [X, -floats(1, WIDTH, seed=1).exp(), floats(B, WIDTH, seed=2)],
    ),
    "complex_recurrence": (lambda ops, w, x: ops.complex_recurrence(*x), [X, *TURNING]),
    "complex_product": (lambda ops, w, x: ops.complex_product(*x), [X, TURNING[1]]),
    "linear_attention: with z": (lambda ops, w, x: ops.linear_attention(*x), heads(1)[WITH_Z]),
    "linear_attention: gated, with z": (lambda ops, w, x: ops.linear_attention(*x), heads(1)[:6]),
    "normalizer": (lambda ops, w, x: ops.normalizer(x[0], x[1], x[4]), heads(1)),
    "normalizer: heads share keys": (
        lambda ops, w, x: ops.normalizer(*x),
        [*by_channel(1, G)[:2], floats(B, H, K), by_channel(1, G)[4]],
    ),
    "normalizer: gated": (lambda ops, w, x: ops.normalizer(x[0], x[1], x[4], x[5]), heads(1)),
    **{
        f"experts: {name}": (lambda ops, w, x, how=how: experts(ops, w, x, *how), [X, floats(B, 5, seed=3)])
        for name, how in EXPERTS.items()
    },
    "padding_mask": (lambda ops, w, x: ops.padding_mask(*x), [heads(1)[4][..., None], torch.tensor([1, K])]),
    "cache_places": (lambda ops, w, x: ops.sub(*ops.cache_places(*x)), [floats(B, G, 5, K), floats(B, G, 1, K)]),
    "remainder": (lambda ops, w, x: ops.remainder(x[0], 7), [PLACES]),
}
QKV = [floats(B, H, T, K), floats(B, G, T, K, seed=1), floats(B, G, T, V, seed=2)]
PAST = [floats(B, G, P, K, seed=3), floats(B, G, P, V, seed=4)]
ROWS = floats(B * T, WIDTH)


def with_past(ops: Any, x: list[Any]) -> list[Any]:
    """q, k and v with a cache in front of k and v."""
    return [x[0], ops.concat([x[3], x[1]], axis=2), ops.concat([x[4], x[2]], axis=2)]


# the same where T tokens of each sequence are read
MANY: dict[str, tuple[Build, list[Tensor]]] = {
    "flatten_tokens": (lambda ops, w, x: ops.flatten_tokens(x[0]), [floats(B, T, WIDTH)]),
    "last_token": (lambda ops, w, x: ops.last_token(x[0]), [ROWS]),
    "split_heads": (lambda ops, w, x: ops.split_heads(x[0], G), [floats(B * T, G * V)]),
    "split_heads: one of one number": (lambda ops, w, x: ops.split_heads(x[0], 1), [floats(B * T, 1)]),
    "merge_heads": (lambda ops, w, x: ops.merge_heads(x[0]), [floats(B, G, T, V)]),
    "merge_heads: of split ones": (lambda ops, w, x: ops.merge_heads(ops.split_heads(x[0], 5)), [ROWS]),
    "advance": (lambda ops, w, x: ops.advance(x[0]), [PLACES]),
    **{
        f"blocks: of {size}": (lambda ops, w, x, size=size: ops.blocks(x[0], size), [floats(B, G, T, V)])
        for size in (4, T, 10)
    },
    "unblock": (lambda ops, w, x: ops.unblock(ops.mul(ops.blocks(x[0], 4), 2.0)), [floats(B, G, T, V)]),
    "causal_attention": (lambda ops, w, x: ops.causal_attention(*x, 0.3), QKV),
    "causal_attention: softcap": (lambda ops, w, x: ops.causal_attention(*x, 0.7, 1.5), QKV),
    "causal_attention: past": (lambda ops, w, x: ops.causal_attention(*with_past(ops, x), 0.3), [*QKV, *PAST]),
    "causal_attention: past and softcap": (
        lambda ops, w, x: ops.causal_attention(*with_past(ops, x), 0.7, 1.5),
        [*QKV, *PAST],
    ),
    "causal_attention: each head its own": (
        lambda ops, w, x: ops.causal_attention(*with_past(ops, x), 0.3),
        [QKV[0][:, :G], *QKV[1:], *PAST],
    ),
    "causal_attention: of two layers": (
        lambda ops, w, x: ops.causal_attention(
            ops.causal_attention(*with_past(ops, x), 0.3), *with_past(ops, x)[1:], 1.0
        ),
        [QKV[0][..., :4], QKV[1][..., :4], QKV[2], PAST[0][..., :4], PAST[1]],
    ),
    "padding_mask": (lambda ops, w, x: ops.padding_mask(*x), [QKV[1], torch.tensor([2, T], dtype=torch.int32)]),
    "padding_mask: int64": (lambda ops, w, x: ops.padding_mask(*x), [QKV[1], torch.tensor([1, 3])]),
    "causal_mask": (lambda ops, w, x: ops.causal_mask(*x), [PAST[0], QKV[1]]),
    "cache_places": (lambda ops, w, x: ops.sub(*ops.cache_places(with_past(ops, x)[1], x[1])), [*QKV, *PAST]),
    "lstm": (
        lambda ops, w, x: ops.lstm(*x, list(w.lstm.parameters())),
        [ROWS, floats(B, WIDTH, seed=1), floats(B, WIDTH, seed=2)],
    ),
    "gru": (lambda ops, w, x: ops.gru(*x, list(w.gru.parameters())), [ROWS, floats(B, WIDTH, seed=1)]),
    **{
        f"{name}: {rule}": (
            lambda ops, w, x, name=name, given=given: getattr(ops, name)(
                *x[:4], None, *[*(i and x[i] for i in given), None, None][:2]
            ),
            heads(T),
        )
        for name in ("linear_attention_chunks", "linear_attention")
        for rule, given in RULES.items()
    },
    "repeat_heads": (lambda ops, w, x: ops.repeat_heads(x[0], H), [QKV[1]]),
    "linear_attention: heads share keys": (
        lambda ops, w, x: ops.linear_attention(*x[:4], None),
        by_channel(T, G),
    ),
    "linear_attention: a gate a channel, with z": (
        lambda ops, w, x: ops.linear_attention(*x[:4], x[7], x[4]),
        [*by_channel(T, G), floats(B, H, K, seed=9)],
    ),
    "linear_attention: the same gates a channel for all": (
        lambda ops, w, x: ops.linear_attention(*x[:4], None, x[7]),
        [*by_channel(T, G), -floats(1, H, 1, K, seed=9).exp()],
    ),
    "linear_attention: erase, heads share keys": (lambda ops, w, x: erased(ops, x), by_channel(T, G)),
    "linear_attention_chunks: erase": (lambda ops, w, x: erased(ops, x, many=True), by_channel(T, H)),
    **{
        f"{name}: {how}": (
            lambda ops, w, x, name=name: getattr(ops, name)(*x),
            [ROWS, -floats(B * T, WIDTH, seed=1).exp(), floats(B, WIDTH, seed=2)],
        )
        for name, how in (("linear_recurrence", "rows"), ("linear_recurrence_many", "rows"))
    },
    "linear_recurrence: one gate for all": (
        lambda ops, w, x: ops.linear_recurrence(*x),
        [ROWS, -floats(1, WIDTH, seed=1).exp(), floats(B, WIDTH, seed=2)],
    ),
    **{
        name: (lambda ops, w, x, name=name: getattr(ops, name)(*x), [ROWS, *TURNING])
        for name in ("complex_recurrence", "complex_recurrence_many")
    },
    "normalizer: heads share keys": (
        lambda ops, w, x: ops.normalizer(*x),
        [*by_channel(T, G)[:2], floats(B, H, K), by_channel(T, G)[4]],
    ),
    "linear_attention_chunks: with z": (
        lambda ops, w, x: ops.linear_attention_chunks(*x, None, None),
        heads(T)[WITH_Z],
    ),
    "linear_attention_chunks: gated, with z": (lambda ops, w, x: ops.linear_attention_chunks(*x, None), heads(T)[:6]),
    "linear_attention_chunks: one gate for all": (
        lambda ops, w, x: ops.linear_attention_chunks(*x, None),
        [*heads(T)[WITH_Z], -floats(1, G, 1, 1).abs()],
    ),
    "normalizer": (lambda ops, w, x: ops.normalizer(x[0], x[1], x[4]), heads(T)),
    "normalizer: gated": (lambda ops, w, x: ops.normalizer(x[0], x[1], x[4], x[5]), heads(T)),
    "slice_from": (lambda ops, w, x: ops.slice_from(x[0], 2), [QKV[2]]),
    "slice_from: chunks": (lambda ops, w, x: ops.slice_from(ops.blocks(x[0], 4), 1), [QKV[2]]),
    "slice_last": (lambda ops, w, x: ops.slice_last(x[0], 3), [QKV[2]]),
    # of all tokens; of the first few, tests/graph/test_draft_check.py
    "of_kept": (lambda ops, w, x: ops.mul(ops.of_kept(x[0]), 2.0), [QKV[2]]),
    "kept_cache": (lambda ops, w, x: ops.mul(ops.kept_cache(x[0]), 2.0), [QKV[2]]),
    "kept_buffer": (lambda ops, w, x: ops.kept_buffer(ops.concat(x, axis=2), 4), [Y[:, :, :4], QKV[2]]),
    "drop_last": (lambda ops, w, x: ops.drop_last(x[0], 3), [QKV[2]]),
    "drop_last: what was joined": (lambda ops, w, x: ops.drop_last(ops.concat(x, axis=2), 4), [Y[:, :, :4], QKV[2]]),
    "pad_front": (lambda ops, w, x: ops.pad_front(x[0], 3), [QKV[2]]),
    "group_queries": (lambda ops, w, x: ops.group_queries(x[0], G), [QKV[0]]),
    "ungroup_queries": (lambda ops, w, x: ops.ungroup_queries(ops.group_queries(x[0], G), H), [QKV[0]]),
    **{
        f"experts: {name}": (lambda ops, w, x, how=how: experts(ops, w, x, *how), [ROWS, floats(B * T, 5, seed=3)])
        for name, how in EXPERTS.items()
    },
    "linear": (lambda ops, w, x: ops.linear(x[0], w.weight, w.bias), [ROWS]),
    "pack_for_fused": (lambda ops, w, x: ops.pack_for_fused(x[0]), [ROWS]),
}
TARGETS_OF_MANY = [name for name, target in TARGETS.items() if not target.static]


def public(cls: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("_")}


def test_the_same_methods() -> None:
    assert public(TorchOps) == public(Ops)
    for target in TARGETS.values():
        cls = type(target.ops(WEIGHTS, "B", None))
        assert public(cls) - public(Ops) == public(Recorder) - public(Ops), "how a graph is written, nothing to compute"
    own = {name for cls in GraphOps.__mro__ if cls not in Ops.__mro__ for name in vars(cls)}
    assert Ops.__abstractmethods__ <= own


def test_the_same_arguments() -> None:
    for name in public(Ops):
        for cls in (TorchOps, GraphOps, FusedOps):
            ours, theirs = (list(inspect.signature(getattr(c, name)).parameters) for c in (Ops, cls))
            assert ours == theirs, (name, cls)


def test_every_operator_has_a_case() -> None:
    assert {case.split(":")[0] for case in CASES | MANY} == public(Ops)


def test_token_operators_cover_both_modes() -> None:
    of_one, of_many = ({case.split(":")[0] for case in cases} for cases in (CASES, MANY))
    alone = {"blocks", "unblock", "causal_mask", "lstm", "gru", "linear_attention_chunks", "linear_recurrence_many"}
    alone |= {"complex_recurrence_many"}
    looking = {name for name in public(Ops) if "self.many" in inspect.getsource(getattr(GraphOps, name))}
    assert looking | alone <= of_many
    assert looking <= of_one
    assert not alone & of_one


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES)
def test_recorded_is_computed(case: str, target: str) -> None:
    build, inputs = CASES[case]
    compare(build, *inputs, target=target)


@pytest.mark.parametrize("target", TARGETS_OF_MANY)
@pytest.mark.parametrize("case", MANY)
def test_recorded_is_computed_of_many_tokens(case: str, target: str) -> None:
    build, inputs = MANY[case]
    compare(build, *inputs, many=True, target=target)


def test_how_many_tokens_are_read() -> None:
    assert [TorchOps(tokens).many for tokens in (None, 1, T)] == [False, True, True]
    assert [GraphOps(WEIGHTS, "B", tokens).many for tokens in (None, "T")] == [False, True]


@torch.no_grad()
@pytest.mark.parametrize("case", ["causal_attention: past", "causal_attention: past and softcap"])
def test_a_token_does_not_see_those_behind_it(case: str) -> None:
    build, inputs = MANY[case]
    ops = TorchOps(T)
    before = build(ops, WEIGHTS, inputs)
    changed = [inputs[0], *(torch.cat([x[:, :, :4], x[:, :, 4:] + 1], 2) for x in inputs[1:3]), *inputs[3:]]
    after = build(ops, WEIGHTS, changed)
    assert torch.equal(before[:, :, :4], after[:, :, :4])
    assert ((before - after)[:, :, 4:].abs().amax((1, 3)) > 1e-3).all()


@torch.no_grad()
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_attention_is_its_definition(softcap: float | None) -> None:
    """Head by head and token by token: queries of a group share its keys, and the last T of P + T are new."""
    q, new_k, new_v = (x.double() for x in QKV)
    k, v = (torch.cat([past.double(), new], 2) for past, new in zip(PAST, (new_k, new_v), strict=True))
    o = TorchOps(T, q).causal_attention(q, k, v, 0.7, softcap)
    for b, h, t in np.ndindex(B, H, T):
        seen, group = P + t + 1, h // (H // G)
        scores = 0.7 * k[b, group, :seen] @ q[b, h, t]
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        torch.testing.assert_close(o[b, h, t], scores.softmax(0) @ v[b, group, :seen])


dims = st.integers(1, 4)
BINARY = {
    "add": lambda ops, w, x: ops.add(*x),
    "sub": lambda ops, w, x: ops.sub(*x),
    "mul": lambda ops, w, x: ops.mul(*x),
}


@settings(max_examples=15)
@given(st.sampled_from(sorted(BINARY)), st.lists(st.tuples(dims, st.booleans(), st.booleans()), max_size=3))
def test_broadcasting(op: str, axes: list[tuple[int, bool, bool]]) -> None:
    left, right = ([1 if axis[side] else axis[0] for axis in axes] for side in (1, 2))
    compare(BINARY[op], floats(B, *left), floats(B, *right, seed=1))


@settings(max_examples=15)
@given(st.lists(dims, min_size=1, max_size=3), st.integers(1, 3), st.booleans())
def test_split_and_concat_are_inverses(sizes: list[int], axis: int, last: bool) -> None:
    shape = [B, 2, 3, 4]
    shape[axis] = sum(sizes)
    at = axis - 4 if last else axis
    compare(lambda ops, w, x: ops.concat(ops.split(x[0], sizes, axis=at), axis=at), floats(*shape))


@settings(max_examples=10)
@given(st.permutations([1, 2, 3]), st.integers(-5, 4))
def test_transpose_and_unsqueeze(axes: list[int], place: int) -> None:
    compare(lambda ops, w, x: ops.transpose(x[0], [0, *axes]), Y)
    if place not in (0, -5):  # in front of the batch the recorder's letter would stand elsewhere
        compare(lambda ops, w, x: ops.unsqueeze(x[0], place), Y)


SHAPES = [(0, 60), (0, 3, 20), (0, 15, 4), (0, 3, 5, 4), (0, 1, 3, 20), (0, 3, 1, 5, 4), (0, 60, 1), (0, 12, 5)]
LAZY: dict[str, Callable[[Any, Any], Any]] = {
    "tanh": lambda ops, x: ops.tanh(x),
    "number": lambda ops, x: ops.mul(x, 0.7),
    "row": lambda ops, x: ops.add(x, ops.constant(np.linspace(-1, 1, x.shape[-1]), "float32", f"row_{x.shape[-1]}")),
    "softmax": lambda ops, x: ops.softmax(x),
    "mean": lambda ops, x: ops.sub(x, ops.mean(x)),
    "max": lambda ops, x: ops.mul(ops.reduce_max(x), x),
    "itself": lambda ops, x: ops.mul(x, ops.tanh(x)),
    "halves": lambda ops, x: ops.concat(ops.split(x, [1, x.shape[-1] - 1])[::-1]) if x.shape[-1] > 1 else x,
    "last": lambda ops, x: ops.squeeze(ops.unsqueeze(x, -1), -1),
    "cast": lambda ops, x: ops.cast(ops.cast(ops.mul(x, 4.0), "int32"), "float32"),
}


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(SHAPES), st.sampled_from(sorted(LAZY))), min_size=1, max_size=5))
def test_no_change_of_shape_is_lost(steps: list[tuple[tuple[int, ...], str]]) -> None:
    """A graph keeps a shape back until an operator needs it: whatever comes between, the numbers are the same."""

    def build(ops: Any, w: Weights, x: list[Any]) -> Any:
        y = x[0]
        for shape, name in steps:
            y = ops.reshape(y, shape)
            y = LAZY[name](ops, y)
        return y

    compare(build, floats(B, 60))


@settings(max_examples=30)
@given(st.sampled_from(sorted(BINARY)), st.sampled_from(SHAPES[:-1]), st.sampled_from(SHAPES[:-1]), st.data())
def test_two_shapes_meet(op: str, first: tuple[int, ...], second: tuple[int, ...], data: st.DataObject) -> None:
    """Each kept back from another shape, and where they meet, one may have axes of size 1."""
    met = data.draw(st.sampled_from([(0, 3, 5, 4), (0, 15, 4), (0, 60)]))
    narrow = data.draw(st.booleans())

    def build(ops: Any, w: Weights, x: list[Any]) -> Any:
        left, right = (
            ops.reshape(ops.tanh(ops.reshape(y, shape)), met) for y, shape in zip(x, (first, second), strict=True)
        )
        return BINARY[op](ops, w, [left, ops.mean(right) if narrow else right])

    compare(build, floats(B, 60), floats(B, 60, seed=1))


def test_a_growing_axis() -> None:
    ops = GraphOps(WEIGHTS, "B")
    cache, new = Value("cache", "float32", ("B", 3, "T", 4)), Value("new", "float32", ("B", 3, 1, 4))
    assert ops.concat([cache, new], axis=2).shape == ("B", 3, "T+1", 4)


def test_weights_and_nodes_keep_their_names() -> None:
    ops = GraphOps(WEIGHTS, "B")
    x = Value("x", "float32", ("B", WIDTH))
    first, second = ops.linear(x, WEIGHTS.weight, WEIGHTS.bias), ops.linear(x, WEIGHTS.weight, None)
    ops.maximum(first, 0.5)
    ops.minimum(second, 0.5)
    assert list(ops.weights) == ["weight", "bias"]
    assert ops.weights["weight"] is WEIGHTS.weight
    assert [node.name for node in ops.nodes][:2] == ["weight", "weight_gemm"]
    assert len(ops.constants) == 1, "one constant for both uses"
    ops.rename({first.name: "logits"})
    assert ops.nodes[0].output[0] == ops.nodes[2].input[0] == "logits"


def test_layers_share_a_product_and_a_name() -> None:
    ops = GraphOps(WEIGHTS, "B")
    layers = WEIGHTS.layers
    ops.linears(Value("x", "float32", ("B", WIDTH)), [[layers["a"], layers["b"]], [layers["c"]]])
    assert [(node.op_type, node.name) for node in ops.nodes] == [("Gemm", "layers.a_b_c"), ("Split", "Split_2")]
    assert list(ops.weights) == ["layers.a_b_c.weight", "layers.a_b_c.bias"]
    np.testing.assert_array_equal(
        array(ops.weights["layers.a_b_c.weight"]), torch.cat([layer.weight for layer in layers.values()]).detach()
    )
    with pytest.raises(AssertionError, match="a bias for all, or for none"):
        ops.linears(Value("x", "float32", ("B", WIDTH)), [[layers["a"], WEIGHTS.bare["b"]]])


def test_what_cannot_be_is_refused() -> None:
    ops = GraphOps(WEIGHTS, "B")
    x, y = Value("x", "float32", ("B", 3, 4)), Value("y", "float32", ("B", 5, 4))
    for wrong in (
        lambda: ops.add(x, y),
        lambda: ops.matmul(x, y),
        lambda: ops.linear(x, WEIGHTS.weight, None),
        lambda: ops.reshape(x, (0, 5, -1)),
        lambda: ops.squeeze(x, 1),
    ):
        with pytest.raises(AssertionError):
            wrong()


@pytest.mark.parametrize("most", [0, 100])  # torch's own kernel; matrix products
@pytest.mark.parametrize("case", ["causal_attention", "causal_attention: past"])
def test_attention_in_bfloat16(case: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients, with fewer kv heads than heads."""
    monkeypatch.setattr(torch_ops, "PRODUCTS", most)
    build, inputs = MANY[case]
    found = []
    for dtype in (torch.bfloat16, torch.float32, torch.float64):  # float32: by autocast
        given = [x.to(dtype, copy=True).requires_grad_() for x in inputs]
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
            y = build(TorchOps(T), WEIGHTS, given)
        assert y.dtype == (torch.float64 if dtype == torch.float64 else torch.bfloat16)
        y.sin().sum().backward()
        found.append([y.detach(), *(x.grad for x in given)])
    for *narrow, exact in zip(*found, strict=True):
        for x in narrow:
            torch.testing.assert_close(x.double(), exact, rtol=0.02, atol=0.02)
