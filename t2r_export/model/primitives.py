"""Operators that are independent of the number of tokens; t2r_export.model.ops adds the others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor, nn


class Shaped(Protocol):
    """A tensor with a shape; in graphs, unknown dimensions are letters."""

    @property
    def shape(self) -> Any: ...


T = TypeVar("T", bound=Shaped)
# Bias of masked scores: exp is 0 in every precision. Within float16, and finite because providers differ for -inf.
MASKED = -3e4
State = dict[str, T]  # by name, batch first


class Primitives(ABC, Generic[T]):
    """Weights, arithmetic and shapes. Operands broadcast as in NumPy unless noted."""

    # -- weights and constants

    @abstractmethod
    def parameter(self, tensor: Tensor) -> T:
        """A weight as an operand."""

    @abstractmethod
    def constant(self, array: Any, dtype: str, name: str) -> T:
        """A constant from a NumPy array, stored once per name."""

    @abstractmethod
    def embedding(self, ids: T, table: T | Tensor) -> T:
        """Entries of `table` (N, *) at `ids` (…) -> (…, *). Ids must be in 0..N-1."""

    @abstractmethod
    def linear(self, x: T, weight: Tensor, bias: Tensor | None) -> T:
        """x (N, I) @ weight (O, I)ᵀ + bias (O) -> (N, O)."""

    @abstractmethod
    def linears(self, x: T, groups: Sequence[Sequence[nn.Linear]]) -> list[T]:
        """Projections of one x (N, I) -> per group, the concatenated outputs (N, sum of O).

        Graphs use a single Gemm. Either all layers have a bias, or none.
        """

    # -- arithmetic

    @abstractmethod
    def layer_norm(self, x: T, weight: Tensor, bias: Tensor, eps: float) -> T:
        """Layer norm over the last axis (Ba et al. 2016)."""

    @abstractmethod
    def rms_norm(self, x: T, weight: Tensor | None, eps: float) -> T:
        """RMS norm over the last axis, with an optional scale (Zhang and Sennrich 2019)."""

    @abstractmethod
    def add(self, a: T | float, b: T | float) -> T: ...

    @abstractmethod
    def sub(self, a: T | float, b: T | float) -> T: ...

    @abstractmethod
    def mul(self, a: T | float, b: T | float) -> T: ...

    @abstractmethod
    def div(self, a: T | float, b: T | float) -> T: ...

    @abstractmethod
    def matmul(self, a: T, b: T) -> T: ...

    @abstractmethod
    def maximum(self, x: T, low: float) -> T:
        """Elementwise max(x, low)."""

    @abstractmethod
    def minimum(self, x: T, high: float) -> T:
        """Elementwise min(x, high)."""

    @abstractmethod
    def remainder(self, x: T, divisor: int) -> T:
        """x modulo `divisor`, for integers x >= 0."""

    @abstractmethod
    def relu(self, x: T) -> T: ...

    @abstractmethod
    def exp(self, x: T) -> T: ...

    @abstractmethod
    def log(self, x: T) -> T: ...

    @abstractmethod
    def sigmoid(self, x: T) -> T: ...

    @abstractmethod
    def log_sigmoid(self, x: T) -> T:
        """log(1 / (1 + exp(-x))), accurate for large x."""

    @abstractmethod
    def elu(self, x: T) -> T:
        """x if x > 0, else exp(x) - 1 (Clevert et al. 2016)."""

    @abstractmethod
    def silu(self, x: T) -> T:
        """x · sigmoid(x) (Hendrycks and Gimpel 2016)."""

    @abstractmethod
    def tanh(self, x: T) -> T: ...

    @abstractmethod
    def gelu(self, x: T, tanh: bool) -> T:
        """GELU (Hendrycks and Gimpel 2016), exact or with the tanh approximation."""

    @abstractmethod
    def softplus(self, x: T) -> T:
        """log(1 + exp(x))."""

    @abstractmethod
    def expm1(self, x: T) -> T:
        """exp(x) - 1 for x <= 0, accurate near 0."""

    @abstractmethod
    def sqrt(self, x: T) -> T: ...

    @abstractmethod
    def sin(self, x: T) -> T: ...

    @abstractmethod
    def cos(self, x: T) -> T: ...

    @abstractmethod
    def softmax(self, x: T) -> T:
        """Softmax over the last axis."""

    @abstractmethod
    def mean(self, x: T) -> T:
        """Mean over the last axis, kept with size 1."""

    @abstractmethod
    def reduce_max(self, x: T) -> T:
        """Maximum over the last axis, kept with size 1."""

    @abstractmethod
    def top_k(self, x: T, count: int) -> tuple[T, T]:
        """The `count` largest elements of the last axis in descending order, and their int64 indices."""

    @abstractmethod
    def gather(self, x: T, indices: T) -> T:
        """Elements of x (…, N) at integers (…, M) of the last axis -> (…, M); other axes must match."""

    # -- shapes

    @abstractmethod
    def cast(self, x: T, dtype: str) -> T:
        """Cast to `float32`, `int32` or `int64`."""

    @abstractmethod
    def to_int8(self, x: T) -> T:
        """x, from -127 to 127, rounded to integers, ties to even."""

    @abstractmethod
    def straight_through(self, y: T, x: T) -> T:
        """y, with the gradient of x."""

    @abstractmethod
    def reshape(self, x: T, shape: Sequence[int]) -> T:
        """Reshape; 0 keeps the dimension at that index, a single -1 is inferred."""

    @abstractmethod
    def unsqueeze(self, x: T, axis: int) -> T: ...

    @abstractmethod
    def squeeze(self, x: T, axis: int) -> T:
        """Remove an axis of size 1."""

    @abstractmethod
    def transpose(self, x: T, axes: Sequence[int]) -> T:
        """Permute all axes."""

    @abstractmethod
    def split(self, x: T, sizes: Sequence[int], axis: int = -1) -> list[T]: ...

    @abstractmethod
    def concat(self, parts: Sequence[T], axis: int = -1) -> T: ...

    @abstractmethod
    def repeat_heads(self, x: T, heads: int) -> T:
        """x (B, G, T, d) -> (B, heads, T, d): repeat each head heads / G times."""

    @abstractmethod
    def slice_from(self, x: T, start: int) -> T:
        """x[:, :, start:]"""

    @abstractmethod
    def slice_last(self, x: T, count: int) -> T:
        """The last `count` elements of axis 2."""

    @abstractmethod
    def drop_last(self, x: T, count: int) -> T:
        """x without the last `count` elements of axis 2."""

    @abstractmethod
    def pad_front(self, x: T, count: int) -> T:
        """x (B, heads, n, d) with `count` leading zeros on axis 2."""

    @abstractmethod
    def digits(self, x: T, base: int, count: int) -> T:
        """Digits of integers 0 <= x (…) < base^count, int32 (…, count); entry i is digit i plus i · base."""
