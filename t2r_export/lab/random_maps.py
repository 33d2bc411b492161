"""Feature maps that estimate a kernel with random directions."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
from torch import Tensor, nn

from t2r_export.config.mixers import LinearConfig
from t2r_export.model.mixers.maps import EPS, FeatureMap
from t2r_export.model.ops import Ops, T


def normal_numbers(heads: int, shape: tuple[int, ...]) -> Tensor:
    """Reproducible normal numbers (heads, *shape), float64, independent of other draws; see docs/mixers.md.

    Head h uses Philox4x64-10 (Salmon et al. 2011) with the key (0, h) and the Box-Muller transform. On torch's meta
    device the result has no values.
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
    """Base of random maps. The directions `weight` (heads, d, ·) are a buffer and not trained."""

    joint, alike = True, False
    weight: Tensor

    def __init__(self, heads: int, head_size: int, config: LinearConfig) -> None:
        super().__init__(heads, head_size, config)
        self.register_buffer("weight", self.directions(normal_numbers(heads, self.numbers)))

    @property
    def numbers(self) -> tuple[int, ...]:
        """Shape of the normal numbers for one head."""
        raise NotImplementedError

    def directions(self, normal: Tensor) -> Tensor:
        """Normal numbers (heads, *numbers) -> directions (heads, d, ·), float32."""
        raise NotImplementedError

    def redraw(self) -> None:
        # seeded by the current directions, so that resumed and distributed runs draw the same
        present = self.weight.detach().flatten()[:64].float().cpu().numpy().tobytes()
        seed = int.from_bytes(hashlib.sha256(present).digest()[:8]) >> 1
        # a new tensor, because gradients of an earlier pass may need the old one
        normal = torch.randn(self.heads, *self.numbers, generator=torch.Generator().manual_seed(seed))
        self.weight = self.directions(normal).to(self.weight)

    def load_folded(self, unfolded: FeatureMap) -> None:
        assert isinstance(unfolded, RandomMap)
        self.weight.copy_(unfolded.weight)

    def forward(self, arguments: T, query: bool, ops: Ops[T]) -> T:
        # group query heads by the key head that they share
        grouped = self.activate(ops.group_queries(arguments, self.heads), query, ops)
        return ops.ungroup_queries(grouped, arguments.shape[1])


class RandomFourier(RandomMap):
    """φ(x) = √(1/D) [sin(W x̂), cos(W x̂)], x̂ = x/|x|, rows of W from N(0, I/σ²), K = 2D: random feature attention
    (Peng et al. 2021, arXiv 2103.02143).

    φ(x)·φ(y) estimates exp(-|x̂ - ŷ|²/2σ²). σ is per input dimension and head, learned or fixed.
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
        # the factor d^-½ normalizes x̂, which the RMS norm scales to length √d
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

    Numerically stable without a running maximum, so that training, prefill and steps are one function: φ(q) is
    softmax(W q), since a factor per query cancels in the quotient; the exponent of φ(k) is at most |w|²/2 = d/2. The
    factor 1/√m also cancels and is omitted.
    """

    @property
    def numbers(self) -> tuple[int, ...]:
        return math.ceil(self.size / self.head_size), self.head_size, self.head_size

    def directions(self, normal: Tensor) -> Tensor:
        d = self.head_size
        q, r = torch.linalg.qr(normal)
        q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)  # uniform distribution
        directions: Tensor = q.flatten(1, 2)[:, : self.size].mT.contiguous()  # (heads, d, m)
        directions *= d**0.25  # √d for the length, d^-¼ for x
        return directions.float()

    def activate(self, x: T, query: bool, ops: Ops[T]) -> T:
        y = ops.matmul(x, ops.parameter(self.weight))
        if query:
            return ops.softmax(y)
        half = ops.mul(ops.mean(ops.mul(x, x)), self.head_size**0.5 / 2)  # |k d^-¼|²/2
        return ops.exp(ops.sub(y, half))
