"""Texts with drafts by prompt lookup, which equal those without, and what drafts are made of given texts.

The first need a graph; its run times are a machine's own. The second, `NAME`, need none: the run times are given, so
that every runtime makes the same drafts (runtimes/contract/conformance.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from golden.choices import ATTEMPTS, NearAnEdge, text
from golden.computed import Eager
from golden.models import CLAMP, PLAIN, WINDOW, seeded
from golden.texts import Case
from t2r_export.config.export import ExportConfig
from t2r_export.config.mixers import LinearConfig, SoftmaxConfig
from t2r_export.export import export
from t2r_runtime.contract.signature import MOST_CHECKED
from t2r_runtime.decode import speculation
from t2r_runtime.decode.drafts import Lookup
from t2r_runtime.decode.pace import Pace, Times

NAME = "drafts.json"
LENGTH = 70
# how likely a token continues an earlier place, and what a further token of a run costs, in steps
KINDS = (0.0, 0.1), (0.5, 0.05), (0.9, 0.2), (0.97, 0.1), (0.99, 0.7), (0.8, 0.0)
OPTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0, "repetition_penalty": 1.1},
    {"temperature": 0.4},
    {"temperature": 0.3, "top_k": 2},
    {"temperature": 0.5, "no_repeat_ngram": 9},
    {"temperature": 0, "stop_tokens": [5]},
)


def cases(folder: Path) -> Iterator[Case]:
    """Texts of a graph with sums, a cache that grows and a window, which a wrong draft must leave as they were."""
    layers = LinearConfig(feature_size=5, guard=CLAMP), SoftmaxConfig(), WINDOW
    golden = seeded("drafts", replace(PLAIN, layers=layers))
    export(golden, folder / "drafts.onnx", ExportConfig(draft_check=True, top_k=2))
    made, random, texts = Eager(golden), np.random.default_rng(5), []
    for options in OPTIONS:
        for attempt in range(ATTEMPTS):
            given, prompt = {"stop_tokens": [], **options, "seed": attempt}, random.integers(3, 17, 3).tolist()
            try:
                tokens = text(made, prompt, given, (), LENGTH)
            except NearAnEdge:
                continue
            texts.append({"prompt": prompt, "max_tokens": LENGTH, "options": given, "tokens": tokens})
            break
    assert len(texts) == len(OPTIONS), "too few attempts"
    yield "sampling-drafts", "sampling", {"graph": "drafts.onnx", "draft": True, "texts": texts}


def written() -> bytes:
    """The file of given texts: each with its run times, and the runs that write it."""
    texts = []
    for number, (copied, each) in enumerate(KINDS):
        random = np.random.default_rng([7, number])
        prompt, tokens = _repetitive(random, copied)
        times = [round(1 + each * n, 6) for n in range(MOST_CHECKED)]
        texts.append({"prompt": prompt, "tokens": tokens, "times": times, "runs": runs(prompt, tokens, times)})
    lines = ",\n".join(json.dumps(one) for one in texts)
    return f"[\n{lines}\n]\n".encode()


def _repetitive(random: np.random.Generator, copied: float) -> tuple[list[int], list[int]]:
    """A prompt and the text after it: each token continues an earlier place with this probability, or is any."""
    text, at = random.integers(0, 40, 60).tolist(), 0
    for _ in range(260):
        if random.random() < copied:
            text.append(text[at])
            at += 1
        else:
            text.append(int(random.integers(0, 40)))
            at = int(random.integers(0, len(text)))
    return text[:60], text[60:]


def runs(prompt: Sequence[int], tokens: Sequence[int], times: Sequence[float]) -> list[list[Any]]:
    """The runs that write a text: each the number of chosen tokens that it reads, the draft tokens after them, how many
    tokens its states include, and how many draft tokens were right."""
    told: Any = _Told(times)
    request: Any = None  # which Lookup does not read
    found, rights = list[list[Any]](), list[int]()
    pace = Pace(told.run_times)
    with mock.patch.object(speculation, "time", SimpleNamespace(perf_counter=lambda: told.now)):
        ahead = speculation.Ahead(told, request, Lookup(), prompt, pace, lambda _, right: rights.append(right))
        for place, token in enumerate(tokens):
            before = told.runs
            ahead.logits(len(tokens) - place, 0)
            if told.runs > before:
                found.append([len(ahead._waiting), list(ahead._guesses), told.kept])
            ahead.chose(token)
        ahead._settle()
    right = iter(rights)
    return [[*run, next(right) if run[1] else 0] for run in found]


class _Told:
    """A decoder whose texts are known: counts its runs, whose times are given by their number of tokens."""

    signature = SimpleNamespace(reach=None, top_k=None)

    def __init__(self, times: Sequence[float]) -> None:
        self.run_times, self._times = Times(), times
        self.now, self.runs, self.kept = 0.0, 0, 0

    def _read(self, ids: Any, wanted: object) -> list[np.ndarray]:
        return [self._check(ids, ids.array.size, wanted)[0][:, -1]]

    def _check(self, ids: Any, keep: int, wanted: object) -> list[np.ndarray]:
        self.now, self.runs, self.kept = self.now + self._times[ids.array.size - 1], self.runs + 1, keep
        return [np.zeros((1, ids.array.size, 1))]

    def _uncheck(self, read: int) -> None:
        pass
