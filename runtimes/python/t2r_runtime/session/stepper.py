"""What reads tokens and keeps its states between them, whoever it is: the protocol, and the check of what it reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from t2r_runtime.checks import array_of
from t2r_runtime.contract.signature import Signature
from t2r_runtime.errors import UserError


@dataclass(frozen=True)
class TokenIds:
    """Tokens that `token_ids` has checked, so that nobody checks them again: int64 (B, T)."""

    array: NDArray[np.int64]


Ids = ArrayLike | TokenIds


class Stepper(Protocol):
    """A step graph in use: a Decoder, here or in another process. What is generated needs no more of it than this.

    B is `batch`, the number of sequences side by side.
    """

    @property
    def signature(self) -> Signature:
        """What the graph's metadata says."""
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
        """The last tokens that a sequence has read since the start, oldest first (T,); see `decode.history`."""
        ...

    def reset(self, batch: int | None = None) -> None:
        """Go back to the start of a text, of `batch` sequences; None leaves their number as it is."""
        ...

    def step(self, ids: Ids) -> NDArray[np.float32]:
        """Read one token of each sequence (B,) → the logits of the next, float32 (B, vocabulary)."""
        ...

    def prefill(self, ids: Ids) -> NDArray[np.float32]:
        """Read a prompt (B, T) → the logits after its last token, float32 (B, vocabulary)."""
        ...

    def top_k(self, ids: Ids) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """`prefill`, of whose logits only the `signature.top_k` largest and their tokens come back (B, top_k)."""
        ...

    def state(self) -> dict[str, NDArray[Any]]:
        """Copies of all states, name → array."""
        ...

    def set_state(self, states: Mapping[str, ArrayLike], position: int = 0) -> None:
        """Go on from copies of `states`."""
        ...


class SourceReader(Protocol):
    """A translator's encoder graph in use: a Translator, here or in another process."""

    @property
    def signature(self) -> Signature:
        """What the step graph's metadata says."""
        ...

    def encode(self, sources: Iterable[ArrayLike]) -> dict[str, NDArray[Any]]:
        """Read sources → the states that their translations start from, a row each."""
        ...


def token_ids(ids: Ids, signature: Signature, batch: int, form: str = "(B, T)") -> TokenIds:
    """Check ids, and bring them to their form. Here, and nowhere else.

    The range is checked because a graph's Gather takes -1 for the last token, silently.

    Args:
        ids: integers of the shape `form`; without B if `batch` is 1.
        form: "(B, T)", or "(B,)" for one token of each sequence.

    Raises:
        UserError: none at all, others than the model's, or another shape.
    """
    if isinstance(ids, TokenIds):
        return ids
    array = array_of(ids, "ids", "token")
    vocabulary = signature.vocab_size
    if array.size == 0:
        bos = signature.bos_token
        start = "any token" if bos is None else f"the BOS token, {bos}"
        raise UserError("at least one token", "none", f"start from {start}", "token")
    if array.dtype.kind not in "iu":
        raise UserError("ids that are integers", f"{array.dtype}", "encode the text first", "token")
    if array.min() < 0 or array.max() >= vocabulary:
        raise UserError(
            f"ids in 0 … {vocabulary - 1}",
            f"{array.min()} … {array.max()}",
            "use the tokenizer of this model",
            "token",
        )
    axes = 1 if form == "(B,)" else 2
    whole = array[np.newaxis] if batch == 1 and array.ndim == axes - 1 else array
    if whole.ndim != axes or whole.shape[0] != batch:
        wanted = form.replace("B", str(batch)) + (" or (T,)" if batch == 1 and axes == 2 else "")
        do = "give one token per sequence" if axes == 1 else "give one row of tokens per sequence"
        raise UserError(f"ids of the shape {wanted}", f"{array.shape}", do, "batch")
    return TokenIds(whole.reshape(batch, -1).astype(np.int64, copy=False))


def require_room(stepper: Stepper, tokens: int) -> None:
    """Refuse to read more tokens than the model has positions.

    Raises:
        UserError: it ends before.
    """
    limit, position = stepper.signature.reach, stepper.position
    if limit is not None and position + tokens > limit:
        raise UserError(
            f"at most {limit} tokens, where this model's positions end",
            f"{tokens} more after {position}",
            "reset, read less, or export with --past-end clamp or wrap:N",
            "position",
        )
