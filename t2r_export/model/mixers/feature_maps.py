"""The feature maps of linear attention: what makes φ(q) and φ(k) of q and k, one class a map, in one table.

    φ(x) = activation(W x + b)

A map's affine part is W and b of each head, or nothing. Folding (Kasai et al. 2021, eq. 8) puts it into the
projections before it; what is left, the activation and its own constants, follows the packed projection. So a map
with no affine part folds too: its projections are packed and nothing else changes. docs/mixers.md has the table of
formulas, sources and sizes; `reference` has each in plain NumPy.

Written in the operators of `t2r_export.model.ops`, so that training, step and graph are one definition.
"""

from __future__ import annotations

import hashlib
import math
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from t2r_export.config.mixers import LinearConfig
from t2r_export.model.ops import Ops, T

EPS = 1e-6  # keeps a mean square or a sum of features from zero, where a division by it follows


class FeatureMap(nn.Module):
    """φ for `heads` heads: the base of the maps, and the interface that the mixer works with.

    Args:
        heads: query heads for a map of q, key heads for one of k; key heads for a joint map, which serves both.
        head_size: d. config: the layer's; where it says folded, the affine part is not made.
    """

    joint: ClassVar[bool] = False  # one map for q and k: φ(q)·φ(k) estimates a kernel from the same random numbers

    def __init__(self, heads: int, head_size: int, config: LinearConfig) -> None:
        super().__init__()
        self.heads, self.head_size, self.size, self.folded = heads, head_size, config.feature_size, config.folded

    @property
    def argument_size(self) -> int:
        """Numbers a head that the activation takes, which is what a folded projection gives."""
        return self.head_size

    def affine(self) -> tuple[Tensor, Tensor | None] | None:
        """W (heads, d, argument_size), transposed, and b (heads, argument_size): what a fold moves. None: nothing."""
        return None

    def load_folded(self, unfolded: FeatureMap) -> None:
        """In a folded map: the constants that its activation keeps, from the map that was folded."""

    @torch.no_grad()
    def copy_from_keys(self, keys: FeatureMap) -> None:
        """Start as the map of the key heads, each query head as its group: φ(q)·φ(k) is then large where q is near k,
        and training starts from an attention, not from noise (docs/quality.md has what it is worth)."""
        for mine, theirs in zip(self.parameters(), keys.parameters(), strict=True):
            mine.copy_(theirs.repeat_interleave(self.heads // keys.heads, 0))

    def redraw(self) -> None:
        """New random directions, where the map has any."""

    def activate(self, x: T, query: bool, ops: Ops[T]) -> T:
        """Arguments (B, heads, T, argument_size), T = 1 in a step -> (B, heads, T, K)."""
        raise NotImplementedError

    def arguments(self, x: T, ops: Ops[T]) -> T:
        """x (B, heads, T, d) -> what is activated (…, argument_size); a folded map gets that from its projection."""
        affine = self.affine()
        if affine is None:
            return x
        weight, bias = affine
        x = ops.matmul(x, ops.parameter(weight))
        return x if bias is None else ops.add(x, ops.reshape(ops.parameter(bias), (self.heads, 1, self.argument_size)))

    def forward(self, arguments: T, query: bool, ops: Ops[T]) -> T:
        """`activate` for the query heads or the key heads."""
        return self.activate(arguments, query, ops)

    def of(self, x: T, query: bool, ops: Ops[T]) -> T:
        """φ of x (B, heads, T, d): (B, heads, T, K)."""
        found: T = self(self.arguments(x, ops), query, ops)
        return found


class Relu(FeatureMap):
    """φ(x) = relu(W x + b), W and b learned, of each head: T2R (Kasai et al. 2021, arXiv 2103.13076, eq. 6)."""

    def __init__(self, heads: int, head_size: int, config: LinearConfig) -> None:
        super().__init__(heads, head_size, config)
        if not self.folded:
            self.weight = nn.Parameter(torch.empty(heads, head_size, self.size))
            self.bias = nn.Parameter(torch.empty(heads, self.size))
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Rows of unit length in all directions: features start at the scale of q and k."""
        nn.init.normal_(self.weight, std=self.head_size**-0.5)
        nn.init.zeros_(self.bias)

    @property
    def argument_size(self) -> int:
        return self.size

    def affine(self) -> tuple[Tensor, Tensor | None] | None:
        return None if self.folded else (self.weight, self.bias)

    def activate(self, x: T, query: bool, ops: Ops[T]) -> T:
        return ops.relu(x)


class Elu(FeatureMap):
    """φ(x) = elu(x) + 1, K = d, nothing learned (Katharopoulos et al. 2020, arXiv 2006.16236)."""

    def activate(self, x: T, query: bool, ops: Ops[T]) -> T:
        return ops.add(ops.elu(x), 1.0)


class Hedgehog(FeatureMap):
    """φ(x) = [softmax(W x), softmax(-W x)], W learned from the identity (Zhang et al. 2024, arXiv 2402.04347).

    W is (K/2, d) of each head; the paper has K = 2d.
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
        # a difference: QNN 2.7 takes a negative factor into Softmax and loses it there
        return ops.concat([ops.softmax(x), ops.softmax(ops.sub(0.0, x))])


class Dpfp(FeatureMap):
    """φ_{iν}(x) = r_i r_{i+ν}, r = relu([x, -x]), ν = 1..n, K = 2dn, divided by its sum: deterministic parameter-free
    projection (Schlag et al. 2021, arXiv 2102.11174, with its sum-normalised features)."""

    def activate(self, x: T, query: bool, ops: Ops[T]) -> T:
        double = 2 * self.head_size
        r = ops.relu(ops.concat([x, ops.mul(x, -1.0)]))
        products = []
        for shift in range(1, self.size // double + 1):
            first, rest = ops.split(r, [shift, double - shift])
            products.append(ops.mul(r, ops.concat([rest, first])))
        features = products[0] if len(products) == 1 else ops.concat(products)
        total = ops.mul(ops.mean(features), float(self.size))
        return ops.div(features, ops.add(total, EPS))


def normal_numbers(heads: int, shape: tuple[int, ...]) -> Tensor:
    """Normal numbers (heads, *shape), float64, the same whatever was drawn before: docs/mixers.md has the definition.

    Head h's are those of Philox4x64-10 (Salmon et al. 2011) with the key (0, h), by Box and Muller's transform.
    Under torch's device meta they have no values and take no memory.
    """
    if torch.get_default_device().type == "meta":
        return torch.empty(heads, *shape, dtype=torch.float64)
    count = math.prod(shape)
    bits = [np.random.Philox(key=[0, head]).random_raw(count + count % 2) for head in range(heads)]
    uniform = ((np.stack(bits) >> np.uint64(11)) * 2.0**-53).reshape(heads, -1, 2)
    length, turn = np.sqrt(-2.0 * np.log1p(-uniform[..., 0])), 2.0 * np.pi * uniform[..., 1]
    normal = np.stack([length * np.cos(turn), length * np.sin(turn)], axis=-1).reshape(heads, -1)
    return torch.from_numpy(np.ascontiguousarray(normal[:, :count])).reshape(heads, *shape)


class RandomMap(FeatureMap):
    """Base of the maps that estimate a kernel with random directions `weight` (heads, d, ·): kept, never trained."""

    joint = True
    weight: Tensor

    def __init__(self, heads: int, head_size: int, config: LinearConfig) -> None:
        super().__init__(heads, head_size, config)
        self.register_buffer("weight", self.directions(normal_numbers(heads, self.numbers)))

    @property
    def numbers(self) -> tuple[int, ...]:
        """The shape of the normal numbers that the directions of a head are made of."""
        raise NotImplementedError

    def directions(self, normal: Tensor) -> Tensor:
        """Directions (heads, d, ·), float32, made of normal numbers (heads, *numbers)."""
        raise NotImplementedError

    def redraw(self) -> None:
        # seeded by the present ones, so that a run that is resumed, or shared by several devices, draws the same
        present = self.weight.detach().flatten()[:64].float().cpu().numpy().tobytes()
        seed = int.from_bytes(hashlib.sha256(present).digest()[:8]) >> 1
        # a new tensor, because an earlier pass may still need the old one for its gradients
        normal = torch.randn(self.heads, *self.numbers, generator=torch.Generator().manual_seed(seed))
        self.weight = self.directions(normal).to(self.weight)

    def load_folded(self, unfolded: FeatureMap) -> None:
        assert isinstance(unfolded, RandomMap)
        self.weight.copy_(unfolded.weight)

    def forward(self, arguments: T, query: bool, ops: Ops[T]) -> T:
        # query heads beside the key head that they share
        grouped = self.activate(ops.group_queries(arguments, self.heads), query, ops)
        return ops.ungroup_queries(grouped, arguments.shape[1])


class RandomFourier(RandomMap):
    """φ(x) = √(1/D) [sin(W x̂), cos(W x̂)], x̂ = x/|x|, rows of W from N(0, I/σ²), K = 2D: random feature attention
    (Peng et al. 2021, arXiv 2103.02143).

    φ(x)·φ(y) estimates exp(-|x̂ - ŷ|²/2σ²). Learned or fixed, σ is a number for each input of each head.
    """

    inverse_sigma: Tensor

    def __init__(self, heads: int, head_size: int, config: LinearConfig) -> None:
        super().__init__(heads, head_size, config)
        if not self.folded:
            inverse = torch.full((heads, 1, head_size), 1.0 / config.sigma)
            if config.fixed_sigma:
                self.register_buffer("inverse_sigma", inverse)
            else:
                self.inverse_sigma = nn.Parameter(inverse)

    @property
    def numbers(self) -> tuple[int, ...]:
        return self.head_size, self.size // 2

    def directions(self, normal: Tensor) -> Tensor:
        # d^-½ belongs to x̂: a root mean square norm makes it √d times as long
        return (normal / math.sqrt(self.head_size)).float()

    def load_folded(self, unfolded: FeatureMap) -> None:
        assert isinstance(unfolded, RandomFourier)
        self.weight.copy_(unfolded.weight * unfolded.inverse_sigma.mT)

    def activate(self, x: T, query: bool, ops: Ops[T]) -> T:
        x = ops.rms_norm(x, None, EPS)
        if not self.folded:
            x = ops.mul(x, ops.parameter(self.inverse_sigma))
        x = ops.matmul(x, ops.parameter(self.weight))
        return ops.mul(ops.concat([ops.sin(x), ops.cos(x)]), (self.size // 2) ** -0.5)


class Favor(RandomMap):
    """Positive orthogonal random features of exp(q·k/√d): FAVOR+ (Choromanski et al. 2021, arXiv 2009.14794).

        φ(x) ∝ exp(W x - |x|²/2),  x = q d^-¼ or k d^-¼,  rows of W orthogonal in blocks of d, each √d long

    Stabilised exactly. φ(q): softmax(W q), since any factor of one query cancels between numerator and denominator.
    φ(k): as it stands, since W k - |k|²/2 never exceeds |w|²/2 = d/2; so no maximum runs along, and training, prefill
    and step are one function. 1/√m is left out, which cancels as well.
    """

    @property
    def numbers(self) -> tuple[int, ...]:
        return math.ceil(self.size / self.head_size), self.head_size, self.head_size

    def directions(self, normal: Tensor) -> Tensor:
        d = self.head_size
        q, r = torch.linalg.qr(normal)
        q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)  # now all directions are equally likely
        directions: Tensor = q.flatten(1, 2)[:, : self.size].mT.contiguous()  # (heads, d, m)
        directions *= d**0.25  # √d for the length, d^-¼ for x
        return directions.float()

    def activate(self, x: T, query: bool, ops: Ops[T]) -> T:
        y = ops.matmul(x, ops.parameter(self.weight))
        if query:
            return ops.softmax(y)
        half = ops.mul(ops.mean(ops.mul(x, x)), self.head_size**0.5 / 2)  # |k d^-¼|²/2
        return ops.exp(ops.sub(y, half))


# the names of the config -> class; their sizes stand under the same names in config.mixers.linear
FEATURE_MAPS: dict[str, type[FeatureMap]] = {
    "relu": Relu,
    "elu": Elu,
    "rfa": RandomFourier,
    "favor": Favor,
    "dpfp": Dpfp,
    "hedgehog": Hedgehog,
}


class FeatureMaps(nn.Module):
    """φ of q and φ of k: a joint map that serves both, one map shared by both, or one each."""

    def __init__(self, heads: int, kv_heads: int, head_size: int, config: LinearConfig) -> None:
        super().__init__()
        self.config = config
        kind = FEATURE_MAPS[config.feature_map]
        if kind.joint:
            self.joint = kind(kv_heads, head_size, config)
        else:
            self.q = kind(heads, head_size, config)
            if not config.shared_features:
                self.k = kind(kv_heads, head_size, config)
                self.q.copy_from_keys(self.k)

    @property
    def of_queries(self) -> FeatureMap:
        return self.joint if FEATURE_MAPS[self.config.feature_map].joint else self.q

    @property
    def of_keys(self) -> FeatureMap:
        if FEATURE_MAPS[self.config.feature_map].joint:
            return self.joint
        return self.q if self.config.shared_features else self.k

    def arguments(self, q: T, k: T, ops: Ops[T]) -> tuple[T, T]:
        """q (B, H, T, ·) and k (B, G, T, ·) -> what the maps activate of them."""
        if self.config.redraw and self.training and torch.is_grad_enabled():
            self.of_queries.redraw()  # of a joint map, so that φ(k) has the same directions
        return self.of_queries.arguments(q, ops), self.of_keys.arguments(k, ops)

    def activate(self, q: T, k: T, ops: Ops[T]) -> tuple[T, T]:
        """Their arguments -> φ(q) (B, H, T, K) and φ(k) (B, G, T, K)."""
        return self.of_queries(q, True, ops), self.of_keys(k, False, ops)

    def features(self, q: T, k: T, ops: Ops[T]) -> tuple[T, T]:
        """φ(q) and φ(k) of q and k."""
        return self.activate(*self.arguments(q, k, ops), ops)

    def load_folded(self, unfolded: FeatureMaps) -> None:
        """Of folded maps: the constants that their activations keep."""
        for mine, other in zip(self.children(), unfolded.children(), strict=True):
            assert isinstance(mine, FeatureMap) and isinstance(other, FeatureMap)
            mine.load_folded(other)
