"""The encoder: a stack whose layers see a whole source, and give rows that a decoder's layers look at."""

from __future__ import annotations

from torch import nn

from t2r_export.config.model import EncoderConfig
from t2r_export.model.ops import Ops, T
from t2r_export.model.stack import Stack
from t2r_export.model.step import Step


class Encoder(Stack):
    """Reads sources, each from the front of its row.

    Args:
        config: the encoder's. width: the decoder's.
    """

    def __init__(self, config: EncoderConfig, width: int) -> None:
        super().__init__(config, width, config.vocab_size)

    def run(self, ids: T, lengths: T, table: nn.Embedding, ops: Ops[T]) -> tuple[T, Step[T]]:
        """Source ids (B, M), lengths (B,) of at most M, int32, and the decoder's table of tokens -> rows (B·M, D), and
        what layers that look at them may ask."""
        step = Step(ops, ops.sub(lengths, lengths), self.ropes, lengths=lengths)  # every source starts at 0
        x = self.embed(ids, step, None if hasattr(self, "embedding") else table)
        for block in self.blocks:
            x, _ = block(x, {}, step)
        return self.normed(x, ops), step
