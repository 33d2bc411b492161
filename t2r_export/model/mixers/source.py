"""What layers make of a source and read of it: attention to its tokens, or the sums of linear attention over them."""

from __future__ import annotations

from t2r_export.model.mixers.banded import attend, transposed
from t2r_export.model.mixers.base import HeadSizes
from t2r_export.model.mixers.feature_maps import FeatureMap
from t2r_export.model.ops import MASKED, Ops, T
from t2r_export.model.step import Step

SOURCE_WEIGHTS = "weights of a source"  # by which a step has them, for layers that share them


def source_bias(k: T, step: Step[T]) -> T:
    """What scores of the keys of a source (B, G, M, d) are changed by, (B, 1, 1, M): the same for all layers."""
    found: T = step.shared("source mask", lambda: step.ops.mul(step.hidden(k), MASKED))
    return found


def attend_source(q: T, k: T, v: T, sizes: HeadSizes, step: Step[T]) -> T:
    """Softmax attention of q (B, H, T, d) to k and v (B, G, M, ·) of a source -> o (B, H, T, V); lends its weights."""
    # scaling q, not the scores: d numbers per head instead of M
    rows = step.ops.group_queries(step.ops.mul(q, sizes.scale), sizes.kv_heads)
    o, _, weights = attend(rows, k, v, step.ops, source_bias(k, step), sizes.softcap)
    step.lend(SOURCE_WEIGHTS, weights)
    return step.ops.ungroup_queries(o, sizes.heads)


def sum_source(phi: FeatureMap, k: T, v: T, source: Step[T]) -> tuple[T, T]:
    """φ of keys, what it takes of a source and v (B, G, M, ·) -> S (B, G, K, V) and z (B, G, K)."""
    ops = source.ops
    shown = transposed(ops.add(ops.mul(source.hidden(k), -1.0), 1.0), ops)  # (B, 1, M, 1)
    features = transposed(ops.mul(phi.of(k, False, ops), shown), ops)  # (B, G, K, M)
    return ops.matmul(features, v), ops.squeeze(ops.matmul(features, shown), -1)


def read_sums(q: T, S: T, z: T | None, ops: Ops[T]) -> tuple[T, T | None]:
    """φ(q) (B, H, T, K), S (B, G, K, V) and z (B, G, K) -> φ(q)ᵀS (B, H, T, V) and φ(q)·z (B, H, T, 1)."""
    rows, H = ops.group_queries(q, S.shape[1]), q.shape[1]
    numerator = ops.ungroup_queries(ops.matmul(rows, S), H)
    return numerator, None if z is None else ops.ungroup_queries(ops.matmul(rows, ops.unsqueeze(z, -1)), H)
