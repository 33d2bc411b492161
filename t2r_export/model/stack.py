"""A stack of blocks with embeddings, positions and a last norm: a decoder or an encoder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from t2r_export.config.model import StackConfig
from t2r_export.config.positions import RotaryConfig
from t2r_export.model.block import Block, BlockNorm
from t2r_export.model.ops import Ops, T
from t2r_export.model.parts.base import Site
from t2r_export.model.positions.base import Positions, build_positions
from t2r_export.model.step import Step


class Stack(nn.Module):
    """Embeddings, positions, rotations, blocks and the last norm.

    Args:
        config: the stack's config.
        width: D.
        vocab_size: size of the token embedding; None: no embedding.
    """

    blocks: Sequence[Block]  # nn.ModuleList
    ropes: Sequence[Positions]  # nn.ModuleList

    def __init__(self, config: StackConfig, width: int, vocab_size: int | None) -> None:
        super().__init__()
        self.config = config
        if vocab_size is not None:
            self.embedding = nn.Embedding(vocab_size, width)
        self.positions = build_positions(config.positions, width)
        self.embedding_norm = None if config.embedding_norm is None else BlockNorm(config.embedding_norm, width)
        found = rotations(config)
        self.ropes = nn.ModuleList(build_positions(rotary, size) for rotary, size in found)  # type: ignore[assignment]
        above = [*config.layers[1:], None]
        lends = [layer is not None and any(part.borrows for part in layer.parts) for layer in above]
        blocks = (Block(layer, Site(width, found, lent)) for layer, lent in zip(config.layers, lends, strict=True))
        self.blocks = nn.ModuleList(blocks)  # type: ignore[assignment]
        self.norm = None if config.last_norm is None else BlockNorm(config.last_norm, width)

    def embed(self, ids: T, step: Step[T], table: nn.Embedding | None = None) -> T:
        """Embed token ids as rows (N, D). Args: table: another stack's embedding, if this one has none."""
        ops = step.ops
        return self.placed(ops.flatten_tokens(ops.embedding(ids, (table or self.embedding).weight)), step)

    def placed(self, x: T, step: Step[T]) -> T:
        """Scale embedded rows x (N, D), add their positions and normalize them."""
        ops = step.ops
        if self.config.embedding_scale != 1.0:
            x = ops.mul(x, self.config.embedding_scale)
        if not self.config.depth_positions:
            x = self._positioned(x, step)
        return x if self.embedding_norm is None else self.embedding_norm(x, ops)

    def _positioned(self, x: T, step: Step[T]) -> T:
        """Rows x (N, D) with their positions."""
        if self.config.positions is None:
            return x
        return self.positions.embed(x, step.ops.reshape(step.place, (-1,)), step.ops)

    @property
    def layers(self) -> list[Block]:
        """The blocks in order of execution, with repetitions."""
        return [*self.blocks] * self.config.repeats

    def entered(self, x: T, layer: int, step: Step[T]) -> T:
        """Rows x (N, D) as input of layer `layer`.

        With `depth_positions`, repetition t of the blocks, from 1, starts with x + P^t, the positions plus sin and cos
        of t · 10000^(-2i/D) (Dehghani et al. 2018, arXiv 1807.03819, eq. 6 and 7).
        """
        if not self.config.depth_positions or layer % len(self.blocks):
            return x
        t, width = layer // len(self.blocks) + 1, x.shape[-1]
        angles = t * 10000.0 ** (-np.arange(0, width, 2) / width)
        depth = step.ops.constant(np.concatenate([np.sin(angles), np.cos(angles)]), "float32", f"depth_{t}_{width}")
        return step.ops.add(self._positioned(x, step), depth)

    def normed(self, x: T, ops: Ops[T]) -> T:
        """Apply the last norm to rows (N, D)."""
        return x if self.norm is None else self.norm(x, ops)


def rotations(config: StackConfig) -> list[tuple[RotaryConfig, int]]:
    """The distinct rotations of a stack, each with the number of rotated dimensions per head."""
    found = (rotation for layer in config.layers for part in layer.parts for rotation in part.rotations())
    return list(dict.fromkeys(found))
