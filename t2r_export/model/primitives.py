"""The operators that do not depend on how many tokens are read: weights, arithmetic, shapes.

`t2r_export.model.ops` adds those that do, and explains both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor, nn


class Shaped(Protocol):
    """What mixers may ask of a tensor: numbers, or in a graph letters, where a number is not known."""

    @property
    def shape(self) -> Any: ...


T = TypeVar("T", bound=Shaped)
# Added to the score of what a query must not see: exp of it is 0 in every precision. Finite, because providers differ
# in what -inf gives, and within the range of float16.
MASKED = -3e4
State = dict[str, T]  # states by name, batch first


class Primitives(ABC, Generic[T]):
    """Weights, arithmetic and shapes. Operands broadcast as in NumPy unless said otherwise."""

    # -- weights and constants

    @abstractmethod
    def parameter(self, tensor: Tensor) -> T:
        """A weight as an operand."""

    @abstractmethod
    def constant(self, array: Any, dtype: str, name: str) -> T:
        """A constant (a NumPy array), stored once for all of that name."""

    @abstractmethod
    def embedding(self, ids: T, table: T | Tensor) -> T:
        """Rows of `table` (N, D) at `ids` (…) -> (…, D). An id outside 0..N-1 is an error."""

    @abstractmethod
    def linear(self, x: T, weight: Tensor, bias: Tensor | None) -> T:
        """x (N, I) @ weight (O, I)ᵀ + bias (O) -> (N, O)."""

    @abstractmethod
    def linears(self, x: T, groups: Sequence[Sequence[nn.Linear]]) -> list[T]:
        """Several projections of one x (N, I): for each group what its layers give, side by side, (N, sum of their O).

        A graph computes them all in one product. All of them have a bias, or none has.
        """

    # -- arithmetic

    @abstractmethod
    def layer_norm(self, x: T, weight: Tensor, bias: Tensor, eps: float) -> T:
        """Normalise the last axis to mean 0 and variance 1, then scale and shift (Ba et al. 2016)."""

    @abstractmethod
    def rms_norm(self, x: T, weight: Tensor | None, eps: float) -> T:
        """Divide the last axis by its root mean square, then scale, if given (Zhang and Sennrich 2019)."""

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
        """Integers 0 <= x (…) modulo `divisor`, of the dtype of x."""

    @abstractmethod
    def relu(self, x: T) -> T: ...

    @abstractmethod
    def exp(self, x: T) -> T: ...

    @abstractmethod
    def sigmoid(self, x: T) -> T: ...

    @abstractmethod
    def log_sigmoid(self, x: T) -> T:
        """log(1 / (1 + exp(-x))), exact where the sigmoid is nearly 1."""

    @abstractmethod
    def elu(self, x: T) -> T:
        """x where it is positive, exp(x) - 1 elsewhere (Clevert et al. 2016)."""

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
        """exp(x) - 1 for x <= 0, exact where x is nearly 0."""

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
        """Mean over the last axis, which stays with size 1."""

    @abstractmethod
    def reduce_max(self, x: T) -> T:
        """Largest number of the last axis, which stays with size 1."""

    @abstractmethod
    def top_k(self, x: T, count: int) -> tuple[T, T]:
        """The largest `count` numbers of the last axis, falling, and their indices, int64: (…, count) each."""

    @abstractmethod
    def gather(self, x: T, indices: T) -> T:
        """Elements of x (…, N) at indices (…, M) of its last axis -> (…, M). The other axes are the same."""

    # -- shapes

    @abstractmethod
    def cast(self, x: T, dtype: str) -> T:
        """To `float32`, `int32` or `int64`."""

    @abstractmethod
    def reshape(self, x: T, shape: Sequence[int]) -> T:
        """To `shape`; 0 keeps the axis at that place, -1, once, stands for what is left."""

    @abstractmethod
    def unsqueeze(self, x: T, axis: int) -> T: ...

    @abstractmethod
    def squeeze(self, x: T, axis: int) -> T:
        """Drop an axis of size 1."""

    @abstractmethod
    def transpose(self, x: T, axes: Sequence[int]) -> T:
        """Permute all axes."""

    @abstractmethod
    def split(self, x: T, sizes: Sequence[int], axis: int = -1) -> list[T]: ...

    @abstractmethod
    def concat(self, parts: Sequence[T], axis: int = -1) -> T: ...

    @abstractmethod
    def repeat_heads(self, x: T, heads: int) -> T:
        """x (B, G, T, d) -> (B, heads, T, d): each head `heads / G` times in a row. x itself where G is `heads`."""

    @abstractmethod
    def slice_from(self, x: T, start: int) -> T:
        """x (B, heads, n, …) without the first `start` along n."""

    @abstractmethod
    def slice_last(self, x: T, count: int) -> T:
        """The last `count` of x (B, heads, n, d) along n."""

    @abstractmethod
    def drop_last(self, x: T, count: int) -> T:
        """x (B, heads, n + count, …) without the last `count` along n."""

    @abstractmethod
    def pad_front(self, x: T, count: int) -> T:
        """x (B, heads, n, d) with `count` zeros in front along n."""

    @abstractmethod
    def digits(self, x: T, base: int, count: int) -> T:
        """The digits of integers 0 <= x (…) < base^count, each as a row of its own table: int32 (…, count).

        Entry i is the digit of base^i, plus i · base.
        """
