"""Attention over a band: what the mixers share that look back a bounded number of tokens.

A step keeps its last tokens in a buffer, oldest first, and `push` moves them up by one. Their parallel form cuts the
text into chunks: the queries of a chunk see a slice of the keys that is one window longer, so that memory is linear in
the length of the text.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from t2r_export.ops import TORCH, TorchOps

# Added to the score of what a query must not see: exp of it is 0 in every precision. Finite, because providers differ
# in what -inf gives, and within the range of float16.
MASKED = -3e4
MIN_CHUNK = 16  # tokens: below it a product is too small to be worth a call


def push(buffer: Any, new: Any, ops: TorchOps = TORCH) -> Any:
    """The buffer (B, G, W, d) without its oldest entry, and `new` (B, G, 1, d) behind its newest."""
    length = buffer.shape[2]
    return ops.concat([ops.split(buffer, [1, length - 1], axis=2)[1], new], axis=2) if length > 1 else new


def absent(needed: Any, seen: Any, ops: TorchOps = TORCH) -> Any:
    """1 where fewer tokens were seen than needed and 0 elsewhere; whole numbers as floats, broadcast."""
    missing = ops.sub(needed, seen)
    return ops.sub(ops.relu(missing), ops.relu(ops.sub(missing, 1.0)))


def chunk_length(window: int, T: int) -> int:
    """Tokens a chunk: as many as the window has, so that half of the scores are needed or more."""
    return min(T, max(window, MIN_CHUNK))


def key_bands(x: Tensor, window: int, chunk: int) -> Tensor:
    """The keys (or values) that each chunk of queries may see.

    x (B, G, window + T, d), the buffer before the text and the text -> (B, G, N, chunk + window - 1, d), N chunks.
    Entry m of band n is entry n·chunk + 1 + m of x: the query c of a chunk sees c ≤ m < c + window, itself the last.
    """
    T = x.shape[2] - window
    x = F.pad(x[:, :, 1:], (0, 0, 0, -T % chunk))
    return x.unfold(2, chunk + window - 1, chunk).transpose(-1, -2)


def query_rows(q: Tensor, kv_heads: int, chunk: int) -> Tensor:
    """q (B, T, H, d) -> (B, G, N, R·chunk, d): the queries of a kv head's R heads as the rows of one product."""
    B, T, H, d = q.shape
    q = F.pad(q, (0, 0, 0, 0, 0, -T % chunk))
    q = q.view(B, -1, chunk, kv_heads, H // kv_heads, d)
    return q.permute(0, 3, 1, 4, 2, 5).reshape(B, kv_heads, -1, H // kv_heads * chunk, d)


def from_rows(y: Tensor, T: int, chunk: int) -> Tensor:
    """Inverse of `query_rows`: y (B, G, N, R·chunk, d) -> (B, T, H, d)."""
    B, G, N, rows, d = y.shape
    y = y.view(B, G, N, rows // chunk, chunk, d).permute(0, 2, 4, 1, 3, 5)
    return y.reshape(B, N * chunk, -1, d)[:, :T]
