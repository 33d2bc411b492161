"""Generate text with any Stepper: read the prompt, then choose a token, hand it out, read it, and so on."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from t2r_runtime.checks import LARGEST, listed, require_kind
from t2r_runtime.contract.penalties import Logits
from t2r_runtime.contract.sampling import Sampler, Sampling
from t2r_runtime.errors import UserError, printable, shown
from t2r_runtime.session.stepper import Stepper, TokenIds, token_ids


@dataclass(frozen=True)
class Request:
    """A text to generate, found to be in order."""

    prompt: TokenIds  # (1, T)
    max_tokens: int
    stop: frozenset[int]
    sampler: Sampler
    banned: NDArray[np.int64]  # tokens that a translator never chooses

    @property
    def all_but_last(self) -> TokenIds | None:
        """The prompt (1, T - 1) without its last token, whose successor is the first choice; None if T is 1."""
        return TokenIds(self.prompt.array[:, :-1]) if self.prompt.array.shape[1] > 1 else None

    @property
    def limit(self) -> int:
        """How many of the largest logits are enough to choose from; 0 is all of them."""
        limit = self.sampler.sampling.limit
        return limit and limit + self.banned.size

    def choose(self, logits: Logits, tokens: NDArray[np.int64] | None, occurred: ArrayLike) -> int:
        """The next token; see Sampler.pick."""
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
    """A request to go on from where `stepper` stands. Nothing is read.

    Args:
        ids: the prompt (T,), or (1, T).

    Raises:
        UserError: a batch other than 1, a value out of range, or more tokens than the model has positions.
    """
    signature = stepper.signature
    require_kind(sampling, Sampling, "a Sampling as sampling", "sampling")
    if type(max_tokens) is not int or not 1 <= max_tokens <= LARGEST:
        raise UserError("max_tokens from 1 to 2^63 - 1", shown(max_tokens), "choose another", "sampling")
    if stepper.batch != 1:
        raise UserError(
            "a batch of 1 to generate", f"{stepper.batch}", "reset(batch=1), or use step and prefill", "batch"
        )
    prompt = token_ids(ids, signature, 1)
    stop = (
        signature.eos_tokens
        if sampling.stop_tokens is None
        else listed(sampling.stop_tokens, "stop_tokens as a list", "token")
    )
    if not all(isinstance(token, int | np.integer) and 0 <= token < signature.vocab_size for token in stop):
        raise UserError(
            f"stop tokens in 0 … {signature.vocab_size - 1}",
            printable(", ".join(sorted(map(repr, stop)))),
            "use the tokenizer of this model",
            "token",
        )
    limit, read = signature.reach, stepper.position + prompt.array.size
    if limit is not None and read + max_tokens - 1 > limit:
        raise UserError(
            f"max_tokens of at most {max(limit - read + 1, 0)}: this model's positions end at {limit}",
            f"{max_tokens} after {read} tokens",
            "ask for fewer, shorten the prompt, or export with --past-end clamp or wrap:N",
            "position",
        )
    banned = np.array(signature.source.banned_tokens if signature.source else (), np.int64)
    return Request(prompt, max_tokens, frozenset(map(int, stop)), Sampler(sampling, signature.generation), banned)


def tokens(stepper: Stepper, request: Request) -> Generator[int]:
    """The tokens of a request, as they are chosen.

    The last one is handed out and not read: it has no successor to compute, and a model whose positions end could not
    read it. A step reads the last token of the prompt, as in a generation graph: a quantized prefill graph rounds
    otherwise than steps do, and the tokens must not depend on who chooses them.
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
    """Read ids (B, T) and fetch no more logits than a choice needs.

    Args:
        limit: how many of the largest logits are enough; 0 is all.

    Returns:
        Logits (B, N) and their tokens (B, N); or all logits (B, vocabulary) and None, where the graph gives no fewer.
    """
    if 0 < limit <= (stepper.signature.top_k or 0):
        return stepper.top_k(ids)
    return stepper.prefill(ids), None


def stream(stepper: Stepper, ids: ArrayLike, max_tokens: int, sampling: Sampling = Sampling()) -> Iterator[int]:
    """`tokens` of what is `checked` at once, before the first token is read."""
    return tokens(stepper, checked(stepper, ids, max_tokens, sampling))
