"""Recorders of the targets in t2r_export.config.targets, each overriding what differs from the portable one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from t2r_export.graph.portable import GraphOps
from t2r_export.graph.recorder import Dim, Value, product
from t2r_export.model.experts import of_each, total, weights_of
from t2r_export.model.ops import Erase, Experts, update_rule

MAX_AXES = 3  # of a tensor that the skip-norm kernels support
LEAST = 1e-30  # weight of an expert that was not chosen; its logarithm is finite
# MoE's activation names by (gated, activation); its gelu is the tanh approximation
OF_EXPERTS = {
    (True, "silu"): "swiglu",
    (False, "silu"): "silu",
    (False, "relu"): "relu",
    (False, "gelu_tanh"): "gelu",
}


class AttentionOps(GraphOps):
    """Linear attention as a single node.

    For prompts, ONNX Runtime's CPU kernel reads token by token. Parallel chunks are as fast for sums and per-head
    decays; for the other rules the node takes a third of the time or less (16 heads of 64 and of 128).

    z is computed in standard operators, or by a second node (`FusedOps`). A column of ones in v would merge S and z
    into one state, but only the features of S rotate.
    """

    domain: str
    shares_keys = False  # whether q and k may have fewer heads than v and the state
    reads_prompts = False  # whether the node has a kernel for many tokens

    def __init__(self, model: nn.Module, batch: Dim, tokens: str | None = None) -> None:
        super().__init__(model, batch, tokens)
        self._batch: Value | None = None

    def pack_for_fused(self, x: Value) -> Value:
        # reshape q, k and v together before splitting
        return x if self.many else self.settled(self._packed(x)).viewed(x.shape)

    def _packed(self, x: Value) -> Value:
        """Values of one token per sequence, as (B, T=1, n)."""
        return x.viewed((x.shape[0], 1, product(x.shape[1:])))

    def linear_attention(
        self,
        q: Value,
        k: Value,
        v: Value,
        S: Value,
        z: Value | None,
        log_gate: Value | None = None,
        beta: Value | None = None,
        erase: Erase[Value] | None = None,
    ) -> tuple[Value, Value | None, Value, Value | None]:
        if erase is not None or (self.many and not self._one_node(log_gate, beta)):
            return super().linear_attention(q, k, v, S, z, log_gate, beta, erase)
        if not self.shares_keys:
            q, k = self._spread(q, k, S.shape[1])  # type: ignore[arg-type]
        if self.many:
            return self._of_tokens(q, k, v, S, z, log_gate, beta)
        packed = [*map(self._packed, (q, k, v)), S, *(x and self._row(x, S) for x in (log_gate, beta))]
        numerator, after = self._attention(packed, q.shape[1])
        heads: int = max(q.shape[1], S.shape[1])  # type: ignore[assignment]
        numerator = self.reshape(numerator, (0, heads, 1, v.shape[3]))  # type: ignore[arg-type]
        if z is None:
            return numerator, None, after, None
        denominator, z = self.normalizer(q, k, z, log_gate)
        return numerator, denominator, after, z

    def _attention(self, packed: Sequence[Value | None], heads: Dim) -> list[Value]:
        """Add the node for q, k, v, the state, log gates and rates; returns its output and the new state.

        Args:
            heads: number of heads of q.
        """
        _, _, v, S, log_gate, beta = packed
        assert v is not None and S is not None and isinstance(heads, int)
        G, V = S.shape[1], S.shape[3]
        assert isinstance(G, int) and isinstance(V, int)
        given = [Value("", "float32", ()) if x is None else x for x in packed]
        while not given[-1].name:
            given.pop()
        return self.emit_many(
            "LinearAttention",
            given,
            [(*v.shape[:2], max(heads, G) * V), S.shape],
            domain=self.domain,
            update_rule=update_rule(log_gate, beta),
            scale=1.0,  # omitted or 0, it would be K^-0.5
            q_num_heads=heads,
            kv_num_heads=G,
        )

    def _one_node(self, log_gate: Value | None, beta: Value | None) -> bool:
        """Whether to use one node for many tokens: for draft checks, and for rules where chunks are slower."""
        by_channel = log_gate is not None and log_gate.shape[-1] != 1
        return self.keep is not None or (self.reads_prompts and (beta is not None or by_channel))

    def _of_tokens(
        self, q: Value, k: Value, v: Value, S: Value, z: Value | None, log_gate: Value | None, beta: Value | None
    ) -> tuple[Value, Value | None, Value, Value | None]:
        """One node for the outputs of all tokens and, if only some are kept, another for the state: zero keys, gates
        and rates leave a state unchanged. z is a column of S here."""
        H, G, V = q.shape[1], S.shape[1], v.shape[3]
        assert isinstance(H, int) and isinstance(G, int) and isinstance(V, int)
        state = S if z is None else self.concat([S, self.unsqueeze(z, -1)])
        if z is not None:
            v = self.prompt.filled(v, None, 1, 1.0, (*v.shape[:3], V + 1))
        W = V + (z is not None)
        q, k, v = map(self._by_token, (q, k, v))
        of_gates, of_rates = (x and self._by_token(self.prompt.of_each(x)) for x in (log_gate, beta))
        both, after = self._attention([q, k, v, state, of_gates, of_rates], H)
        if self.keep is not None:
            kept = [x and self._of_kept_tokens(x) for x in (k, of_gates, of_rates)]
            _, after = self._attention([q, kept[0], v, state, *kept[1:]], H)
        seen = self.transpose(self.prompt.by_sequence(both, max(H, G), W), (0, 2, 1, 3))
        if z is None:
            return seen, None, after, None
        (numerator, denominator), (S, z) = self.split(seen, [V, 1]), self.split(after, [V, 1])
        return numerator, denominator, S, self.squeeze(z, -1)

    def _by_token(self, x: Value) -> Value:
        """Heads (B, heads, T, size) as (B, T, heads · size)."""
        B, heads, T, size = x.shape
        return self.transpose(x, (0, 2, 1, 3)).viewed((B, T, product([heads, size])))

    def _of_kept_tokens(self, x: Value) -> Value:
        """x (B, T, n) with zeros for tokens that do not update the state."""
        assert self._kept is not None
        mask = self._kept.mask()
        return self.mul(x, mask.viewed((mask.shape[0], mask.shape[-1], 1)))

    def _row(self, x: Value, state: Value) -> Value:
        """x (B or 1, …) expanded to one token per sequence, (B, 1, n)."""
        x = self._packed(x)
        if x.shape[0] == self.batch:
            return x
        shape = (self.batch, 1, x.shape[2])
        if isinstance(self.batch, int):
            sizes = self.constant(shape, "int64")
        else:
            sizes = self.concat([self._batch_of(state), self.constant(shape[1:], "int64")])
        return self.emit("Expand", [x, sizes], shape)

    def _batch_of(self, x: Value) -> Value:
        """The batch size (1,), int64, taken from the first x; all layers share it."""
        if self._batch is None:
            self._batch = self.emit("Shape", [x], (1,), "int64", end=1)
        return self._batch


class FusedOps(AttentionOps):
    """Nodes of ONNX Runtime's domain with CPU, CUDA and WebGPU kernels: linear attention, rotary embedding in a step,
    skip + norm, which ONNX Runtime's fusions do not merge for 2-D tensors, and mixtures of experts."""

    domain = "com.microsoft"
    shares_keys, reads_prompts = True, True

    def normalizer(self, q: Value, k: Value, z: Value, log_gate: Value | None = None) -> tuple[Value, Value]:
        # z is S of values that are all ones: for a gated layer five nodes fewer than in standard operators
        if self.many:
            return super().normalizer(q, k, z, log_gate)
        heads = z.shape[1]
        ones = self._row(self.constant(np.ones((1, heads)), "float32", f"ones_{heads}"), z)
        v = ones.viewed((self.batch, heads, 1, 1))
        denominator, _, after, _ = self.linear_attention(q, k, v, self.unsqueeze(z, -1), None, log_gate)
        return denominator, self.squeeze(after, -1)

    def rotate(self, x: Value, cos: Value, sin: Value) -> Value:
        B = x.shape[0]
        if self.many or cos.shape[0] != B or x.shape[2] != 1:  # many tokens, or keys of a buffer at their positions
            return super().rotate(x, cos, sin)
        _, heads, _, d = x.shape
        assert isinstance(heads, int) and isinstance(d, int) and isinstance(cos.shape[-1], int)
        # the node looks up angles by position: row b of the table belongs to sequence b
        table = [self.settled(part.viewed((B, part.shape[-1]))) for part in (cos, sin)]
        size = 2 * cos.shape[-1]
        (y,) = self.emit_many(
            "RotaryEmbedding",
            [self._packed(x), self._rows_of(cos), *table],
            [(B, 1, heads * d)],
            domain=self.domain,
            num_heads=heads,
            rotary_embedding_dim=0 if size == d else size,
        )
        return y.viewed(x.shape)

    def _rows_of(self, x: Value) -> Value:
        """The index of each sequence (B, 1), int64."""
        B = x.shape[0]
        if isinstance(B, int):
            return self.constant(np.arange(B)[:, None], "int64", f"sequences_{B}")
        return self.unsqueeze(self._places(B, self._batch_of(x)), 1)

    def experts(self, x: Value, scores: Value, experts: Experts) -> Value:
        activation = OF_EXPERTS.get((experts.gated, experts.activation))
        if activation is None:
            return super().experts(x, scores, experts)
        if experts.router == "softmax" and experts.choice_bias is None and experts.scale == 1:
            y = self._moe(x, scores, experts, activation)
            # normalize_routing_weights=0 means the same, but QMoE of 1.32 then computes something else
            return y if experts.renormalize else self.mul(y, total(weights_of(scores, experts, self)[0], self))
        # any weights w: softmax over log w of the chosen is w / Σ w
        weights, chosen = weights_of(scores, experts, self)
        each = self.reshape(of_each(weights, chosen, experts, self), (0, -1))
        y = self._moe(x, self.log(self.maximum(each, LEAST)), experts, activation)
        return self.mul(y, total(weights, self))

    def _moe(self, x: Value, scores: Value, experts: Experts, activation: str) -> Value:
        """The node whose weights are softmax over the largest scores."""
        up, down = map(self.parameter, (experts.up, experts.down))
        return self.emit(
            "MoE",
            [x, scores, up, Value("", "float32", ()), down],
            x.shape,
            name=self.unique_name(up, "moe"),
            domain=self.domain,
            k=experts.top,
            normalize_routing_weights=1,
            activation_type=activation,
            activation_alpha=1.0,
            activation_beta=0.0,
            swiglu_fusion=int(experts.gated),  # gate and up interleaved, the only layout of the CPU kernel
        )

    def layer_norm(self, x: Value, weight: Tensor, bias: Tensor, eps: float) -> Value:
        return self._of_a_sum("SkipLayerNormalization", x, [weight, bias], eps) or super().layer_norm(
            x, weight, bias, eps
        )

    def rms_norm(self, x: Value, weight: Tensor | None, eps: float) -> Value:
        fused = weight is not None and self._of_a_sum("SkipSimplifiedLayerNormalization", x, [weight], eps)
        return fused or super().rms_norm(x, weight, eps)

    def _of_a_sum(self, op: str, x: Value, weights: Sequence[Tensor], eps: float) -> Value | None:
        """Fuse the norm of x with the sum that computed x, if that is the last node."""
        addends = self.sums.get(x.name)
        if addends is None or self.nodes[-1].output[0] != x.name or len(x.shape) > MAX_AXES:
            return None
        self.nodes.pop()
        inputs = [*addends, *(self.parameter(weight) for weight in weights)]
        y, _ = self.emit_many(op, inputs, [x.shape, x.shape], domain=self.domain, epsilon=eps)
        self.nodes[-1].output[1:] = ["", "", x.name]  # mean and deviation are used only in training
        self.declared[-1] = x
        return y


class StandardOps(AttentionOps):
    """Linear attention as defined by ONNX opset 27."""

    domain = ""


class NpuOps(GraphOps):
    """Replacements for portable operators that QNN, CoreML (ML programs) or NNAPI do not support.

    Left to the CPU: the embedding's Gather (unsupported by CoreML, and by NNAPI with 64-bit ids), which is the first
    node so that the rest forms one partition; and for NNAPI the exact Gelu.
    """

    def __init__(self, model: nn.Module, batch: Dim, tokens: str | None = None) -> None:
        super().__init__(model, batch, tokens)
        self._logits: dict[str, Value] = {}  # keyed by the name of their log_sigmoid

    def _bias(self, weight: Value, bias: Value | None) -> list[Value]:
        # a Gemm without bias crashes the XNNPACK provider of ONNX Runtime 1.21
        return super()._bias(weight, bias) or [self.constant(np.zeros(weight.shape[0]), "float32")]

    def layer_norm(self, x: Value, weight: Tensor, bias: Tensor, eps: float) -> Value:
        x = self.sub(x, self.mean(x))
        root = self._unary("Sqrt", self.add(self.mean(self.mul(x, x)), eps))
        return self.add(self.mul(self.div(x, root), self.parameter(weight)), self.parameter(bias))

    def gelu(self, x: Value, tanh: bool) -> Value:
        if not tanh:
            return super().gelu(x, tanh)
        # x · (1 + tanh u) / 2 is x · sigmoid(2u), for u = √(2/π) (x + 0.044715 x³) = x · √(2/π) (1 + 0.044715 x²)
        scale = 2 * math.sqrt(2 / math.pi)
        twice_u = self.mul(x, self.add(self.mul(self.mul(x, x), 0.044715 * scale), scale))
        return self.mul(x, self.sigmoid(twice_u))

    def exp(self, x: Value) -> Value:
        # exp of a log gate is the Sigmoid (NNAPI lacks Softplus, CoreML Neg); prune removes the unused logarithm
        logit = self._logits.get(x.name)
        return super().exp(x) if logit is None else self.sigmoid(logit)

    def log_sigmoid(self, x: Value) -> Value:
        y = super().log_sigmoid(x)
        self._logits[y.name] = x
        return y

    def cos(self, x: Value) -> Value:
        # halving is exact at every position; adding π/2 to a large angle is not
        sine = self.sin(self.mul(x, 0.5))
        return self.sub(1.0, self.mul(self.mul(sine, sine), 2.0))

    def split(self, x: Value, sizes: Sequence[int], axis: int = -1) -> list[Value]:
        if len(set(sizes)) == 1:
            return super().split(x, sizes, axis)
        axis %= len(x.shape)
        ends = list(itertools.accumulate(sizes))
        return [self.sliced(x, end - size, end, axis, size) for size, end in zip(sizes, ends, strict=True)]
