"""Linear attention over many tokens in standard operators, for graphs that read prompts or check drafts.

The usual way is a loop in the graph. Here all chunks are computed in parallel, as in `t2r_export.model.recurrences`,
and the work is linear in T. t2r_export.graph.pieces defines the chunks and carries the state between them. Padding has
zero keys, log gates and rates, which leave the state unchanged.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import numpy as np

from t2r_export.graph.decays import Decay, decay_of
from t2r_export.graph.operators import Operators
from t2r_export.graph.pieces import Pieces
from t2r_export.graph.recorder import Value
from t2r_export.model.ops import Erase

CHUNK = 64  # tokens; 64 and 128 took the same time within noise, 512 a quarter longer
CHUNK_ERASING = 32  # for erase vectors, with four times as many scores
CHUNK_CHANNELS = 16  # for per-channel decays, with log₂ of it times as many scores


def chunk_size(log_gate: Value | None, beta: Value | None, erase: Erase[Value] | None) -> int:
    """Tokens per chunk. Delta rules carry a matrix from chunk to chunk, so small chunks are expensive."""
    if erase is not None:
        return CHUNK_ERASING
    return CHUNK_CHANNELS if beta is None and log_gate is not None and log_gate.shape[-1] != 1 else CHUNK


def linear_attention(
    pieces: Pieces,
    q: Value,
    k: Value,
    v: Value,
    S: Value,
    z: Value | None,
    log_gate: Value | None,
    beta: Value | None,
    erase: Erase[Value] | None,
) -> tuple[Value, Value | None, Value, Value | None]:
    """`Ops.linear_attention` over T tokens. X = (B, G, N): one product per piece.

    Formulas and notation are those of `t2r_export.model.recurrences`.
    """
    ops, H = pieces.ops, q.shape[1]
    _, G, K, V = S.shape
    assert isinstance(G, int) and isinstance(H, int) and isinstance(K, int) and isinstance(V, int)
    rows = pieces.rows(q, G)
    k, v = pieces.cut(k), pieces.cut(v) if z is None else pieces.with_ones(v)  # (X, C, K), (X, C, V+1)
    decay = decay_of(pieces, log_gate)
    writes = [Write(k, v)]
    if beta is not None:
        writes = [_corrected(k, v, pieces.per_token(beta), decay)]
    if erase is not None:
        writes.append(_read(k, v, Erase(*map(pieces.cut, erase)), decay))
    scores = [decay.scores(rows, write.along) for write in writes]
    ends = [decay.to_end(write.along) for write in writes]
    carry = decay.carry
    # z is the state of a value that is always 1
    state = S if z is None else ops.concat([S, ops.unsqueeze(z, -1)])
    for write, end in zip(writes, ends, strict=True):
        if write.read is not None:
            kept = ops.constant(np.eye(K), "float32", f"eye_{K}")
            carry = ops.sub(kept if carry is None else ops.mul(kept, carry), ops.matmul(end, write.read))  # (X, K, K)
    added = [ops.matmul(end, write.values) for write, end in zip(writes, ends, strict=True)]
    before, after = pieces.states(state, reduce(ops.add, added), carry)
    seen = [
        ops.matmul(score, write.values if write.read is None else ops.sub(write.values, ops.matmul(write.read, before)))
        for score, write in zip(scores, writes, strict=True)
    ]
    both = ops.add(reduce(ops.add, seen), ops.matmul(decay.from_start(rows), before))
    both = pieces.heads(both, H)  # (B, H, T, V+1)
    if z is None:
        return both, None, after, None
    numerator, denominator = ops.split(both, [V, 1])
    S, z = ops.split(after, [V, 1])
    return numerator, denominator, S, ops.squeeze(z, -1)


class Write(NamedTuple):
    """The contribution of a piece's tokens: Σ_j Γ_ij along_j (values - read S_0)_jᵀ."""

    along: Value  # (X, C, K)
    values: Value  # (X, C, V)
    read: Value | None = None  # (X, C, K)


def _corrected(k: Value, v: Value, rate: Value, decay: Decay) -> Write:
    """The values of the delta rules, by solving their triangular system."""
    ops = decay.ops
    system = ops.mul(decay.scores(k, k), rate)
    right = ops.mul(ops.concat([v, decay.from_start(k)]), rate)
    values, read = ops.split(_solved(system, right, decay), [v.shape[-1], k.shape[-1]])  # type: ignore[list-item]
    return Write(k, values, read)


def _read(k: Value, v: Value, erase: Erase[Value], decay: Decay) -> Write:
    """Reads and writes for an erase vector that is not the key, by solving the triangular system."""
    ops, C = decay.ops, decay.pieces.capacity
    # token i reads the decayed state before its own writes
    written = decay.pieces.masked(decay.scores(erase.read, k), "before", np.tri(C, k=-1))
    system = ops.mul(decay.scores(erase.read, erase.write), -1.0)
    right = ops.concat([ops.matmul(written, v), ops.mul(decay.from_start(erase.read), -1.0)])
    values, read = ops.split(_solved(system, right, decay), [v.shape[-1], k.shape[-1]])  # type: ignore[list-item]
    return Write(erase.write, values, read)


def _solved(system: Value, right: Value, decay: Decay) -> Value:
    return decay.ops.matmul(_inverse(decay.ops, system, decay.pieces.capacity), right)


def _inverse(ops: Operators, system: Value, size: int) -> Value:
    """Inverse of unit lower triangular matrices (X, C, C), C = size. The diagonal and above are not read.

    Blocks are doubled from size 1: [[A, 0], [B, D]] has the inverse [[A⁻¹, 0], [-D⁻¹ B A⁻¹, D⁻¹]]. This takes 2 log₂ C
    batched products and avoids powers of the matrix, which would be large for similar keys.
    """
    row, column = np.indices((size, size))
    inverse, block = ops.constant(np.eye(size), "float32", f"eye_{size}"), 1
    while block < size:
        lower = (row // block == column // block + 1) & (row // block % 2 == 1)
        below = ops.mul(system, ops.constant(lower, "float32", f"lower_{block}x{size}"))
        if block > 1:
            below = ops.matmul(ops.matmul(inverse, below), inverse)
        inverse = ops.sub(inverse, below)
        block *= 2
    return inverse
