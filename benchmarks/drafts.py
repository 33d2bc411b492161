"""What drafts are worth: a run of several tokens beside a step, texts with and without drafts, and whether they agree.

    python benchmarks/drafts.py GRAPH.onnx [--prompts FILE] [--draft lookup|SMALL.onnx] [--tokens 200] [--threads 2]

GRAPH has a draft-check graph (t2r-export --draft-check). Everything that is compared is timed in turns in one process:
runs of 1 to 31 tokens; then texts by steps and with drafts. The texts: what the model writes behind random tokens, with
guesses that are all right, as in a copy, and that are all wrong; and where there are prompts (a line each), what it
writes behind those, greedy and sampled, with `--draft`.

A text differs where two scores are nearer than the rounding of the two ways to compute them: how many texts do, and how
far apart the two best scores were at the first token that differs.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t2r_export.cli.output import table
from t2r_runtime import Decoder, Sampling, Tokenizer
from t2r_runtime.generate import Request
from t2r_runtime.states import LOGITS_ALONE, TOP_ALONE
from t2r_runtime.stepper import TokenIds

RUNS = (1, 2, 4, 8, 16, 31)
GREEDY = Sampling(0, stop_tokens=())
SAMPLED = Sampling(0.7, top_p=0.95, seed=1, stop_tokens=())


class Told:
    """Guesses of a text that is known: all right, or all wrong."""

    def __init__(self, text: Sequence[int], right: bool) -> None:
        self._text, self._right, self._read = text, right, 0

    def read(self, tokens: Sequence[int]) -> None:
        self._read += len(tokens)

    def kind(self) -> object:
        return "told"

    def propose(self, most: int, request: Request) -> Sequence[int]:
        known = [*self._text[self._read : self._read + most], *[0] * most][:most]
        return [token if self._right else int(token == 0) for token in known]


def runs(decoder: Decoder, repeats: int) -> list[list[str]]:
    """Rows: tokens in a run, its median time, beside a step."""
    rng, vocabulary = np.random.default_rng(0), decoder.signature.vocab_size
    wanted = LOGITS_ALONE if decoder.signature.top_k is None else TOP_ALONE
    times: dict[int, list[float]] = {count: [] for count in RUNS}
    for repeat in range(repeats + 2):
        for count, seconds in times.items():
            ids = TokenIds(rng.integers(0, vocabulary, (1, count)))
            begun = time.perf_counter()
            if count == 1:
                decoder._read(ids, wanted)
            else:
                decoder._check(ids, count, wanted)
            if repeat > 1:
                seconds.append(time.perf_counter() - begun)
    step = float(np.median(times[1]))
    medians = {count: float(np.median(seconds)) for count, seconds in times.items()}
    return [[str(count), f"{1e3 * t:.2f}", f"{t / step:.2f}"] for count, t in medians.items()]


def texts(
    decoder: Decoder, prompts: Sequence[Sequence[int]], tokens: int, sampling: Sampling, draft: Callable[[Any], Any]
) -> tuple[float, int, list[float]]:
    """The median of how many times sooner a text is there, how many differ, and how near the scores were where they
    do."""
    ratios, differing, gaps = [], 0, []
    for prompt in prompts:
        seconds: list[float] = []
        written: list[list[int]] = []
        for drafted in (False, True):
            guess = draft([*prompt, *written[0]]) if drafted else None
            decoder.reset(batch=1)
            begun = time.perf_counter()
            written.append(list(decoder.stream(prompt, tokens, sampling, guess)))
            seconds.append(time.perf_counter() - begun)
        ratios.append(seconds[0] / seconds[1])
        if written[0] != written[1]:
            differing += 1
            same = next(n for n, (a, b) in enumerate(zip(*written, strict=False)) if a != b)
            decoder.reset()
            logits = decoder.prefill([*prompt, *written[0][:same]])[0]
            gaps.append(float(abs(logits[written[0][same]] - logits[written[1][same]])))
    return float(np.median(ratios)), differing, gaps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("graph", type=Path)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--draft", default="lookup")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=40)
    given = parser.parse_args()
    decoder = Decoder(given.graph, threads=given.threads)
    rng = np.random.default_rng(1)
    small = given.draft if given.draft == "lookup" else Decoder(given.draft, threads=given.threads)
    print(table(runs(decoder, given.repeats), ["tokens in a run", "ms", "of a step"]))
    some = [rng.integers(0, decoder.signature.vocab_size, 24).tolist() for _ in range(5)]
    rows = []
    for what, right in (("every guess right", True), ("every guess wrong", False)):
        found = texts(decoder, some, given.tokens, GREEDY, functools.partial(Told, right=right))
        rows.append([what, *_told(*found, len(some))])
    if given.prompts:
        tokenizer = Tokenizer.of(decoder.signature)
        lines = [tokenizer.encode(line) for line in given.prompts.read_text(encoding="utf-8").splitlines() if line]
        for what, sampling in (("greedy", GREEDY), ("sampled", SAMPLED)):
            found = texts(decoder, lines, given.tokens, sampling, lambda _: small)
            rows.append([f"{what}, {given.draft}", *_told(*found, len(lines))])
    print()
    print(table(rows, ["texts", "times as fast", "differ", "scores apart there"]))


def _told(ratio: float, differing: int, gaps: Sequence[float], count: int) -> list[str]:
    return [f"{ratio:.2f}", f"{differing} of {count}", f"{max(gaps):.1e}" if gaps else ""]


if __name__ == "__main__":
    main()
