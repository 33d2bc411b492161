"""Text generation with any Stepper: read the prompt, then choose and read tokens in turn."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from t2r_runtime.checks import listed, require_int, require_kind
from t2r_runtime.contract.penalties import Logits
from t2r_runtime.contract.sampling import Sampler, Sampling
from t2r_runtime.contract.signature import Signature
from t2r_runtime.errors import UserError, printable
from t2r_runtime.session.stepper import Ids, Stepper, TokenIds, token_ids


@dataclass(frozen=True)
class Request:
    """Checked arguments of text generation."""

    prompt: TokenIds  # (1, T)
    max_tokens: int
    stop: frozenset[int]
    sampler: Sampler
    banned: NDArray[np.int64]  # tokens that are never chosen

    @property
    def all_but_last(self) -> TokenIds | None:
        """The prompt without its last token (1, T - 1); None if T is 1."""
        return TokenIds(self.prompt.array[:, :-1]) if self.prompt.array.shape[1] > 1 else None

    @property
    def limit(self) -> int:
        """How many of the largest logits suffice for a choice; 0 means all."""
        limit = self.sampler.sampling.limit
        return limit and limit + self.banned.size

    def choose(self, logits: Logits, tokens: NDArray[np.int64] | None, occurred: ArrayLike) -> int:
        """Choose the next token; see Sampler.pick."""
        if self.banned.size:
            banned = self.banned if tokens is None else np.isin(tokens, self.banned)
            logits = logits.copy()
            logits[banned] = -np.inf
        return self.sampler.pick(logits, tokens, occurred)

    @property
    def last(self) -> int:
        """The prompt's last token."""
        return int(self.prompt.array[0, -1])


def checked(stepper: Stepper, ids: ArrayLike, max_tokens: int, sampling: Sampling) -> Request:
    """Check the arguments of text generation from the current state of `stepper`.

    Args:
        ids: the prompt (T,), or (1, T).

    Raises:
        UserError: a batch other than 1, a value out of range, or too few positions left.
    """
    require_int(max_tokens, "max_tokens", 1, "sampling")
    if stepper.batch != 1:
        do = "reset(batch=1), or use step and prefill"
        raise UserError("a batch of 1 to generate", f"{stepper.batch}", do, "batch")
    return request(stepper.signature, stepper.position, ids, max_tokens, sampling)


def request(signature: Signature, position: int, ids: Ids, max_tokens: int, sampling: Sampling) -> Request:
    """Check the arguments of text generation after `position` tokens; `max_tokens` may be 0.

    Raises:
        UserError: a value out of range, or too few positions left.
    """
    require_kind(sampling, Sampling, "a Sampling as sampling", "sampling")
    require_int(max_tokens, "max_tokens", 0, "sampling")
    prompt = token_ids(ids, signature, 1)
    tokens = signature.eos_tokens if sampling.stop_tokens is None else sampling.stop_tokens
    stop = listed(tokens, "stop_tokens as a list", "token")
    if not all(isinstance(token, int | np.integer) and 0 <= token < signature.vocab_size for token in stop):
        received = printable(", ".join(sorted(map(repr, stop))))
        do = "use the tokenizer of this model"
        raise UserError(f"stop tokens in 0 … {signature.vocab_size - 1}", received, do, "token")
    limit, read = signature.reach, position + prompt.array.size
    if limit is not None and read + max_tokens - 1 > limit:
        expected = f"max_tokens of at most {max(limit - read + 1, 0)}: this model's positions end at {limit}"
        do = "request fewer, shorten the prompt, or export with --past-end clamp or wrap:N"
        raise UserError(expected, f"{max_tokens} after {read} tokens", do, "position")
    banned = np.array(signature.source.banned_tokens if signature.source else (), np.int64)
    return Request(prompt, max_tokens, frozenset(map(int, stop)), Sampler(sampling, signature.generation), banned)


def tokens(stepper: Stepper, request: Request) -> Generator[int]:
    """Yield the tokens of a request as they are chosen.

    The last token is not read, as it may exceed the model's positions. A step reads the last token of the prompt, since
    a quantized prefill graph rounds differently.
    """
    if request.all_but_last is not None:
        next_logits(stepper, request.all_but_last, request.limit)
    ids = TokenIds(request.prompt.array[:, -1:])
    for left in reversed(range(request.max_tokens)):
        logits, places = next_logits(stepper, ids, request.limit)
        occurred = stepper.history() if request.sampler.sampling.looks_back else ()
        token = request.choose(logits[0], None if places is None else places[0], occurred)
        yield token
        if token in request.stop or left == 0:
            return
        ids = TokenIds(np.array([[token]]))


def next_logits(stepper: Stepper, ids: TokenIds, limit: int) -> tuple[NDArray[np.float32], NDArray[np.int64] | None]:
    """Read ids (B, T) and fetch no more logits than required.

    Args:
        limit: how many of the largest logits suffice; 0 means all.

    Returns:
        Logits (B, N) and their tokens (B, N), or all logits (B, vocabulary) and None.
    """
    if 0 < limit <= (stepper.signature.top_k or 0):
        return stepper.top_k(ids)
    return stepper.prefill(ids), None
