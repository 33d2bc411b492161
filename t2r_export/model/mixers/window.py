"""Sliding-window softmax attention with sinks, in a state of fixed size (StreamingLLM, Xiao et al. 2023, arXiv
2309.17453).

A query sees the first s tokens (sinks) and the last W tokens including itself: the first W + s tokens get full softmax
attention. See `sliding_window.SlidingWindow` for states and rotary positions.

With a dilation D, of the last W it sees those at distances below `local` or multiples of D: the dilated window of
Longformer (Beltagy et al. 2020, arXiv 2004.05150, section 3.1), and with `local` = D the strided pattern of the Sparse
Transformer (Child et al. 2019, arXiv 1904.10509, section 4.3).
"""

from __future__ import annotations

import torch
from torch import nn

from t2r_export.config.mixers import WindowConfig
from t2r_export.model.mixers.banded import transposed, weighted
from t2r_export.model.mixers.base import AttentionMixer, Heads, HeadSizes
from t2r_export.model.mixers.memory import Memory
from t2r_export.model.mixers.rows import Rows
from t2r_export.model.mixers.sink import with_sink
from t2r_export.model.mixers.sliding_window import SlidingWindow
from t2r_export.model.ops import State, T
from t2r_export.model.step import Step
from t2r_runtime.contract.state_spec import StateSpec


class WindowMixer(AttentionMixer):
    """Softmax attention over the first and last tokens with grouped key/value heads."""

    needs_position = True

    def __init__(self, sizes: HeadSizes, config: WindowConfig) -> None:
        super().__init__(sizes, config)
        d, N = sizes.size, config.memory
        # norms after the rotation need absolute positions: states are then rotated keys, and sinks keep their
        # distance, however large
        self.rotates = sizes.normed_after
        rope, pattern = None if self.rotates else sizes.rope, (config.dilation, config.local)
        self.near = SlidingWindow(sizes, config.window, config.sinks, rope, *pattern, Rows(config.cache_bits))
        self.memory = Memory(sizes.kv_heads, N, d, d, 0, False) if N else None
        self.sink = nn.Parameter(torch.zeros(sizes.heads)) if sizes.sink else None

    def forward(self, heads: Heads[T], state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        ops = step.ops
        heads, _, after = self.near.append(heads, state, step)
        scores, values = self.near.scores(heads, state, after, step)
        if self.memory is not None:  # without positions: queries are not rotated
            key, value = ops.parameter(self.memory.k), ops.parameter(self.memory.v)  # (G, N, d)
            if ops.many:  # (G, 1, N, d): the same for every chunk
                key, value = ops.unsqueeze(key, 1), ops.unsqueeze(value, 1)
            rows = self.near.rows(ops.mul(heads.q, self.sizes.scale), step)
            remembered = ops.soft_cap(ops.matmul(rows, transposed(key, ops)), self.sizes.softcap)
            scores, values = [remembered, *scores], [value, *values]
        y, weights = weighted(scores, values, ops)
        return with_sink(y, scores[-1], weights, self.sink, lambda x: self.near.outputs(x, step), ops), after

    def state_spec(self) -> list[StateSpec]:
        return self.near.state_spec()

    def memory_length(self) -> int:
        return self.near.last + 1
