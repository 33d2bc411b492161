"""Linear attention over many tokens, in ordinary operators: for a graph that reads a prompt, or checks drafts, at once.

The usual way is a loop in the graph. Here all chunks of tokens are computed side by side, as in
`t2r_export.model.recurrences`, and so the work is linear in T. How tokens stand in pieces, and how the state gets from
one to the next, is t2r_export.graph.pieces. A piece that is filled up has zero keys, log gates and rates there, which
add nothing to the state and take nothing away.
"""

from __future__ import annotations

import numpy as np

from t2r_export.graph.operators import Operators
from t2r_export.graph.pieces import Pieces
from t2r_export.graph.recorder import Value

CHUNK = 64  # tokens; from 64 to 128 the time was the same within the noise, and 512 took a quarter longer


def linear_attention(
    pieces: Pieces, q: Value, k: Value, v: Value, S: Value, z: Value | None, log_gate: Value | None, beta: Value | None
) -> tuple[Value, Value | None, Value, Value | None]:
    """`Ops.linear_attention` over T tokens. X = (B, G, N): one product per piece.

    The formulas, and their letters, are those of `t2r_export.model.recurrences`.
    """
    ops, H = pieces.ops, q.shape[1]
    _, G, K, V = S.shape
    assert isinstance(G, int) and isinstance(H, int) and isinstance(K, int) and isinstance(V, int)
    W = V + (z is not None)
    rows = pieces.rows(q, G)
    k, v = pieces.cut(k), pieces.cut(v) if z is None else pieces.with_ones(v)  # (X, C, K), (X, C, V+1)
    k_transposed = ops.transpose(k, (0, 1, 2, 4, 3))
    k_start, carry, q_start = k, None, rows
    scores = ops.matmul(rows, k_transposed)
    if log_gate is None:
        share = pieces.causal(1)
        k_end = pieces.of_kept(k_transposed)
        scores = ops.mul(scores, pieces.causal(H // G))
    else:
        start, share = _decays(pieces, pieces.per_token(log_gate))  # (X, C, 1), (X, C, C)
        scores = pieces.by_head(scores, share)
        q_start, k_start = pieces.by_head(rows, start), ops.mul(k, start)
        k_end, carry = ops.mul(k_transposed, pieces.last(share)), pieces.last(start)  # (X, 1, 1)
    # z is the state of a value that is always 1
    state = S if z is None else ops.concat([S, ops.unsqueeze(z, -1)])
    if beta is None:
        before, after = pieces.states(state, ops.matmul(k_end, v), carry)
    else:
        rate = pieces.per_token(beta)
        system = ops.mul(ops.mul(ops.matmul(k, k_transposed), share), rate)
        solved = ops.matmul(_inverse(ops, system, pieces.capacity), ops.mul(ops.concat([v, k_start]), rate))
        v, read = ops.split(solved, [W, K])
        kept = ops.constant(np.eye(K), "float32", f"eye_{K}")
        carry = ops.sub(kept if carry is None else ops.mul(kept, carry), ops.matmul(k_end, read))  # (X, K, K)
        before, after = pieces.states(state, ops.matmul(k_end, v), carry)
        v = ops.sub(v, ops.matmul(read, before))
    both = ops.add(ops.matmul(scores, v), ops.matmul(q_start, before))
    both = pieces.heads(both, H)  # (B, H, T, V+1)
    if z is None:
        return both, None, after, None
    numerator, denominator = ops.split(both, [V, 1])
    S, z = ops.split(after, [V, 1])
    return numerator, denominator, S, ops.squeeze(z, -1)


def _decays(pieces: Pieces, log_gate: Value) -> tuple[Value, Value]:
    """log g (X, C, 1) -> Γ_i0 (X, C, 1) and Γ_ij (X, C, C), 0 for j > i: exponentials of sums that are at most 0."""
    ops, C = pieces.ops, pieces.capacity
    sums = np.tri(C)  # each over its own gates: a product with ones adds up those from j + 1 to i
    taken = np.concatenate([np.ones((C, 1)), np.tri(C, k=-1)], axis=1)
    seen = np.concatenate([np.ones((C, 1)), sums], axis=1)
    spread = ops.mul(log_gate, pieces.square(f"later_{C}", taken))
    left = ops.exp(ops.matmul(pieces.causal(1), spread))
    start, share = pieces.first_and_rest(ops.mul(left, pieces.square(f"causal_from_start_{C}", seen)))
    return start, share


def _inverse(ops: Operators, system: Value, size: int) -> Value:
    """Of (X, C, C) lower triangular with a diagonal of ones, C = size; what stands on the diagonal and above is not
    read.

    From blocks of one number to the whole: [[A, 0], [B, D]] has the inverse [[A⁻¹, 0], [-D⁻¹ B A⁻¹, D⁻¹]]. So it takes
    2 log₂ C products for all blocks, and no power of the system, which would be large where keys are alike.
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
