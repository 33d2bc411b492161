"""A stack: what tokens look like to its first block, and its blocks. A decoder is one, and an encoder."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from t2r_export.config.model import StackConfig
from t2r_export.config.positions import RotaryConfig
from t2r_export.model.block import Block, Norm
from t2r_export.model.ops import Ops, T
from t2r_export.model.parts.base import Site
from t2r_export.model.positions.base import Positions, build_positions
from t2r_export.model.step import Step


class Stack(nn.Module):
    """Tables, positions, rotations, blocks and the last norm.

    Args:
        config: the stack's. width: of its rows. vocab_size: rows of its table of tokens; None: it has none of its own.
    """

    blocks: Sequence[Block]  # an nn.ModuleList, as is
    ropes: Sequence[Positions]

    def __init__(self, config: StackConfig, width: int, vocab_size: int | None) -> None:
        super().__init__()
        self.config = config
        if vocab_size is not None:
            self.embedding = nn.Embedding(vocab_size, width)
        self.positions = build_positions(config.positions, width)
        self.embedding_norm = None if config.embedding_norm is None else Norm(config.embedding_norm, width)
        found = rotations(config)
        self.ropes = nn.ModuleList(build_positions(rotary, size) for rotary, size in found)  # type: ignore[assignment]
        above = [*config.layers[1:], None]
        lends = [layer is not None and any(part.borrows for part in layer.parts) for layer in above]
        blocks = (Block(layer, Site(width, found, lent)) for layer, lent in zip(config.layers, lends, strict=True))
        self.blocks = nn.ModuleList(blocks)  # type: ignore[assignment]
        self.norm = None if config.last_norm is None else Norm(config.last_norm, width)

    def embed(self, ids: T, step: Step[T], table: nn.Embedding | None = None) -> T:
        """What the first block sees: rows (N, D); `table` is another stack's, where this one has none."""
        ops = step.ops
        x = ops.flatten_tokens(ops.embedding(ids, (table or self.embedding).weight))
        if self.config.embedding_scale != 1.0:
            x = ops.mul(x, self.config.embedding_scale)
        if self.config.positions is not None:
            x = self.positions.embed(x, ops.reshape(step.place, (-1,)), ops)
        return x if self.embedding_norm is None else self.embedding_norm(x, ops)

    def normed(self, x: T, ops: Ops[T]) -> T:
        """Rows behind the last block (N, D) as what follows sees them."""
        return x if self.norm is None else self.norm(x, ops)


def rotations(config: StackConfig) -> list[tuple[RotaryConfig, int]]:
    """The different rotations of a stack's parts, each with the number of dimensions of a head that rotate."""
    asked = (rotation for layer in config.layers for part in layer.parts for rotation in part.rotations())
    return list(dict.fromkeys(asked))
