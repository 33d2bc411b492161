"""Attention over a band: what the mixers share that look back a bounded number of tokens.

A step keeps its last tokens in a buffer, oldest first, and `push` moves them up by one. Their parallel form cuts the
text into chunks: the queries of a chunk see a slice of the keys that is one window longer, so that memory is linear in
the length of the text.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from t2r_export.model.ops import TORCH, TorchOps
from t2r_export.model.positions import RotaryPositions, rotate

# Added to the score of what a query must not see: exp of it is 0 in every precision. Finite, because providers differ
# in what -inf gives, and within the range of float16.
MASKED = -3e4
MIN_CHUNK = 16  # tokens: below it a product is too small to be worth a call


def slot_constants(sinks: int, window: int) -> tuple[Tensor, Tensor]:
    """Of the slots of s sinks and a window of W tokens, float32; computed, not loaded: real numbers even where a model
    is laid out on the meta device.

    Returns:
        The sinks' numbers (s, 1), and for each slot, the sinks' before the window's (s + W), how many tokens must have
        come before the present one for it to hold one to be seen: the window's not before the sinks'.
    """
    slots, ages = (torch.arange(n, device="cpu").float() for n in (sinks, window))
    return slots.view(-1, 1), torch.cat([slots, ages.flip(0) + sinks])


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


def band_scores(
    q: Tensor, k: Tensor, count: Tensor, window: int, chunk: int, first: int = 0, turn: RotaryPositions | None = None
) -> Tensor:
    """Scores of each chunk's queries for the keys of its band, `MASKED` where a query does not see one.

    Args:
        q: (B, T, H, d), scaled. k: (B, G, window + T, d), the buffer before the text and the text.
        count: (B), tokens read before the text.
        first: the first token that is seen; those before it are another's.
        turn: rotary positions for q and k; None where there are none, or q and k have them.

    Returns:
        (B, G, N, R·chunk, chunk + window - 1); rows as in `query_rows`, columns as in `key_bands`.
    """
    G, R = k.shape[1], q.shape[2] // k.shape[1]
    q, k = query_rows(q, G, chunk), key_bands(k, window, chunk)
    N, L = k.shape[2:4]
    place = torch.arange(L, device=q.device)
    if turn is not None:
        cos, sin = turn.fixed(place.cpu()).to(q).chunk(2, -1)  # places in the band: only distances matter
        k = rotate(k, (cos, sin))
        q = rotate(q, (cos[window - 1 :].repeat(R, 1), sin[window - 1 :].repeat(R, 1)))
    distance = band_distance(window, chunk, q.device)
    token = count[:, None, None] + torch.arange(N, device=q.device)[:, None] * chunk + 1 - window + place  # (B, N, L)
    hidden = (distance < 0) | (distance >= window) | (token < first)[:, :, None]  # (B, N, chunk, L)
    scores = q @ k.mT
    bias = torch.zeros(hidden.shape, dtype=scores.dtype, device=q.device).masked_fill(hidden, MASKED)
    return scores + bias.repeat(1, 1, R, 1).unsqueeze(1)


def sink_scores(q: Tensor, sinks: Tensor, seen: Tensor, chunk: int) -> Tensor:
    """Scores of each chunk's queries for the first tokens of the text, `MASKED` where those are yet to come.

    q (B, T, H, d), scaled; sinks (B, G, s, d), after the text; seen (B, T), tokens before each query. Turned, where
    the model turns. Returns (B, G, N, R·chunk, s), rows as in `query_rows`.
    """
    G = sinks.shape[1]
    scores = query_rows(q, G, chunk) @ sinks.to(q.dtype).mT.unsqueeze(2)
    slots = torch.arange(sinks.shape[2], device=q.device)
    bias = ((slots > seen.unsqueeze(-1)) * MASKED).to(q.dtype)  # (B, T, s)
    bias = query_rows(bias.unsqueeze(2), 1, chunk)  # (B, 1, N, chunk, s)
    return scores + bias.repeat(1, 1, 1, q.shape[2] // G, 1)


def sinks_after(sinks: Tensor, new: Tensor, count: Tensor) -> Tensor:
    """The sinks (B, G, s, d) after the tokens `new` (B, G, T, d), of which the first is number `count` (B)."""
    T = new.shape[2]
    index = torch.arange(sinks.shape[2], device=new.device) - count[:, None]  # (B, s): of each sink in `new`
    inside = ((index >= 0) & (index < T))[:, None, :, None]
    picked = new.gather(2, index.clamp(0, T - 1)[:, None, :, None].expand_as(sinks))
    return torch.where(inside, picked, sinks.to(new.dtype))


def step_sinks(sinks: Any, new: Any, slots: Tensor, seen: Any, ops: TorchOps = TORCH) -> Any:
    """`sinks_after` one token, `new` (B, G, 1, d), which takes the slot of its own number if there is one.

    slots: (s, 1), their numbers. seen: (B, 1, 1, 1), tokens before this one. Both float32.
    """
    distance = ops.sub(ops.parameter(slots), seen)
    here = ops.relu(ops.sub(1.0, ops.mul(distance, distance)))  # (B, 1, s, 1)
    return ops.add(ops.mul(sinks, ops.sub(1.0, here)), ops.mul(new, here))


def steps_sinks(sinks: Any, new: Any, slots: Tensor, numbers: Any, ops: TorchOps) -> Any:
    """`sinks_after` the tokens `new` (B, G, T, d) with `numbers` (B, 1, T, 1), in the operators of a graph.

    slots: (s, 1). Both float32.
    """
    distance = ops.sub(ops.parameter(slots), ops.transpose(numbers, (0, 1, 3, 2)))
    here = ops.relu(ops.sub(1.0, ops.mul(distance, distance)))  # (B, 1, s, T): whose slot is a token's own
    return ops.add(ops.mul(sinks, ops.sub(1.0, ops.largest(here))), ops.matmul(here, new))


def steps_bias(past: Any, new: Any, first: int, count: Any, per_group: int, ops: TorchOps) -> Any:
    """What the scores of T new tokens for a buffer and themselves are changed by, in the operators of a graph.

    Args:
        past: (B, G, W, d), the buffer. new: (B, G, T, d).
        first: the first token that is seen; those before it are another's.
        count: (B), tokens read before these.

    Returns:
        (B, 1, per_group · T, W + T), rows as `TorchOps.by_head` has them.
    """
    W = past.shape[2]
    start = ops.cast(count, "float32")
    for _ in range(3):
        start = ops.unsqueeze(start, -1)  # (B, 1, 1, 1)
    places = ops.cast(ops.places(ops.concat([past, new], axis=2)), "float32")
    absences = absent(ops.sub(float(W + first), places), start, ops)  # (B, 1, 1, W + T)
    return ops.mul(ops.add(ops.concat([ops.unseen(past, new, W)] * per_group, axis=0), absences), MASKED)


def steps_sink_bias(slots: Tensor, numbers: Any, per_group: int, ops: TorchOps) -> Any:
    """The same of the scores for the sinks, of which some are yet to come: (B, 1, per_group · T, s)."""
    yet = absent(ops.squeeze(ops.parameter(slots), 1), numbers, ops)  # (B, 1, T, s)
    return ops.mul(ops.concat([yet] * per_group, axis=2), MASKED)


def band_distance(window: int, chunk: int, device: torch.device) -> Tensor:
    """How far behind the query of each row of a band (chunk) its columns are: (chunk, chunk + window - 1)."""
    place = torch.arange(chunk + window - 1, device=device)
    return place[window - 1 :, None] - place
