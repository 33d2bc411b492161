"""Softmax attention to a source, and sums of linear attention over a source."""

from __future__ import annotations

from t2r_export.model.mixers.banded import attend, transposed
from t2r_export.model.mixers.base import HeadSizes
from t2r_export.model.mixers.maps import FeatureMap
from t2r_export.model.ops import MASKED, Ops, T
from t2r_export.model.step import Step

SOURCE_WEIGHTS = "weights of a source"  # name for Step.lend


def source_bias(k: T, step: Step[T]) -> T:
    """Score bias (B, 1, 1, M) that masks the padding of source keys (B, G, M, d); shared by all layers."""
    return step.shared("source mask", lambda: step.ops.mul(step.hidden(k), MASKED))


def attend_source(q: T, k: T, v: T, sizes: HeadSizes, step: Step[T]) -> T:
    """Softmax attention of q (B, H, T, d) to source k and v (B, G, M, ·) -> o (B, H, T, V). Lends its weights."""
    # scale q instead of the scores: d elements per head instead of M
    rows = step.ops.group_queries(step.ops.mul(q, sizes.scale), sizes.kv_heads)
    o, _, weights = attend(rows, k, v, step.ops, source_bias(k, step), sizes.softcap)
    step.lend(SOURCE_WEIGHTS, weights)
    return step.ops.ungroup_queries(o, sizes.heads)


def sum_source(phi: FeatureMap, k: T, v: T, source: Step[T]) -> tuple[T, T]:
    """Source k and v (B, G, M, ·) -> S (B, G, K, V) and z (B, G, K). Args: phi: the feature map of keys."""
    ops = source.ops
    shown = transposed(ops.add(ops.mul(source.hidden(k), -1.0), 1.0), ops)  # (B, 1, M, 1)
    features = transposed(ops.mul(phi.of(k, False, ops), shown), ops)  # (B, G, K, M)
    return ops.matmul(features, v), ops.squeeze(ops.matmul(features, shown), -1)


def read_sums(q: T, S: T, z: T | None, ops: Ops[T]) -> tuple[T, T | None]:
    """φ(q) (B, H, T, K), S (B, G, K, V) and z (B, G, K) -> φ(q)ᵀS (B, H, T, V) and φ(q)·z (B, H, T, 1)."""
    rows, H = ops.group_queries(q, S.shape[1]), q.shape[1]
    numerator = ops.ungroup_queries(ops.matmul(rows, S), H)
    return numerator, None if z is None else ops.ungroup_queries(ops.matmul(rows, ops.unsqueeze(z, -1)), H)
