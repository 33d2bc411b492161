"""A stack: what tokens look like to its first block, and its blocks. A decoder is one, and an encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from t2r_export.config.model import ModelConfig
from t2r_export.model.attention import rotations
from t2r_export.model.block import Block, Norm
from t2r_export.model.mixers.base import Mixer
from t2r_export.model.ops import Ops, T
from t2r_export.model.positions import Rope, build_positions
from t2r_export.model.step import Step


class Stack(nn.Module):
    """Tables, positions, rotations, blocks and the last norm.

    Args:
        config: the stack's. mixers: the token mixers of each layer. table: whether it has a table of tokens of its own.
    """

    blocks: Sequence[Block]  # an nn.ModuleList, as is
    ropes: Sequence[Rope]

    def __init__(self, config: ModelConfig, mixers: Callable[[int], list[Mixer]], table: bool = True) -> None:
        super().__init__()
        self.config = config
        if table:
            self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.positions = build_positions(config)
        self.embedding_norm = Norm(config) if config.embedding_norm else None
        self.ropes = nn.ModuleList(Rope(rotary, size) for rotary, size in rotations(config))  # type: ignore[assignment]
        layers = range(len(config.layers))
        self.blocks = nn.ModuleList(Block(config, n, mixers(n)) for n in layers)  # type: ignore[assignment]
        self.norm = Norm(config) if config.last_norm else None

    def embed(self, ids: T, step: Step[T], table: nn.Embedding | None = None) -> T:
        """What the first block sees: rows (N, D); `table` is another stack's, where this one has none."""
        ops = step.ops
        x = ops.flatten_tokens(ops.embedding(ids, (table or self.embedding).weight))
        if self.config.embedding_scale != 1.0:
            x = ops.mul(x, self.config.embedding_scale)
        if self.config.position != "none":
            x = self.positions.embed(x, ops.reshape(step.place, (-1,)), ops)
        return x if self.embedding_norm is None else self.embedding_norm(x, ops)

    def normed(self, x: T, ops: Ops[T]) -> T:
        """Rows behind the last block (N, D) as what follows sees them."""
        return x if self.norm is None else self.norm(x, ops)
