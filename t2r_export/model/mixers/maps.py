"""The base of feature maps, and maps without random numbers.

    φ(x) = activation(W x + b)

The affine part (W, b) is per head and optional; folding moves it into the projections (Kasai et al. 2021, eq. 8), and
the activation with its constants remains. docs/mixers.md lists formulas, sources and sizes.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from t2r_export.config.mixers import LinearConfig
from t2r_export.model.activations import activate
from t2r_export.model.ops import Ops, T

EPS = 1e-6  # lower bound of mean squares and feature sums before a division


class FeatureMap(nn.Module):
    """Base of feature maps.

    Args:
        heads: number of query heads for q, of key heads for k and for joint maps.
        head_size: d.
        config: the layer's config; a folded map has no affine part.
    """

    joint: ClassVar[bool] = False  # one map for q and k, with the same random directions
    alike: ClassVar[bool] = True  # the activation is one function for q and k and all heads

    def __init__(self, heads: int, head_size: int, config: LinearConfig) -> None:
        super().__init__()
        self.heads, self.head_size, self.size, self.folded = heads, head_size, config.feature_size, config.folded

    @property
    def argument_size(self) -> int:
        """Size per head of the activation's input, the output of a folded projection."""
        return self.head_size

    def affine(self) -> tuple[Tensor, Tensor | None] | None:
        """The affine part: W (heads, d, argument_size) and b (heads, argument_size), or None."""
        return None

    def load_folded(self, unfolded: FeatureMap) -> None:
        """Copy the activation's constants from the unfolded map."""

    @torch.no_grad()
    def copy_from_keys(self, keys: FeatureMap) -> None:
        """Initialize with the key heads' map: φ(q)·φ(k) is then large for similar q and k (docs/quality.md)."""
        for mine, theirs in zip(self.parameters(), keys.parameters(), strict=True):
            mine.copy_(theirs.repeat_interleave(self.heads // keys.heads, 0))

    def redraw(self) -> None:
        """Draw new random directions, if the map has any."""

    @property
    def is_new(self) -> bool:
        """Whether a relu map still has its random weights."""
        return False

    def point(self, directions: Tensor, center: Tensor) -> None:
        """Set the affine part of a relu map to directions (heads, d, K) from a center (heads, d)."""
        raise NotImplementedError

    def normalize(self, x: Tensor, ops: Ops[Tensor]) -> None:
        """Scale the affine part of a relu map so that features of x (heads, N, d) have a mean square of 1 per head."""

    def activate(self, x: T, query: bool, ops: Ops[T]) -> T:
        """Arguments (B, heads, T, argument_size) -> features (B, heads, T, K)."""
        raise NotImplementedError

    def arguments(self, x: T, ops: Ops[T]) -> T:
        """x (B, heads, T, d) -> arguments of the activation (…, argument_size); the identity if folded."""
        affine = self.affine()
        if affine is None:
            return x
        weight, bias = affine
        x = ops.matmul(x, ops.parameter(weight))
        return x if bias is None else ops.add(x, ops.reshape(ops.parameter(bias), (self.heads, 1, self.argument_size)))

    def forward(self, arguments: T, query: bool, ops: Ops[T]) -> T:
        """`activate` for query heads or key heads."""
        return self.activate(arguments, query, ops)

    def of(self, x: T, query: bool, ops: Ops[T]) -> T:
        """x (B, heads, T, d) -> φ(x) (B, heads, T, K)."""
        found: T = self(self.arguments(x, ops), query, ops)
        return found


class Relu(FeatureMap):
    """φ(x) = relu(W x + b), W and b learned per head: T2R (Kasai et al. 2021, arXiv 2103.13076, eq. 6)."""

    degree: ClassVar[int] = 1  # φ of s · (W x + b) is s ** degree times φ of W x + b, for s > 0

    def __init__(self, heads: int, head_size: int, config: LinearConfig) -> None:
        super().__init__(heads, head_size, config)
        if not self.folded:
            self.weight = nn.Parameter(torch.empty(heads, head_size, self.size))
            self.bias = nn.Parameter(torch.empty(heads, self.size))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Random rows of approximately unit length, so that features have the scale of q and k."""
        nn.init.normal_(self.weight, std=self.head_size**-0.5)
        nn.init.zeros_(self.bias)

    @property
    def is_new(self) -> bool:
        return not self.folded and not bool(self.bias.any())

    @torch.no_grad()
    def point(self, directions: Tensor, center: Tensor) -> None:
        self.weight.copy_(directions)
        self.bias.copy_(-(center[:, None] @ directions)[:, 0])

    @torch.no_grad()
    def normalize(self, x: Tensor, ops: Ops[Tensor]) -> None:
        square = self.of(x[None], False, ops)[0].square().mean((1, 2)).clamp(min=EPS)  # (heads,)
        scale = square ** (-0.5 / self.degree)
        self.weight.mul_(scale.view(-1, 1, 1))
        self.bias.mul_(scale.view(-1, 1))

    @property
    def argument_size(self) -> int:
        return self.size

    def affine(self) -> tuple[Tensor, Tensor | None] | None:
        return None if self.folded else (self.weight, self.bias)

    def activate(self, x: T, query: bool, ops: Ops[T]) -> T:
        return ops.relu(x)


class Relu2(Relu):
    """φ(x) = relu(W x + b)², the map of T2R with the activation of Primer (So et al. 2021, arXiv 2109.08668)."""

    degree = 2

    def activate(self, x: T, query: bool, ops: Ops[T]) -> T:
        return activate(x, "relu2", ops)


class Elu(FeatureMap):
    """φ(x) = elu(x) + 1, K = d, no parameters (Katharopoulos et al. 2020, arXiv 2006.16236)."""

    def activate(self, x: T, query: bool, ops: Ops[T]) -> T:
        return ops.add(ops.elu(x), 1.0)


class Hedgehog(FeatureMap):
    """φ(x) = [softmax(W x), softmax(-W x)], W learned, initially the identity (Zhang et al. 2024, arXiv 2402.04347).

    W is (K/2, d) per head; the paper has K = 2d.
    """

    def __init__(self, heads: int, head_size: int, config: LinearConfig) -> None:
        super().__init__(heads, head_size, config)
        if not self.folded:
            self.weight = nn.Parameter(torch.eye(head_size, self.argument_size).repeat(heads, 1, 1))

    @property
    def argument_size(self) -> int:
        return self.size // 2

    def affine(self) -> tuple[Tensor, Tensor | None] | None:
        return None if self.folded else (self.weight, None)

    def activate(self, x: T, query: bool, ops: Ops[T]) -> T:
        # 0 - x, because QNN 2.7 fuses a negative factor into Softmax and drops it
        return ops.concat([ops.softmax(x), ops.softmax(ops.sub(0.0, x))])


class Dpfp(FeatureMap):
    """φ_{iν}(x) = r_i r_{i+ν}, r = relu([x, -x]), ν = 1..n, K = 2dn, divided by its sum: deterministic parameter-free
    projection (Schlag et al. 2021, arXiv 2102.11174)."""

    def activate(self, x: T, query: bool, ops: Ops[T]) -> T:
        double = 2 * self.head_size
        r = ops.relu(ops.concat([x, ops.mul(x, -1.0)]))
        products = []
        for shift in range(1, self.size // double + 1):
            first, rest = ops.split(r, [shift, double - shift])
            products.append(ops.mul(r, ops.concat([rest, first])))
        features = ops.concat(products)
        total = ops.mul(ops.mean(features), float(self.size))
        return ops.div(features, ops.add(total, EPS))
