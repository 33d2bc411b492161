"""Base of the parts with linear attention and a norm per head.

    q, k, v = conv(W x)          S_t by the part's update rule          y = W_o (norm(Sᵀ q) ⊙ act(z))

Each key head serves H / key_heads consecutive value heads. The norm is per head, with a scale shared by all heads.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from t2r_export.config.parts.linear import LinearPartConfig
from t2r_export.model.mixers.convolution import ShortConvolution
from t2r_export.model.mixers.gates import Control
from t2r_export.model.mixers.norms import gated_rms_norm, grouped_rms_norm
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.parts.base import Part, Site
from t2r_export.model.step import Step
from t2r_export.model.units import Rows, Units
from t2r_runtime.contract.state_spec import BATCH, StateSpec


class LinearPart(Part):
    """Projections, convolution, linear attention, gated norm, output. Subclasses add projections besides q, k and v."""

    config: LinearPartConfig

    def __init__(self, site: Site, config: LinearPartConfig) -> None:
        super().__init__(site, config)
        channels = sum(config.projected)
        self.qkv = nn.Linear(site.width, channels, bias=False)
        for name, size in self.beside().items():
            setattr(self, name, nn.Linear(site.width, size, bias=False))
        if config.taps:
            self.conv = ShortConvolution(config.taps, channels)
        self.build()
        self.norm_weight = nn.Parameter(torch.ones(config.value_size))
        self.o = nn.Linear(config.inner, site.width, bias=False)

    def beside(self) -> dict[str, int]:
        """Sizes of further projections of x, by the names of their modules."""
        return {} if self.config.gate == "none" else {"z": self.config.inner}

    def build(self) -> None:
        """Create the weights other than projections of x."""

    def activated(self, packed: T, ops: Ops[T]) -> T:
        """Activate the convolved rows of q, k and v."""
        return ops.silu(packed)

    def features(self, q: T, k: T, step: Step[T]) -> tuple[T, T]:
        """Map q and k (B, key_heads, T, K) to those of the update rule."""
        raise NotImplementedError

    def control(self, beside: dict[str, T], ops: Ops[T]) -> Control[T]:
        """Decays and rates from the further projections, rows (N, size) each."""
        raise NotImplementedError

    def gate(self, beside: dict[str, T], ops: Ops[T]) -> T:
        """Logits of the output gate, rows (N, H · V)."""
        return beside["z"]

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops, c, names = step.ops, self.config, list(self.beside())
        packed, *others = ops.linears(x, [[self.qkv], *([self.get_submodule(name)] for name in names)])  # type: ignore[list-item]
        beside, after = dict(zip(names, others, strict=True)), dict[str, T]()
        if c.taps:
            packed, after["conv"] = self.conv(packed, state["conv"], ops)
        q, k, v = ops.split(self.activated(packed, ops), c.projected)
        q, k = self.features(ops.split_heads(q, c.key_heads), ops.split_heads(k, c.key_heads), step)
        rule, v = self.control(beside, ops), ops.split_heads(v, c.heads)
        o, _, S, _ = ops.linear_attention(q, k, v, state["S"], None, rule.log_gate, rule.beta)
        y = self._normed(ops.merge_heads(o), beside, ops)
        return ops.linear(y, self.o.weight, None), {"S": S, **after}

    def _normed(self, o: T, beside: dict[str, T], ops: Ops[T]) -> T:
        c = self.config
        if c.gate == "none":
            return grouped_rms_norm(o, self.norm_weight, c.norm_eps, c.heads, ops)
        return gated_rms_norm(o, self.gate(beside, ops), self.norm_weight, c.norm_eps, c.heads, ops, activation=c.gate)

    def keyed(self) -> tuple[str, ...]:
        """Names of weights with a row per channel of each head's state."""
        return ()

    def units(self, kind: str) -> Units | str | None:
        """Channels of the state, those of q and k, separate for each key head.

        With K' channels q is √(K/K') times as long; the output norm cancels this factor if its eps grows by K/K'.
        """
        if kind != "state":
            return None
        c = self.config
        keys, groups = torch.arange(c.key_heads * c.key_size), torch.arange(c.heads) // (c.heads // c.key_heads)
        joined = torch.cat([keys, keys, torch.full((c.inner,), -1)])
        rows = {"qkv.weight": Rows((0,), joined)}
        rows |= {"conv.weight": Rows((1,), joined)} if c.taps else {}
        rows |= {name: Rows((0,), keys.view(c.key_heads, -1)[groups].flatten()) for name in self.keyed()}

        def smaller(kept: Tensor) -> LinearPartConfig:
            K = int(kept.sum()) // c.key_heads
            return replace(c, key_size=K, norm_eps=c.norm_eps * c.key_size / K)

        return Units(len(keys), rows, smaller, c.key_heads)

    def state_spec(self) -> list[StateSpec]:
        c = self.config
        S = StateSpec("S", "float32", (BATCH, c.heads, c.key_size, c.value_size))
        return [S, self.conv.state_spec()] if c.taps else [S]
