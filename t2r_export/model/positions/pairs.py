"""Pairs of queries and keys: their distances, and the layout of their scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np

from t2r_export.model.ops import T
from t2r_export.model.step import Step

Known = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Pairs(Generic[T]):
    """T queries and n keys.

    Args:
        step: the step that computes their scores.
        per_group, kv_heads: R and G; there are R·G query heads H.
        distance: of keys behind queries, (T, n): an array if static, else float32; (B, 1, T, n) if sequences differ.
            Pairs with a negative distance are masked.
        rows: heads (B, H, T, m) -> layout of the scores, (B, G, R·T, m) or (B, G, N, R·C, m) in chunks.
        chunked: whether queries are in chunks; T is then C, the size of a chunk.
        last: the largest distance; None: unbounded.
        name: of constants and values shared by layers.
        mask: added to the scores, in the same layout.
        ascending: 0, …, n - 1, int32, for a cache, whose n is dynamic.
    """

    step: Step[T]
    per_group: int
    kv_heads: int
    distance: T | Known
    rows: Callable[[T], T]
    chunked: bool
    last: int | None
    name: str
    mask: T | None = None
    ascending: T | None = None

    @property
    def known(self) -> Known | None:
        return self.distance if isinstance(self.distance, np.ndarray) else None

    def masked(self, x: T) -> T:
        """Add the mask to scores or to a bias."""
        return x if self.mask is None else self.step.ops.add(x, self.mask)

    def shared(self, what: Any, compute: Callable[[], T]) -> T:
        """The value for these pairs, computed once for all layers with equal pairs."""
        return self.step.shared((what, self.name, self.per_group, self.kv_heads), compute)

    def spread(self, of_heads: T) -> T:
        """Convert a tensor (H, T, n) or (B, H, T, n) to the layout of the scores."""
        if len(of_heads.shape) == 4:
            return self.rows(of_heads)
        grouped = self.step.ops.reshape(of_heads, (self.kv_heads, -1, 0))
        return self.step.ops.unsqueeze(grouped, 1) if self.chunked else grouped

    def spread_known(self, of_heads: Known, name: str) -> T:
        """`spread` for a static array (H, T, n); `name` excludes the name of the pairs."""
        rows = of_heads.reshape(self.kv_heads, -1, of_heads.shape[-1])
        rows = rows[:, None] if self.chunked else rows
        return self.step.ops.constant(rows, "float32", f"{name}_of_{self.kv_heads}x{self.name}")

    def distances(self) -> T:
        """Distances (T, n) or (B, 1, T, n), float32, clamped to at least 0."""
        ops = self.step.ops
        if isinstance(self.distance, np.ndarray):
            return ops.constant(np.maximum(self.distance, 0.0), "float32", f"distances_{self.name}")
        distance = self.distance
        return self.shared("distances", lambda: ops.maximum(distance, 0.0))

    def places(self, last: int) -> T:
        """Distances clamped to 0, …, `last`, as indices of table rows: int32, (T, n) or (B, 1, T, n)."""
        ops = self.step.ops
        if isinstance(self.distance, np.ndarray):
            return ops.constant(np.clip(self.distance, 0, last), "int32", f"places_{last}_{self.name}")
        return self.shared(("places", last), lambda: ops.cast(ops.minimum(self.distances(), float(last)), "int32"))

    def at_distance(self, x: T, last: int | None) -> T:
        """Gather from x (…, rows, m), with values for distances 0, …, m - 1, the value of each pair, (…, rows, n).

        Args:
            last: maximum distance, to which farther pairs are clamped; None: no farther pairs.
        """
        ops = self.step.ops
        nothing = ops.mul(ops.mean(x), 0.0)  # (…, rows, 1): ONNX's GatherElements does not broadcast indices
        return ops.gather(x, ops.cast(ops.add(self._of_rows(last), nothing), "int32"))

    def _of_rows(self, last: int | None) -> T:
        """Distances for the rows of one kv head, clamped to `last`, float32."""
        ops, R = self.step.ops, self.per_group
        if isinstance(self.distance, np.ndarray):
            known = np.tile(np.clip(self.distance, 0, last), (R, 1))
            return ops.constant(known, "float32", f"distances_{last}_{R}x{self.name}")

        def compute() -> T:
            distance = self.distances() if last is None else ops.minimum(self.distances(), float(last))
            if len(distance.shape) == 2:
                return ops.concat([distance] * R, axis=0)
            if not self.chunked:
                return ops.concat([distance] * R, axis=2)
            return self.rows(ops.repeat_heads(distance, R * self.kv_heads))

        return self.shared(("distances of rows", last), compute)
