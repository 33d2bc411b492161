"""The feature maps of linear attention, φ(q) and φ(k), in one table."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from t2r_export.config.mixers import LinearConfig
from t2r_export.config.tagged import resolve
from t2r_export.model.mixers.maps import FeatureMap
from t2r_export.model.ops import Ops, T

# "module:Class" by name; config.mixers.linear has their sizes
FEATURE_MAPS: dict[str, str] = {
    "relu": "t2r_export.model.mixers.maps:Relu",
    "relu2": "t2r_export.model.mixers.maps:Relu2",
    "elu": "t2r_export.model.mixers.maps:Elu",
    "rfa": "t2r_export.lab.random_maps:RandomFourier",
    "favor": "t2r_export.lab.random_maps:Favor",
    "dpfp": "t2r_export.model.mixers.maps:Dpfp",
    "hedgehog": "t2r_export.model.mixers.maps:Hedgehog",
}


def feature_map(name: str) -> type[FeatureMap]:
    """The class of the feature map `name` of FEATURE_MAPS."""
    found: type[FeatureMap] = resolve(FEATURE_MAPS[name])
    return found


def dead_features(q: Tensor, k: Tensor) -> dict[str, Tensor]:
    """Statistics of φ(q) and φ(k), (B, heads, T, K): fractions of features that are 0 for all tokens."""
    return {name: (x == 0).all(2).all(0).float().mean() for name, x in (("dead_queries", q), ("dead_keys", k))}


class FeatureMaps(nn.Module):
    """φ of q and φ of k: one joint map, one shared map, or separate maps."""

    def __init__(self, heads: int, kv_heads: int, head_size: int, config: LinearConfig) -> None:
        super().__init__()
        self.config = config
        kind = feature_map(config.feature_map)
        if kind.joint:
            self.joint = kind(kv_heads, head_size, config)
        else:
            self.q = kind(heads, head_size, config)
            if not config.shared_features:
                self.k = kind(kv_heads, head_size, config)
                self.q.copy_from_keys(self.k)

    @property
    def of_queries(self) -> FeatureMap:
        return self.joint if hasattr(self, "joint") else self.q

    @property
    def of_keys(self) -> FeatureMap:
        return self.k if hasattr(self, "k") else self.of_queries

    @property
    def is_new(self) -> bool:
        """Whether these are untrained relu maps."""
        return self.of_keys.is_new

    def start_at(self, q: Tensor, k: Tensor, generator: torch.Generator | None, ops: Ops[Tensor]) -> None:
        """Initialize untrained relu maps from queries (H, N, d) and keys (G, N, d) of the same tokens.

        Features have a mean square of 1 per head.

        Args:
            generator: for `map_init=keys`; None: the directions stay.
        """
        if not self.is_new:
            return
        if generator is not None:
            self._point(q, k, generator)
        self.of_keys.normalize(k, ops)
        if self.of_queries is not self.of_keys:
            self.of_queries.normalize(q, ops)

    @torch.no_grad()
    def _point(self, q: Tensor, k: Tensor, generator: torch.Generator) -> None:
        """Columns of W are unit vectors from the mean key to keys of random tokens, and b = -Wᵀ m, with the mean m of q
        or k: a feature is positive for inputs on its token's side of the mean. docs/quality.md compares this with
        random columns."""
        count, size = k.shape[1], self.of_keys.size
        order = torch.stack([torch.randperm(count, generator=generator) for _ in k])
        chosen = order.repeat(1, -(-size // count))[:, :size].to(k.device)  # (G, K)
        mean = k.mean(1)
        away = k.gather(1, chosen.unsqueeze(-1).expand(-1, -1, k.shape[2])) - mean[:, None]
        directions = F.normalize(away, dim=-1).transpose(1, 2)  # (G, d, K)
        self.of_keys.point(directions, mean)
        if self.of_queries is not self.of_keys:
            self.of_queries.point(directions.repeat_interleave(len(q) // len(k), 0), q.mean(1))

    def arguments(self, q: T, k: T, ops: Ops[T]) -> tuple[T, T]:
        """q (B, H, T, ·) and k (B, G, T, ·) -> arguments of the activations."""
        if self.config.redraw and self.training and torch.is_grad_enabled():
            self.of_queries.redraw()  # a joint map, which k shares
        return self.of_queries.arguments(q, ops), self.of_keys.arguments(k, ops)

    def activate(self, q: T, k: T, ops: Ops[T]) -> tuple[T, T]:
        """Arguments -> φ(q) (B, H, T, K) and φ(k) (B, G, T, K)."""
        if self.of_keys.alike:
            q, k = ops.each(lambda x: self.of_keys(x, False, ops), q, k)
            return q, k
        return self.of_queries(q, True, ops), self.of_keys(k, False, ops)

    def features(self, q: T, k: T, ops: Ops[T]) -> tuple[T, T]:
        """q (B, H, T, d) and k (B, G, T, d) -> φ(q) and φ(k)."""
        return self.activate(*self.arguments(q, k, ops), ops)

    def load_folded(self, unfolded: FeatureMaps) -> None:
        """Copy the activations' constants from the unfolded maps."""
        for mine, other in zip(self.children(), unfolded.children(), strict=True):
            assert isinstance(mine, FeatureMap) and isinstance(other, FeatureMap)
            mine.load_folded(other)
