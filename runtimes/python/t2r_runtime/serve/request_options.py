"""Fields that completions and chats share, and the jobs made from them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from t2r_runtime.checks import is_number, range_of
from t2r_runtime.contract.options import DECODER, SamplingOptions
from t2r_runtime.contract.sampling import Sampling
from t2r_runtime.decode.text import Edit, Start
from t2r_runtime.serve.encoders import WINDOW
from t2r_runtime.serve.errors import wrong
from t2r_runtime.serve.fields import Fields, shown
from t2r_runtime.serve.grammars import Form, Mask, read_form, require_package
from t2r_runtime.serve.job import Event, Job
from t2r_runtime.serve.logits import ChangedLogits, LogitChanges
from t2r_runtime.serve.models import MAX_CHOICES, MAX_PROMPT, Model, Served
from t2r_runtime.serve.prefixes import places, space_of
from t2r_runtime.serve.writer import Echo, Writer

MOST_SEED = (1 << 63) - 1
STOPS, STOP_SIZE = 16, 1024
MAX_LOG_PROBS = 2 * MAX_PROMPT  # of one answer: two for each token of the longest prompt
SESSION_SIZE = 256  # characters
MOST_BIAS = 100
# unsupported features of OpenAI's API, and the values that disable them
MISSING = {
    "suffix": ("",),
    "functions": ([],),
    "modalities": (["text"],),
    "audio": (),
}


@dataclass(frozen=True)
class RequestOptions:
    """Options of a request, for each of its prompts."""

    max_tokens: int | None
    sampling: Sampling
    choices: int
    stops: tuple[str, ...]
    top: int | None  # most likely tokens with each log-probability; None: no log-probabilities
    stream: bool
    stream_usage: bool
    tokens: bool  # also return token ids
    session: str | None
    changes: LogitChanges
    form: Form | None
    written: Mapping[int, str] = field(default_factory=dict)  # special tokens that are a part of the text

    def samplings(self) -> list[Sampling]:
        """One Sampling per choice, each with its own seed."""
        seed = self.sampling.seed
        seeds = [None if seed is None else seed + n for n in range(self.choices)]
        return [replace(self.sampling, seed=each) for each in seeds]

    def edits(self, masks: Sequence[Mask]) -> list[Edit]:
        """What changes the logits of each choice; empty if nothing does."""
        if self.changes.none:
            return [*masks]
        changed = [ChangedLogits(self.changes) for _ in range(self.choices)]
        return [_both(*pair) for pair in zip(changed, masks, strict=True)] if masks else [*changed]


def read_options(
    fields: Fields, served: Served, model: Model, top: int | None, stop_tokens: Sequence[int]
) -> RequestOptions:
    """Take the shared fields.

    Args:
        top: number of log-probabilities, from the endpoint's own fields.
        stop_tokens: tokens that end a text.

    Raises:
        ApiError: a field that is invalid or not supported.
    """
    for name, allowed in MISSING.items():
        fields.only(name, allowed)
    most = served.limits.max_tokens
    advice = "request fewer, or start the server with a larger --max-tokens"
    longest = fields.whole("max_tokens", None, 0, most, advice)
    longest = fields.whole("max_completion_tokens", longest, 0, most, advice)
    choices = fields.whole("n", 1, 1, MAX_CHOICES) or 1
    fields.only("best_of", (choices,))
    ends = () if fields.flag("ignore_eos") else tuple(stop_tokens)
    sampling = Sampling(
        **{name: fields.option(name, SamplingOptions) for name in DECODER},
        seed=fields.whole("seed", None, 0, MOST_SEED - MAX_CHOICES),
        stop_tokens=ends,
    )
    stream = fields.inner("stream_options")
    usage = stream.flag("include_usage")
    stream.end()
    return RequestOptions(
        longest,
        sampling,
        choices,
        tuple(fields.texts("stop", STOPS, STOP_SIZE)),
        top,
        fields.flag("stream"),
        usage,
        fields.flag("return_tokens"),
        fields.text("session_id", most=SESSION_SIZE),
        _changes(fields, model.signature.vocab_size),
        read_form(fields),
    )


def _both(first: Edit, second: Edit) -> Edit:
    return lambda logits, tokens: second(first(logits, tokens), tokens)


def _changes(fields: Fields, vocabulary: int) -> LogitChanges:
    """OpenAI's penalties and biases, in its ranges."""
    presence, frequency = (fields.number(f"{kind}_penalty", 0.0, -2.0, 2.0) for kind in ("presence", "frequency"))
    bias = fields.take("logit_bias")

    def valid(token: object, value: object) -> bool:
        known = isinstance(token, str) and token.isdecimal() and len(token) < 11 and int(token) < vocabulary
        return known and is_number(value) and abs(value) <= MOST_BIAS

    if bias is not None and not (isinstance(bias, dict) and all(valid(*pair) for pair in bias.items())):
        expected = f"an object of tokens in 0 … {vocabulary - 1} and numbers from -{MOST_BIAS} to {MOST_BIAS}"
        raise wrong(f"{expected} as logit_bias", shown(bias), "correct it", "logit_bias")
    return LogitChanges(presence, frequency, {int(token): float(value) for token, value in (bias or {}).items()})


async def job(
    served: Served,
    model: Model,
    options: RequestOptions,
    ids: list[int],
    max_tokens: int,
    first: int,
    events: asyncio.Queue[Event],
    echo: Echo | None = None,
) -> Job:
    """The job of one prompt.

    Args:
        first: number of its first choice in the answer.
        echo: the prompt, if the answer begins with it.
    """
    if not 0 <= min(ids) <= max(ids) < model.signature.vocab_size:
        expected = f"tokens in 0 … {model.signature.vocab_size - 1}"
        raise wrong(expected, range_of(min(ids), max(ids)), "use this model's tokenizer", "prompt")
    scored = echo is not None and options.top is not None
    masks = await _masks(served, model, options)
    writers = [
        Writer(first + n, model.tokenizer, ids, options.stops, options.top, echo, mask, options.written)
        for n, mask in enumerate(masks or [None] * options.choices)
    ]
    start, keep, marks = None, None, list[int]()
    if scored:
        for writer in writers:
            writer.first(ids[0])
    elif served.prefixes.max_bytes:
        space, prompt = space_of(model.key, options.session), np.array(ids, np.int64)
        start = await asyncio.to_thread(served.prefixes.find, space, model.signature, prompt)
        keep = functools.partial(served.prefixes.put, space, model.signature)
        marks = places(prompt, 0 if start is None else start.position, model.ends)
    if model.adapter is not None:
        start = replace(start or Start(None), adapter=model.adapter)
    seconds = served.limits.seconds
    more = start, scored, keep, marks, options.edits(masks)
    return Job(ids, max_tokens, options.samplings(), writers, seconds, events, *more)


async def _masks(served: Served, model: Model, options: RequestOptions) -> list[Mask]:
    """The form of each choice; empty if any is allowed. Raises ApiError."""
    if options.form is None:
        return []
    require_package(options.form.param)
    model.text()
    assert model.grammars is not None
    compiled = functools.partial(model.grammars.mask, options.form, options.sampling.stop_tokens or ())
    mask = await served.encoders.run(WINDOW + 1, compiled)  # beside long texts: it may take a second
    return [mask, *(mask.copy() for _ in range(options.choices - 1))]


def require_log_probs(options: RequestOptions, prompts: int, generated: int) -> None:
    """Raise ApiError if an answer has more log-probabilities than allowed.

    Args:
        prompts: tokens of prompts that have log-probabilities.
        generated: maximum number of new tokens of all choices.
    """
    if options.top is None or (size := (prompts + generated) * (1 + options.top)) <= MAX_LOG_PROBS:
        return
    do = "request fewer of them, or of tokens or choices"
    raise wrong(f"an answer of at most {MAX_LOG_PROBS:,} log-probabilities", f"up to {size:,}", do, "logprobs")


def require_size(tokens: int, param: str = "prompt") -> None:
    """Raise ApiError if a request has more tokens than allowed."""
    if tokens > MAX_PROMPT:
        raise wrong(f"at most {MAX_PROMPT:,} tokens in all", f"{tokens:,}", "send less", param)
