"""The Stepper protocol, and checks of a step's input: token ids or vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from t2r_runtime.checks import array_of, range_of
from t2r_runtime.contract.signature import Signature
from t2r_runtime.errors import UserError


@dataclass(frozen=True)
class TokenIds:
    """Token ids checked by `token_ids`: int64 (B, T)."""

    array: NDArray[np.int64]


@dataclass(frozen=True)
class Vectors:
    """Vectors checked by `vectors`: float32 (B, T, input_size)."""

    array: NDArray[np.float32]


Ids = ArrayLike | TokenIds
Inputs = Ids | Vectors  # integers (B, T), or vectors (B, T, input_size) for a graph that reads those


class Stepper(Protocol):
    """An opened step graph: a Decoder, in this or another process. Text generation requires only this protocol.

    B is `batch`, the number of sequences.
    """

    @property
    def signature(self) -> Signature:
        """The graph's metadata."""
        ...

    @property
    def batch(self) -> int:
        """Number of sequences."""
        ...

    @property
    def position(self) -> int:
        """Number of tokens read since the start."""
        ...

    def history(self, row: int = 0) -> NDArray[np.int64]:
        """The latest tokens that a sequence has read, oldest first (T,)."""
        ...

    def reset(self, batch: int | None = None) -> None:
        """Restart, with `batch` sequences; None keeps their number."""
        ...

    def step(self, ids: Inputs) -> NDArray[np.float32]:
        """Read one token of each sequence (B,), or a vector → next-token logits, float32 (B, vocabulary)."""
        ...

    def prefill(self, ids: Inputs) -> NDArray[np.float32]:
        """Read a prompt (B, T), or vectors → logits after its last token, float32 (B, vocabulary)."""
        ...

    def top_k(self, ids: Inputs) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """`prefill`, but return the `signature.top_k` largest logits and their tokens (B, top_k)."""
        ...

    def state(self) -> dict[str, NDArray[Any]]:
        """Copy all states, name → array."""
        ...

    def set_state(self, states: Mapping[str, ArrayLike], position: int = 0) -> None:
        """Continue from a copy of `states`."""
        ...


class SourceReader(Protocol):
    """An opened encoder graph: a Translator, in this or another process."""

    @property
    def signature(self) -> Signature:
        """The step graph's metadata."""
        ...

    def encode(self, sources: Iterable[ArrayLike]) -> dict[str, NDArray[Any]]:
        """Encode sources → the initial states of their translations, one row per source."""
        ...


def inputs_of(given: Inputs, signature: Signature, batch: int, form: str = "(B, T)") -> TokenIds | Vectors:
    """Check a graph's input: token ids or vectors. Arguments as for `token_ids` and `vectors`."""
    if signature.input_size is not None:
        return vectors(given, signature, batch, form)
    if isinstance(given, Vectors):
        raise UserError("token ids", "vectors", "pass token ids, or export with inputs_embeds", "token")
    return token_ids(given, signature, batch, form)


def vectors(given: Inputs, signature: Signature, batch: int, form: str = "(B, T)") -> Vectors:
    """Check vectors and convert them to float32 (B, T, input_size).

    Args:
        given: finite floating-point numbers of shape `form` and the graph's input size; B may be left out if `batch`
            is 1.
        form: "(B, T)", or "(B,)" for one vector of each sequence.

    Raises:
        UserError: token ids, no vectors, numbers that are not finite, or another shape.
    """
    if isinstance(given, Vectors):
        return given
    if isinstance(given, TokenIds):
        signature.require_tokens()
        raise AssertionError(form)
    array, axes = array_of(given, "vectors", "token"), 2 if form == "(B,)" else 3
    if array.dtype.kind != "f":
        do = "pass what the front end computes; token ids are for graphs without inputs_embeds"
        raise UserError("vectors of floating-point numbers", f"{array.dtype}", do, "token")
    whole = array[np.newaxis] if batch == 1 and array.ndim == axes - 1 else array
    if whole.ndim != axes or whole.shape[0] != batch or whole.shape[-1] != signature.input_size or not whole.size:
        wanted = form.replace("B", str(batch)).rstrip(",)") + f", {signature.input_size})"
        raise UserError(f"vectors of the shape {wanted}", f"{array.shape}", "pass one row per sequence", "batch")
    with np.errstate(over="ignore"):
        narrow = whole.reshape(batch, -1, whole.shape[-1]).astype(np.float32, copy=False)
    if not np.isfinite(narrow).all():
        raise UserError("finite vectors", "NaN or infinity", "check the front end", "token")
    return Vectors(narrow)


def token_ids(ids: Ids, signature: Signature, batch: int, form: str = "(B, T)") -> TokenIds:
    """Check token ids and convert them to int64 (B, T).

    The range is checked because Gather accepts -1 as the last token of the vocabulary.

    Args:
        ids: integers of shape `form`; B may be left out if `batch` is 1.
        form: "(B, T)", or "(B,)" for one token of each sequence.

    Raises:
        UserError: no ids, ids out of range, another shape, or a graph that reads vectors.
    """
    if isinstance(ids, TokenIds):
        return ids
    signature.require_tokens()
    array = array_of(ids, "ids", "token")
    vocabulary = signature.vocab_size
    if array.size == 0:
        bos = signature.bos_token
        start = "any token" if bos is None else f"the BOS token, {bos}"
        raise UserError("at least one token", "none", f"start from {start}", "token")
    if array.dtype.kind not in "iu":
        received = {"U": "text", "O": "values that are no 64-bit integers"}.get(array.dtype.kind, f"{array.dtype}")
        raise UserError("ids that are integers", received, "encode the text first", "token")
    if array.min() < 0 or array.max() >= vocabulary:
        received = range_of(array.min(), array.max())
        raise UserError(f"ids in 0 … {vocabulary - 1}", received, "use the tokenizer of this model", "token")
    axes = 1 if form == "(B,)" else 2
    whole = array[np.newaxis] if batch == 1 and array.ndim == axes - 1 else array
    if whole.ndim != axes or whole.shape[0] != batch:
        wanted = form.replace("B", str(batch)) + (" or (T,)" if batch == 1 and axes == 2 else "")
        do = "pass one token per sequence" if axes == 1 else "pass one row of tokens per sequence"
        raise UserError(f"ids of the shape {wanted}", f"{array.shape}", do, "batch")
    return TokenIds(whole.reshape(batch, -1).astype(np.int64, copy=False))


def require_room(stepper: Stepper, tokens: int) -> None:
    """Raise UserError if the model has too few positions for `tokens` more."""
    limit, position = stepper.signature.reach, stepper.position
    if limit is not None and position + tokens > limit:
        expected = f"at most {limit} tokens, where this model's positions end"
        do = "reset, read fewer tokens, or export with --past-end clamp or wrap:N"
        raise UserError(expected, f"{tokens} more after {position}", do, "position")
