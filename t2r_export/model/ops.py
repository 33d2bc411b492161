"""The small set of operators that a step is written in, and their eager form.

A model's `step` takes its operators as an argument. With `TORCH` it computes; with GraphOps of
`t2r_export.graph.recorder`, which has the same methods, the same code writes the ONNX graph. So there is one definition
of a step, the exporter needs to know no mixer, and writing a graph of 30 layers takes about as long as storing its
weights. A test compares the two classes method by method, in name and in value.

Tensors are (B, …). `axis` may be negative. Parameters are passed as the `torch.Tensor` that the module holds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FLOAT = torch.float32
_DTYPES = {"float32": torch.float32, "int32": torch.int32, "int64": torch.int64}


class TorchOps:
    """The operators, computed at once. Shapes are those of NumPy's broadcasting unless said otherwise."""

    damping = 1.0  # what linear attention multiplies φ(q) by, a power of two: its quotient is the same for any

    def parameter(self, tensor: Tensor) -> Any:
        """A weight as an operand."""
        return tensor

    def embedding(self, ids: Any, table: Tensor) -> Any:
        """Rows of `table` (N, D) at `ids` (…) -> (…, D). An id outside 0..N-1 is an error."""
        return F.embedding(ids, table)

    def linear(self, x: Any, weight: Tensor, bias: Tensor | None) -> Any:
        """x (…, I) @ weight (O, I)ᵀ + bias (O) -> (…, O)."""
        return F.linear(x, weight, bias)

    def linears(self, x: Any, groups: Sequence[Sequence[nn.Linear]]) -> list[Any]:
        """Several projections of one x (…, I): for each group what its layers give, side by side, (…, sum of their O).

        A graph computes them all in one product. All of them have a bias, or none has.
        """
        return [self.concat([F.linear(x, p.weight, p.bias) for p in group]) for group in groups]

    def layer_norm(self, x: Any, weight: Tensor, bias: Tensor, eps: float) -> Any:
        """Normalise the last axis to mean 0 and variance 1, then scale and shift (Ba et al. 2016)."""
        return F.layer_norm(x, weight.shape, weight, bias, eps)

    def rms_norm(self, x: Any, weight: Tensor | None, eps: float) -> Any:
        """Divide the last axis by its root mean square, then scale, if given (Zhang and Sennrich 2019)."""
        return F.rms_norm(x, x.shape[-1:], weight, eps)

    def add(self, a: Any, b: Any) -> Any:
        return a + b

    def accumulate(self, state: Any, increment: Any) -> Any:
        """state + increment, for a state that does nothing but grow: a graph may keep what the sum rounds off."""
        return self.add(state, increment)

    def sub(self, a: Any, b: Any) -> Any:
        return a - b

    def mul(self, a: Any, b: Any) -> Any:
        return a * b

    def div(self, a: Any, b: Any) -> Any:
        return a / b

    def maximum(self, x: Any, low: float) -> Any:
        """Elementwise max(x, low)."""
        return torch.clamp(x, min=low)

    def minimum(self, x: Any, high: float) -> Any:
        """Elementwise min(x, high)."""
        return torch.clamp(x, max=high)

    def matmul(self, a: Any, b: Any) -> Any:
        return torch.matmul(a, b)

    def relu(self, x: Any) -> Any:
        return F.relu(x)

    def exp(self, x: Any) -> Any:
        return torch.exp(x)

    def sigmoid(self, x: Any) -> Any:
        return torch.sigmoid(x)

    def log_sigmoid(self, x: Any) -> Any:
        """log(1 / (1 + exp(-x))), exact where the sigmoid is nearly 1."""
        return F.logsigmoid(x)

    def elu(self, x: Any) -> Any:
        """x where it is positive, exp(x) - 1 elsewhere (Clevert et al. 2016)."""
        return F.elu(x)

    def mean(self, x: Any) -> Any:
        """Mean over the last axis, which stays with size 1."""
        return x.mean(-1, keepdim=True)

    def largest(self, x: Any) -> Any:
        """Largest number of the last axis, which stays with size 1."""
        return x.amax(-1, keepdim=True)

    def silu(self, x: Any) -> Any:
        return F.silu(x)

    def tanh(self, x: Any) -> Any:
        return torch.tanh(x)

    def gelu(self, x: Any, tanh: bool) -> Any:
        """GELU (Hendrycks and Gimpel 2016), exact or with the tanh approximation."""
        return F.gelu(x, approximate="tanh" if tanh else "none")

    def sin(self, x: Any) -> Any:
        return torch.sin(x)

    def cos(self, x: Any) -> Any:
        return torch.cos(x)

    def softmax(self, x: Any) -> Any:
        """Softmax over the last axis."""
        return F.softmax(x, dim=-1)

    def top_k(self, x: Any, count: int) -> tuple[Any, Any]:
        """The largest `count` numbers of the last axis, falling, and their places, int64: (…, count) each."""
        found = torch.topk(x, count)
        return found.values, found.indices

    def take_along(self, x: Any, places: Any) -> Any:
        """Elements of x (…, N) at places (…, M) of its last axis -> (…, M). The other axes are the same."""
        return torch.gather(x, -1, places)

    def cast(self, x: Any, dtype: str) -> Any:
        """To `float32`, `int32` or `int64`."""
        return x.to(_DTYPES[dtype])

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        """To `shape`; -1 stands for the batch (or whatever is left)."""
        return x.reshape(tuple(shape))

    def unsqueeze(self, x: Any, axis: int) -> Any:
        return x.unsqueeze(axis)

    def squeeze(self, x: Any, axis: int) -> Any:
        """Drop an axis of size 1."""
        return x.squeeze(axis)

    def digits(self, x: Any, base: int, count: int) -> Any:
        """The digits of whole numbers 0 <= x (…) < base^count, each as a row of its own table: int32 (…, count).

        Entry i is the digit of base^i, plus i · base.
        """
        place = torch.arange(count, device=x.device)
        digit = x.long().unsqueeze(-1) // base**place % base
        return (digit + place * base).int()

    def transpose(self, x: Any, axes: Sequence[int]) -> Any:
        """Permute all axes."""
        return x.permute(tuple(axes))

    def split(self, x: Any, sizes: Sequence[int], axis: int = -1) -> list[Any]:
        return list(torch.split(x, list(sizes), dim=axis))

    def concat(self, parts: Sequence[Any], axis: int = -1) -> Any:
        return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=axis)

    def rows(self, x: Any) -> Any:
        """x (B, D), or (B, T, D) -> (B·T, D): one row a token, sequence after sequence."""
        return x.flatten(0, -2)

    def positions(self, start: Any, rows: Any) -> tuple[Any, Any]:
        """The position `start` (B,) before tokens of `rows` (B·T, …) -> each row's (B·T,), and that after them (B,)."""
        tokens = len(rows) // len(start)
        steps = torch.arange(tokens, dtype=start.dtype, device=start.device)
        return (start[:, None] + steps).flatten(), start + tokens

    def by_head(self, x: Any, groups: int, size: int, state: Any) -> Any:
        """x (B·T, …), groups · R · size numbers a row, and a state (B, …) -> (B, groups, R·T, size): the R heads of a
        group one after the other, each with all tokens."""
        x = x.reshape(len(state), -1, groups, row_size(x) // (groups * size), size)
        return x.permute(0, 2, 3, 1, 4).flatten(2, 3)

    def by_row(self, y: Any, per_group: int) -> Any:
        """Inverse of `by_head`: y (B, groups, R·T, size) with R heads a group -> (B·T, groups · R · size)."""
        return y.unflatten(2, (per_group, -1)).permute(0, 3, 1, 2, 4).flatten(0, 1).flatten(1)

    def unseen(self, past: Any, new: Any, window: int | None = None) -> Any:
        """For past (B, G, P, d) and new (B, G, T, d) one behind the other: float32 (T, P + T), 1 where a new token does
        not see another, and else 0. It sees itself, those before it, and of a window no more than as many."""
        tokens, total = new.shape[2], past.shape[2] + new.shape[2]
        own = torch.arange(total - tokens, total, device=new.device)[:, None]
        other = torch.arange(total, device=new.device)
        hidden = other > own if window is None else (other > own) | (other <= own - window)
        return hidden.float()

    def newest(self, x: Any, count: int) -> Any:
        """The last `count` of x (B, G, T, d) along T -> (B, G, count, d)."""
        return x[:, :, -count:]

    def oldest(self, x: Any, count: int) -> Any:
        """All but the last `count` of x (B, G, T + count, d) along that axis -> (B, G, T, d): a prompt's T tokens."""
        return x[:, :, :-count]

    def places(self, x: Any) -> Any:
        """0 … T - 1 for x (B, G, T, d), int32."""
        return torch.arange(x.shape[2], dtype=torch.int32, device=x.device)

    def last(self, x: Any, ids: Any) -> Any:
        """x (B·T, D), a row a token of `ids` -> the rows of each sequence's last token (B, D)."""
        return x.reshape(len(ids), -1, x.shape[-1])[:, -1]

    def sequences(self, x: Any) -> Any:
        """x (B·T, …) in the form in which this target's `linear_attention` takes a row of numbers: one change of shape
        for q, k and v together, before they are split."""
        return x

    def linear_attention(
        self, q: Any, k: Any, v: Any, S: Any, z: Any | None, log_gate: Any | None = None, beta: Any | None = None
    ) -> tuple[Any, Any, Any, Any]:
        """One token of linear attention, up to the guard and the division (Kasai et al. 2021, eq. 4 and 5).

        Or T tokens of each sequence, one after the other: then q, k, v and the first two results have B·T rows.
        What is given of log_gate and beta makes the update rule (t2r_export.model.mixers.recurrences).

        Args:
            q: φ(q), H·K numbers a row, head by head; k: φ(k), G·K numbers; v: G·V. All (B, …), of any such shape.
            S, z: the state before, (B, G, K, V) and (B, G, K). A layer without the normaliser z has None for it.
            log_gate: log of the share that is kept of S and z: (B or 1, G, 1 or K, 1).
            beta: (B, G, 1, 1), the rate of the delta rule, which has no z.

        Returns:
            φ(q)ᵀS (B, G, H/G, V), φ(q)·z (B, G, H/G, 1), and the state after, S and z; None for what is of no z.
        """
        if q.shape[0] != S.shape[0]:
            return self._one_by_one(q, k, v, S, z, log_gate, beta)
        G, K, V = S.shape[1:]
        q = self.reshape(q, (-1, G, row_size(q) // (G * K), K))
        column, v = self.reshape(k, (-1, G, K, 1)), self.reshape(v, (-1, G, 1, V))
        kept = None if log_gate is None else self.exp(log_gate)
        if kept is not None:
            S = self.mul(S, kept)
        if beta is not None:
            v = self.mul(self.sub(v, self.matmul(self.reshape(k, (-1, G, 1, K)), S)), beta)
        # the outer product as a MatMul: a broadcasting Mul of [·, K, 1] was silently wrong on one accelerator
        S = self.accumulate(S, self.matmul(column, v))
        if z is None:
            return self.matmul(q, S), None, S, None
        if kept is not None:
            z = self.mul(z, self.squeeze(kept, -1))
        z = self.accumulate(z, self.reshape(k, (-1, G, K)))
        return self.matmul(q, S), self.matmul(q, self.reshape(z, (-1, G, K, 1))), S, z

    def _one_by_one(
        self, q: Any, k: Any, v: Any, S: Any, z: Any, log_gate: Any, beta: Any
    ) -> tuple[Any, Any, Any, Any]:
        """T tokens by their definition; for a text there are faster forms (t2r_export.model.mixers.recurrences)."""
        T = len(q) // len(S)
        parts = [
            [x] * T if x is None or len(x) == 1 else x.unflatten(0, (-1, T)).unbind(1)  # a fixed gate has one row
            for x in (q, k, v, log_gate, beta)
        ]
        results = []
        for q_t, k_t, v_t, *control in zip(*parts, strict=True):
            *result, S, z = self.linear_attention(q_t, k_t, v_t, S, z, *control)
            results.append(result)
        numerator, denominator = zip(*results, strict=True)
        joined = (None if x[0] is None else torch.stack(x, 1).flatten(0, 1) for x in (numerator, denominator))
        return *joined, S, z


def row_size(x: Any) -> int:
    """Numbers in one row of x (B, …)."""
    return math.prod(x.shape[1:])


def update_rule(log_gate: Any | None, beta: Any | None) -> str:
    """The name that ONNX's LinearAttention has for the rule which these make."""
    return "_".join(name for name, part in (("gated", log_gate), ("delta", beta)) if part is not None) or "linear"


TORCH = TorchOps()
