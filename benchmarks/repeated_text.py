"""What a model remembers of a text that it reads again: nats per token of a repeated piece, by the tokens between.

    python benchmarks/repeated_text.py MODEL… --text TEXT [--piece 64] [--between 0,64,128,960] [--pieces 64]
        [--save benchmarks/results/NAME.json] [--page docs/PAGE.md]

Each sequence is a piece of the test part, other text of it, and the piece again. A cell has the nats per token of the
second reading and, in brackets, of the same tokens after a different piece, all but the first token of the piece. A
model that remembers nothing has the same number twice. The state of linear attention and windows is bounded, softmax
attention can look up every token (Jelassi et al. 2024, arXiv 2402.01032).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from builds import add_outputs, show
from comparison.tables import Table
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.data.corpus import held_out_windows, read_corpus
from t2r_export.data.shards import IntArray
from t2r_export.quality.evaluate import token_losses
from t2r_runtime.errors import UserError


def sequences(tokens: IntArray, piece: int, between: int, count: int) -> tuple[Tensor, Tensor]:
    """Sequences that read a piece twice, and the same with another first piece.

    Args:
        tokens: (N,), the text.
        count: most sequences, evenly spread over the text.

    Returns:
        Two tensors (count, 2 · piece + between); in the second, the first piece is that of the next sequence.

    Raises:
        UserError: a text of fewer than two sequences.
    """
    parts = held_out_windows(tokens, piece + between - 1, count)
    if len(parts) < 2:
        raise UserError(f"a text of at least {2 * (piece + between) - 1} tokens", str(len(tokens)), "name a longer one")
    pieces, others = parts[:, :piece], parts[:, piece:]
    return torch.cat([pieces, others, pieces], 1), torch.cat([pieces.roll(-1, 0), others, pieces], 1)


def measured(loaded: Checkpoint, tokens: IntArray, piece: int, between: int, count: int) -> tuple[float, float]:
    """Nats per token of the pieces when read again, and after another piece."""
    again, other = (
        torch.cat([token_losses(loaded.model, row[None])[:, 1 - piece :] for row in rows]).mean().item()
        for rows in sequences(tokens, piece, between, count)
    )
    return again, other


def compared(options: argparse.Namespace) -> Table:
    distances: Sequence[int] = [int(part) for part in options.between.split(",")]
    rows = []
    for path in options.models:
        loaded = checkpoint.load(path)
        tokens = read_corpus([options.text], loaded.tokenizer, loaded.config).test
        found = (measured(loaded, tokens, options.piece, between, options.pieces) for between in distances)
        rows.append([path.stem, *(f"{again:.2f} ({other:.2f})" for again, other in found)])
    return Table("", ["model", *(f"after {between:,}" for between in distances)], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--piece", type=int, default=64, help="tokens of a piece")
    parser.add_argument("--between", default="0,64,128,960", help="numbers of tokens between both readings")
    parser.add_argument("--pieces", type=int, default=64)
    add_outputs(parser)
    options = parser.parse_args()
    show(compared(options), options)


if __name__ == "__main__":
    main()
