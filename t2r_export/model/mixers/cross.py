"""Cross-attention mixers: constant states computed from the source, and how a query reads them.

`softmax` stores the source's keys and values (Vaswani et al. 2017, section 3.2.3). `linear` stores sums over the
source's tokens m (Kasai et al. 2021, arXiv 2103.13076, section 2), so that a step does not depend on the length:

    S = Σ_m φ(k_m) v_mᵀ      z = Σ_m φ(k_m)      o_t = φ(q_t)ᵀ S / guard(φ(q_t)·z)

Padding contributes to neither.
"""

from __future__ import annotations

import dataclasses

from torch import Tensor, nn

from t2r_export.config.mixers import LinearConfig, MixerConfig
from t2r_export.model.mixers.base import HeadSizes, Packing
from t2r_export.model.mixers.feature_maps import FeatureMaps
from t2r_export.model.mixers.linear import head_norm
from t2r_export.model.mixers.source import attend_source, read_sums, sum_source
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.step import Step
from t2r_runtime.contract.state_spec import BATCH, SOURCE_LENGTH, StateSpec


class CrossMixer(nn.Module):
    """The operation between the projections of a cross-attention layer."""

    needs_lengths = False  # whether steps use the source lengths

    def __init__(self, sizes: HeadSizes, config: MixerConfig) -> None:
        super().__init__()
        self.sizes, self.config = sizes, config

    def state_spec(self) -> list[StateSpec]:
        """The constant states."""
        raise NotImplementedError

    def read(self, k: T, v: T, source: Step[T]) -> State[T]:
        """Source k and v (B, G, M, ·) and context -> states. Mixers that borrow weights ignore k."""
        raise NotImplementedError

    def forward(self, q: T, state: State[T], step: Step[T]) -> T:
        """q (B, H, T, ·) and states -> o (B, H, T, V)."""
        raise NotImplementedError

    def argument_sizes(self) -> tuple[int, int]:
        """For folded layers: sizes per head of φ's arguments, for q and k."""
        raise NotImplementedError

    def packing(self) -> Packing | None:
        """As `AttentionMixer.packing`."""
        return None

    def fold(self, like: Tensor) -> CrossMixer:
        """The folded mixer, with the dtype and device of `like`."""
        raise NotImplementedError


class SoftmaxCross(CrossMixer):
    """softmax(q·k / √d) v over the source."""

    needs_lengths = True

    def state_spec(self) -> list[StateSpec]:
        shape = (BATCH, self.sizes.kv_heads, SOURCE_LENGTH, self.sizes.size)
        return [StateSpec(f"source_{name}", "float32", shape, constant=True) for name in ("k", "v")]

    def read(self, k: T, v: T, source: Step[T]) -> State[T]:
        return {"source_k": k, "source_v": v}

    def forward(self, q: T, state: State[T], step: Step[T]) -> T:
        return attend_source(q, state["source_k"], state["source_v"], self.sizes, step)


class SourceSums(nn.Module):
    """Sums of linear attention over a source, with any feature map and normalizer."""

    def __init__(self, sizes: HeadSizes, config: LinearConfig) -> None:
        super().__init__()
        self.sizes, self.config = sizes, config
        self.maps = FeatureMaps(sizes.heads, sizes.kv_heads, sizes.size, config)
        self.norm = head_norm(config, sizes)

    def sums(self, k: T, v: T, source: Step[T]) -> tuple[T, T | None]:
        """Source k and v (B, G, M, ·) -> S (B, G, K, V), and z (B, G, K) if it normalizes."""
        S, z = sum_source(self.maps.of_keys, k, v, source)
        return S, z if self.config.normalizer == "z" else None

    def forward(self, q: T, S: T, z: T | None, ops: Ops[T]) -> T:
        """q (B, H, T, ·) and sums -> o (B, H, T, V)."""
        config, phi = self.config, self.maps.of_queries
        if not config.folded and config.query_scale != 1.0:
            q = ops.mul(q, config.query_scale)
        q = phi.of(q, True, ops)
        if z is not None:
            q = ops.damp(q)
        o, denominator = read_sums(q, S, z, ops)
        if denominator is not None:
            o = ops.divide(o, denominator, config.guard)
        normed: T = self.norm(o, ops)
        return normed

    def packing(self) -> Packing:
        """As `AttentionMixer.packing`."""
        of_q, of_k = self.maps.of_queries.affine(), self.maps.of_keys.affine()
        return Packing(of_q, of_k, self.config.query_scale, None)

    def fold(self, like: Tensor) -> SourceSums:
        """The folded sums, with the dtype and device of `like`."""
        made = SourceSums(self.sizes, dataclasses.replace(self.config, folded=True)).to(like)
        made.maps.load_folded(self.maps)
        made.norm.load_state_dict(self.norm.state_dict())
        return made


class LinearCross(CrossMixer):
    """Linear attention to a source."""

    def __init__(self, sizes: HeadSizes, config: LinearConfig) -> None:
        super().__init__(sizes, config)
        self.over = SourceSums(sizes, config)

    def state_spec(self) -> list[StateSpec]:
        config, G = self.over.config, self.sizes.kv_heads
        S = StateSpec("source_S", "float32", (BATCH, G, config.feature_size, self.sizes.size), constant=True)
        z = StateSpec("source_z", "float32", (BATCH, G, config.feature_size), constant=True)
        return [S, z] if config.normalizer == "z" else [S]

    def read(self, k: T, v: T, source: Step[T]) -> State[T]:
        S, z = self.over.sums(k, v, source)
        return {"source_S": S} if z is None else {"source_S": S, "source_z": z}

    def forward(self, q: T, state: State[T], step: Step[T]) -> T:
        o: T = self.over(q, state["source_S"], state.get("source_z"), step.ops)
        return o

    def argument_sizes(self) -> tuple[int, int]:
        return self.over.maps.of_queries.argument_size, self.over.maps.of_keys.argument_size

    def packing(self) -> Packing:
        return self.over.packing()

    def fold(self, like: Tensor) -> LinearCross:
        over = self.over.fold(like)
        made = LinearCross(self.sizes, over.config)
        made.over = over
        return made
