"""Sampled texts by a second, literal implementation of the rules of runtimes/contract/generation.md.

A test compares it with t2r_runtime.Sampler. No choice is closer than `MARGIN` to one that rounding of logits could
change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from golden.computed import Computed, Eager
from golden.models import checkpoint

MARGIN = 1e-3  # of logits, scores and probabilities; well above float32 rounding
WORD = 1 << 32
LENGTH = 24
ATTEMPTS = 300
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.6},
    {"temperature": 1.7, "top_k": 5},
    {"top_k": 3},
    {"top_k": 1},
    {"top_p": 0.9},
    {"top_p": 0.5, "temperature": 1.3},
    {"top_k": 8, "top_p": 0.7},
    {"min_p": 0.2},
    {"top_k": 9, "top_p": 0.95, "min_p": 0.05, "temperature": 1.2},
    {"repetition_penalty": 1.5},
    {"repetition_penalty": 0.7, "top_k": 6},
    {"no_repeat_ngram": 2},
    {"no_repeat_ngram": 3, "repetition_penalty": 1.2, "top_p": 0.8},
    {"temperature": 0, "no_repeat_ngram": 1, "repetition_penalty": 1.3},
    {"stop_tokens": [5, 11]},
    {"stop_tokens": []},
    # explicit defaults of the table, which override the graph's options
    {"temperature": 1},
    {"top_k": 0},
    {"top_p": 1},
    {"min_p": 0},
    {"repetition_penalty": 1},
    {"no_repeat_ngram": 0},
)
SEEDS = (0, 1, 12345, WORD - 500, WORD + 7, 1 << 52)  # the last two are split into words


class NearAnEdge(Exception):
    """A choice that rounding could change."""


def sampling(name: str, computed: Computed | None = None) -> dict[str, Any]:
    """Texts of the golden model `name`, as plain JSON data."""
    made, random = computed or Eager(checkpoint(name)), np.random.default_rng(list(f"{name} choices".encode()))
    texts: list[dict[str, Any]] = []
    config = checkpoint(name).config
    of_graph = {} if config.generation is None else config.generation.to_dict()
    for place, options in enumerate(OPTIONS):
        for attempt in range(ATTEMPTS):
            given = {**options, "seed": SEEDS[place % len(SEEDS)] + attempt}
            prompt = [1, *random.integers(0, made.vocab_size, place % 4).tolist()]
            try:
                tokens = text(made, prompt, {**of_graph, **given}, config.eos_tokens)
            except NearAnEdge:
                continue
            texts.append({"prompt": prompt, "max_tokens": LENGTH, "options": given, "tokens": tokens})
            break
    assert len(texts) == len(OPTIONS), "too few attempts"
    return {"graph": f"{name}.onnx", "texts": texts}


def text(
    made: Computed, prompt: Sequence[int], options: dict[str, Any], ends: Sequence[int], length: int = LENGTH
) -> list[int]:
    """The tokens that follow a prompt at the start of a text. Raises NearAnEdge."""
    states, tokens, stop = made.initial(1), list(prompt), options.get("stop_tokens", ends)
    for token in tokens[:-1]:
        _, states = made.step(np.array([token]), states)
    for draw in range(length):
        logits, states = made.step(np.array(tokens[-1:]), states)
        token, margin = choose(logits[0].tolist(), tokens, draw, **options)
        if margin < MARGIN:
            raise NearAnEdge
        tokens.append(token)
        if token in stop:
            break
    return tokens[len(prompt) :]


def choose(
    logits: list[float],
    occurred: Sequence[int],
    draw: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
    no_repeat_ngram: int = 0,
    seed: int = 0,
    stop_tokens: Sequence[int] = (),
) -> tuple[int, float]:
    """The chosen token, and its margin over other choices."""
    logits = penalized(logits, occurred, repetition_penalty, no_repeat_ngram)
    order = sorted(range(len(logits)), key=lambda t: (-logits[t], t))
    if temperature == 0 or top_k == 1:
        return order[0], logits[order[0]] - logits[order[1]]
    margins = []
    if 0 < top_k < len(order):
        margins.append(logits[order[top_k - 1]] - logits[order[top_k]])
        order = order[:top_k]
    scores = {t: (logits[t] - logits[order[0]]) / temperature for t in order}
    kept = order
    if top_p < 1:
        total, before, kept = sum(math.exp(scores[t]) for t in sorted(order)), 0.0, []
        for t in order:
            margins.append(abs(before / total - top_p))
            if before < top_p * total:
                kept.append(t)
            before += math.exp(scores[t])
    if min_p > 0:
        margins += [abs(scores[t] - math.log(min_p)) for t in order]
        kept = [t for t in kept if scores[t] >= math.log(min_p)]
    noisy = sorted(((scores[t] + _noise(seed, draw, t), t) for t in kept), reverse=True)
    margins += [noisy[0][0] - noisy[1][0]] if len(noisy) > 1 else []
    return noisy[0][1], min(margins, default=math.inf)


def penalized(logits: list[float], occurred: Sequence[int], repetition: float, n: int) -> list[float]:
    """Logits after the penalties of tokens that have occurred."""
    for token in set(occurred):
        penalty = repetition if logits[token] < 0 else 1 / repetition
        logits = [logit * penalty if t == token else logit for t, logit in enumerate(logits)]
    return _without_repetition(logits, occurred, n)


def _without_repetition(logits: list[float], occurred: Sequence[int], n: int) -> list[float]:
    """-inf for each token that would repeat a run of n tokens, unless these are all tokens."""
    rows = [occurred[i : i + n] for i in range(len(occurred) - n + 1)] if n else []
    begun = {row[-1] for row in rows if list(row[:-1]) == list(occurred[len(occurred) - n + 1 :])}
    left = [-math.inf if t in begun else logit for t, logit in enumerate(logits)]
    return left if max(left) > -math.inf else logits


def _noise(seed: int, draw: int, token: int) -> float:
    word = 0
    for shift in reversed(range(0, max(seed.bit_length(), 1), 32)):
        word = _mix(word) ^ seed >> shift & WORD - 1
    h = _mix(_mix(_mix(word + 0x9E3779B9) + draw) + token)
    return -math.log(-math.log((h + 0.5) / WORD))


def _mix(x: int) -> int:
    x %= WORD
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ x >> shift) * factor % WORD
    return x ^ x >> 16
