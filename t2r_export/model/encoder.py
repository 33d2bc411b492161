"""The encoder: a bidirectional stack whose output a decoder's layers read."""

from __future__ import annotations

from torch import nn

from t2r_export.config.model import EncoderConfig
from t2r_export.model.ops import Ops, T
from t2r_export.model.stack import Stack
from t2r_export.model.step import Step


class Encoder(Stack):
    """Encodes left-aligned sources.

    Args:
        config: the encoder's config.
        width: D, of encoder and decoder.
    """

    def __init__(self, config: EncoderConfig, width: int) -> None:
        super().__init__(config, width, config.vocab_size)

    def run(self, ids: T, lengths: T, table: nn.Embedding, ops: Ops[T]) -> tuple[T, Step[T]]:
        """Encode sources.

        Args:
            ids: (B, M).
            lengths: (B,) int32, at most M.
            table: the decoder's embedding, used if the encoder has none.

        Returns:
            Rows (B·M, D), and the context for parts that read them.
        """
        step = Step(ops, ops.sub(lengths, lengths), self.ropes, lengths=lengths)  # positions start at 0
        x = self.embed(ids, step, None if hasattr(self, "embedding") else table)
        for layer, block in enumerate(self.layers):
            x, _ = block(self.entered(x, layer, step), {}, step)
        return self.normed(x, ops), step
