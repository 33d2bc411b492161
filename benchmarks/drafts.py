"""Speed of speculative decoding: runs of several tokens against a step, and texts with and without drafts.

    python benchmarks/drafts.py GRAPH.onnx [--prompts FILE] [--draft lookup|SMALL.onnx] [--tokens 200] [--threads 2]
    python benchmarks/drafts.py GRAPH.onnx --prompts FILE --times 4 --pool [--tokens 200] [--threads 2]
    python benchmarks/drafts.py t2r:w4:target=fused:top_k=1

GRAPH has a draft-check graph (t2r-export --draft-check), or is a form of SmolLM-135M's shape with random weights as in
benchmarks/plan.toml. Measurements alternate in one process: runs of 1 to 31 tokens, then texts by steps and with
drafts. Texts continue random tokens with drafts that are all right or all wrong, and the lines of the prompts file,
greedy and sampled, with `--draft`. `--times` repeats each line, so that what follows repeats itself too. With `--pool`
only these texts, as a server writes one that is alone.

Texts can differ where two scores are closer than the rounding difference of the two methods. Printed: the number of
texts that differ, and the distance of the two best scores at the first difference.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from comparison.engines import make, parse
from t2r_export.cli.output import table
from t2r_runtime import Decoder, Sampling, Tokenizer
from t2r_runtime.decode.generate import Request
from t2r_runtime.decode.pool import Pool
from t2r_runtime.session.states import LOGITS_ALONE, TOP_ALONE
from t2r_runtime.session.stepper import TokenIds

RUNS = (1, 2, 4, 8, 16, 31)
TURNS = 6
TEXTS = ["texts", "times as fast", "differ", "scores apart there"]  # columns
GREEDY = Sampling(0, stop_tokens=())
SAMPLED = Sampling(0.7, top_p=0.95, seed=1, stop_tokens=())


class Told:
    """Drafts from a known text: all right or all wrong."""

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
    """Rows: tokens per run, median milliseconds, ratio to a step."""
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
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    sampling: Sampling,
    draft: Callable[[Any], Any],
    steps: Pool | None = None,
) -> tuple[float, int, list[float]]:
    """Median speed-up, number of texts that differ, and distance of scores there. Each text is written TURNS times both
    ways, in alternating order; `steps` writes those without drafts, if given."""
    ratios, gaps = [], []
    for prompt in prompts:
        plain, _ = written(decoder, prompt, tokens, sampling, steps)  # warm-up; source of the drafts
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for drafted in [False, True, True, False] * (TURNS // 2):
            text, took = written(decoder, prompt, tokens, sampling, draft([*prompt, *plain]) if drafted else steps)
            seconds[drafted].append(took)
            if drafted:
                guessed = text
        ratios.append(float(np.median(seconds[False]) / np.median(seconds[True])))
        if plain != guessed:
            same = next(n for n, (a, b) in enumerate(zip(plain, guessed, strict=False)) if a != b)
            decoder.reset()
            logits = decoder.prefill([*prompt, *plain[:same]])[0]
            gaps.append(float(abs(logits[plain[same]] - logits[guessed[same]])))
    return float(np.median(ratios)), len(gaps), gaps


def written(
    decoder: Decoder, prompt: Sequence[int], tokens: int, sampling: Sampling, draft: Any
) -> tuple[list[int], float]:
    """A text and the seconds to write it: by the decoder, or by the pool in place of drafts."""
    decoder.reset(batch=1)
    begun = time.perf_counter()
    if isinstance(draft, Pool):
        [alone] = draft.add(prompt, tokens, [sampling])
        while draft.busy:
            draft.step()
        return alone.tokens, time.perf_counter() - begun
    text = list(decoder.stream(prompt, tokens, sampling, draft))
    return text, time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("graph")
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--pool", action="store_true")
    parser.add_argument("--draft", default="lookup")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=40)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(given.graph)
        if given.graph.startswith("t2r:"):
            path = make(parse(f"{given.graph}:draft_check=1"), "smollm-135m", Path(folder)).path
        decoder = Decoder(path, threads=given.threads)
        measure(decoder, given)


def measure(decoder: Decoder, given: argparse.Namespace) -> None:
    """Print both tables."""
    rng = np.random.default_rng(1)
    small = given.draft if given.draft == "lookup" else Decoder(given.draft, threads=given.threads)
    if given.pool:
        pools = Pool(decoder, 1, draft=small), Pool(decoder, 1)
        print(table(prompted(decoder, given, *pools), TEXTS))
        return
    print(table(runs(decoder, given.repeats), ["tokens in a run", "ms", "of a step"]))
    some = [rng.integers(0, decoder.signature.vocab_size, 24).tolist() for _ in range(5)]
    rows = []
    for what, right in (("every guess right", True), ("every guess wrong", False)):
        found = texts(decoder, some, given.tokens, GREEDY, functools.partial(Told, right=right))
        rows.append([what, *_told(*found, len(some))])
    if given.prompts:
        rows += prompted(decoder, given, small, None)
    print()
    print(table(rows, TEXTS))


def prompted(decoder: Decoder, given: argparse.Namespace, draft: Any, steps: Pool | None) -> list[list[str]]:
    """Rows of the texts after the prompts."""
    tokenizer, rows = Tokenizer.of(decoder.signature), []
    given_lines = given.prompts.read_text(encoding="utf-8").splitlines()
    lines = [tokenizer.encode(" ".join([line] * given.times)) for line in given_lines if line]
    for what, sampling in (("greedy", GREEDY), ("sampled", SAMPLED)):
        found = texts(decoder, lines, given.tokens, sampling, lambda _: draft, steps)
        rows.append([f"{what}, {given.draft}", *_told(*found, len(lines))])
    return rows


def _told(ratio: float, differing: int, gaps: Sequence[float], count: int) -> list[str]:
    return [f"{ratio:.2f}", f"{differing} of {count}", f"{max(gaps):.1e}" if gaps else ""]


if __name__ == "__main__":
    main()
