"""Records operators in a graph and computes them; their inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import helper
from torch import Tensor, nn

from small import FFN, WIDTH, B, G, H, K, T, V
from t2r_export.config.mixers import Guard
from t2r_export.config.targets import TARGETS
from t2r_export.graph.recorder import Dim, Value, product, value_info
from t2r_export.graph.weights import array
from t2r_export.model.ops import Erase, Experts
from t2r_export.model.torch_ops import TorchOps

P = 9  # cached tokens
LETTERS = {"B": B, "T": T, "P": P, "N4": 2, "N7": 1, "N10": 1, "N64": 1}  # Nn: number of chunks of n for T tokens

Build = Callable[[Any, "Weights", list[Any]], Any]


class Weights(nn.Module):
    """Parameters for operators."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for name, shape in {"table": (9, WIDTH), "weight": (FFN, WIDTH), "bias": (FFN,), "scale": (WIDTH,)}.items():
            setattr(self, name, nn.Parameter(torch.randn(shape, generator=generator)))
        self.shift = nn.Parameter(torch.randn(WIDTH, generator=generator))
        self.layers = nn.ModuleDict({name: nn.Linear(WIDTH, size) for name, size in {"a": 3, "b": 4, "c": 5}.items()})
        self.bare = nn.ModuleDict({name: nn.Linear(WIDTH, size, bias=False) for name, size in {"a": 3, "b": 4}.items()})
        for name, shape in {"pairs": (5, 6, WIDTH), "up": (5, 3, WIDTH), "down": (5, WIDTH, 3)}.items():  # experts
            setattr(self, name, nn.Parameter(torch.randn(shape, generator=generator)))
        self.lstm, self.gru = nn.LSTM(WIDTH, WIDTH), nn.GRU(WIDTH, WIDTH)


WEIGHTS = Weights()


def listed(result: Any) -> list[Any]:
    """An operator's outputs as a list, without None."""
    return [x for x in (result if isinstance(result, list | tuple) else [result]) if x is not None]


def form(x: Tensor, batch: Dim, many: bool) -> tuple[Dim, ...]:
    """The shape of x with symbols for dynamic sizes; all sizes differ, so each size identifies its symbol."""
    if x.ndim == 0:
        return ()
    first = {B: batch, B * T: product([batch, "T"])}.get(x.shape[0], x.shape[0])
    return (first, *({T: "T", P: "P"}.get(d, d) if many else d for d in x.shape[1:]))


def run(
    build: Build, inputs: Sequence[Tensor], many: bool = False, target: str = "portable", letter: bool = True
) -> list[tuple[Value, np.ndarray]]:
    """Record `build` over graph inputs of these shapes and run it in ONNX Runtime on the tensors."""
    batch: Dim = "B" if letter else B
    ops = TARGETS[target].ops(WEIGHTS, batch, "T" if many else None)
    values = [Value(f"in{i}", str(x.dtype).removeprefix("torch."), form(x, batch, many)) for i, x in enumerate(inputs)]
    given, feeds = list(values), [*inputs]
    if many:  # the graph takes the number of tokens from the embeddings
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
def assert_recorded_is_computed(build: Build, *inputs: Tensor, many: bool = False, target: str = "portable") -> None:
    """Values, dtypes and recorded shapes agree, with a dynamic batch and with a fixed one."""
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
TURNING = [0.5 * floats(WIDTH, seed=1).tanh(), floats(B, WIDTH, seed=2)]  # a complex factor, and a state
CLAMP, ADD = Guard("clamp", 0.25), Guard("add", 0.25)
STATE = [floats(B, G, K, V, seed=3), floats(B, G, K, seed=4)]


def heads(tokens: int) -> list[Tensor]:
    """q, k, v, S, z, a log gate and a rate for that many tokens."""
    q, k, v = (floats(B, n, tokens, size, seed=n) for n, size in ((H, K), (G, K), (G, V)))
    k = nn.functional.normalize(k, dim=-1)  # with longer keys a delta rule would grow
    return [q, k, v, *STATE, -floats(B, G, tokens, 1, seed=5).abs(), floats(B, G, tokens, 1, seed=6).sigmoid()]


def erased(ops: Any, x: list[Any], many: bool = False) -> Any:
    """Linear attention with its own erase vector, one log gate per key channel, and H heads that share G keys."""
    attend = ops.linear_attention_chunks if many else ops.linear_attention
    return attend(*x[:4], None, x[4], None, Erase(*x[5:]))


def by_channel(tokens: int, keys: int) -> list[Tensor]:
    """q, k, v, S, log gates, read and write vectors; the state has H heads, q and k have `keys`."""
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


# one node on target fused, except for gelu, an activation that it lacks
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
QKV = [floats(B, H, T, K), floats(B, G, T, K, seed=1), floats(B, G, T, V, seed=2)]
PAST = [floats(B, G, P, K, seed=3), floats(B, G, P, V, seed=4)]
ROWS = floats(B * T, WIDTH)


def with_past(ops: Any, x: list[Any]) -> list[Any]:
    """q, k and v with a cache in front of k and v."""
    return [x[0], ops.concat([x[3], x[1]], axis=2), ops.concat([x[4], x[2]], axis=2)]
