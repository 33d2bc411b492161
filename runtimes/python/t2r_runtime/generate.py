"""The loop that writes text: read the prompt, then choose a token, hand it out, read it, and so on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from t2r_runtime.errors import UserError
from t2r_runtime.sampling import Sampler, Sampling
from t2r_runtime.signature import Signature

if TYPE_CHECKING:
    from t2r_runtime.decoder import Decoder


def stream(decoder: Decoder, ids: ArrayLike, max_tokens: int, sampling: Sampling) -> Iterator[int]:
    """Check everything, then return the tokens as they are chosen. See Decoder.generate.

    The last token is handed out and not read: it has no successor to compute, and a model whose positions end could
    not read it. So `max_tokens` tokens cost max_tokens - 1 steps.

    Raises:
        UserError: at once, before the first token is read.
    """
    prompt, stop = checked(decoder, ids, max_tokens, sampling)
    return _tokens(decoder, prompt, max_tokens, Sampler(sampling), stop)


def at_once(decoder: Decoder, ids: ArrayLike, max_tokens: int, sampling: Sampling) -> list[int] | None:
    """`stream` in one run of a graph that writes; None, and nothing is read, where there is none."""
    prompt, stop = checked(decoder, ids, max_tokens, sampling)
    if not decoder.writes():
        return None
    if prompt.size > 1:
        decoder.prefill(prompt[:-1])
    return decoder.write_text(int(prompt[-1]), Sampler(sampling), max_tokens, stop)


def checked(
    decoder: Decoder, ids: ArrayLike, max_tokens: int, sampling: Sampling
) -> tuple[NDArray[np.int64], frozenset[int]]:
    """The prompt (T,) and the stop tokens, when everything is found to be in order."""
    signature = decoder.signature
    prompt = token_ids(ids, signature)
    if type(max_tokens) is not int or max_tokens < 1:
        raise UserError("max_tokens of at least 1", repr(max_tokens), "choose another")
    if decoder.batch != 1:
        raise UserError("a batch of 1 to generate", f"{decoder.batch}", "reset(batch=1), or use step and prefill")
    if prompt.ndim not in (1, 2) or prompt.size != prompt.shape[-1]:
        raise UserError("a prompt of the shape (T,)", f"{prompt.shape}", "give one row of tokens")
    stop = frozenset(signature.eos_tokens if sampling.stop_tokens is None else sampling.stop_tokens)
    if not all(isinstance(token, int) and 0 <= token < signature.vocab_size for token in stop):
        raise UserError(
            f"stop tokens in 0 … {signature.vocab_size - 1}",
            ", ".join(sorted(map(repr, stop))),
            "use the tokenizer of this model",
        )
    limit, refuse = signature.max_positions, signature.past_end == "refuse"
    if limit is not None and refuse and decoder.position + prompt.size + max_tokens - 1 > limit:
        most = limit - decoder.position - prompt.size + 1
        raise UserError(
            f"max_tokens of at most {max(most, 0)}: this model's positions end at {limit}",
            f"{max_tokens} after {decoder.position + prompt.size} tokens",
            "ask for fewer, shorten the prompt, or export with --past-end clamp",
        )
    return prompt.reshape(-1), stop


def _tokens(
    decoder: Decoder, ids: NDArray[np.int64], max_tokens: int, sampler: Sampler, stop: frozenset[int]
) -> Iterator[int]:
    few = 0 < sampler.sampling.limit <= (decoder.signature.top_k or 0)
    for left in reversed(range(max_tokens)):
        if few:
            logits, tokens = decoder.top(ids)
            token = sampler.pick(logits[0], tokens[0])
        else:
            token = sampler.pick(decoder.prefill(ids)[0])
        yield token
        if token in stop or left == 0:
            return
        ids = np.array([token])


def token_ids(ids: ArrayLike, signature: Signature) -> NDArray[np.int64]:
    """Ids as int64. Range is checked because a graph's Gather takes -1 for the last token, silently.

    Raises:
        UserError: none at all, or others than the model's.
    """
    array = np.asarray(ids)
    vocabulary = signature.vocab_size
    if array.size == 0:
        bos = signature.bos_token
        start = "any token" if bos is None else f"the BOS token, {bos}"
        raise UserError("at least one token", "none", f"start from {start}")
    if array.dtype.kind not in "iu":
        raise UserError("ids that are whole numbers", f"{array.dtype}", "encode the text first")
    if array.min() < 0 or array.max() >= vocabulary:
        raise UserError(
            f"ids in 0 … {vocabulary - 1}", f"{array.min()} … {array.max()}", "use the tokenizer of this model"
        )
    return array.astype(np.int64, copy=False)
