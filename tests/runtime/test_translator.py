"""Translations equal transformers' `generate`, alone and batched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from runtime import translators
from runtime.conftest import OpenTranslator as Open
from runtime.transformers_twin import assert_same, generated
from runtime.translators import Eager
from t2r_runtime import Beam, Translator
from t2r_runtime.contract.signature import LOG_SUM
from t2r_runtime.session.states import LOGITS_ALONE, TOP_LOG, States
from t2r_runtime.translate.sentences import _filled

LONGEST = 14  # tokens per translation
SOURCES = [
    [int(token) for token in np.random.default_rng(n).integers(0, translators.SOURCE, 1 + n * 5 % 9)] for n in range(7)
]


def beam(width: int, **options: Any) -> Beam:
    return Beam(**{"width": width, "n_best": width, "max_tokens": LONGEST, **options})


@pytest.mark.parametrize("top_k", [None, 17], ids=["all logits", "the largest"])
@pytest.mark.parametrize("length_penalty", [0.6, 1.0])
@pytest.mark.parametrize("width", [1, 4, 8])
@pytest.mark.parametrize("seed", [1, 4])
def test_n_best_match_transformers(
    seed: int, width: int, length_penalty: float, top_k: int | None, translator: Open
) -> None:
    rules = beam(width, length_penalty=length_penalty)
    expected = generated(Eager(seed), SOURCES, rules, LONGEST)
    assert {len(one.tokens) for best in expected for one in best} > {LONGEST}, "some end by themselves"
    opened = translator(seed, top_k=top_k)
    for batch in (1, 3, 16):
        assert_same(list(opened.translate(SOURCES, rules, batch)), expected)


def test_log_sum_output(translator: Open) -> None:
    states = States(translator(top_k=17)._graph, 3)
    states.reset()
    for token in range(3):
        logits, log_sum = (array.copy() for array in states.step(np.full(3, token), (*LOGITS_ALONE, LOG_SUM)))
        np.testing.assert_allclose(log_sum, np.log(np.exp(logits.astype(np.float64)).sum(axis=1)), atol=1e-5)


OPTIONS: list[dict[str, Any]] = [
    {"early_stopping": True},
    {"early_stopping": "never"},
    {"early_stopping": "never", "length_penalty": -0.5},
    {"length_penalty": 0.0},
    {"length_penalty": 2.0},
    {"forced_end": False},
    {"min_tokens": 5},
    {"min_tokens": LONGEST},
    {"no_repeat_ngram": 1},
    {"no_repeat_ngram": 2},
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.6, "no_repeat_ngram": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("cache", [False, True])
def test_penalties_match_transformers(options: dict[str, Any], width: int, cache: bool, translator: Open) -> None:
    rules = beam(width, **options)
    for seed in (1, 4):
        expected = generated(Eager(seed, cache), SOURCES, rules, LONGEST)
        for top_k in (None, 16):
            assert_same(list(translator(seed, cache, top_k=top_k).translate(SOURCES, rules, 4)), expected)


@pytest.mark.parametrize("width", [1, 2, 5])
def test_several_ends(width: int, translator: Open) -> None:
    ends = (9, 2, 11, 5)
    expected = generated(Eager(2, ends=ends), SOURCES, beam(width), LONGEST)
    assert len({one.tokens[-1] for best in expected for one in best}) > 1
    for top_k in (None, 26):
        opened = translator(2, eos_tokens=ends, top_k=top_k)
        assert_same(list(opened.translate(SOURCES, beam(width), 3)), expected)


def test_sources_consumed_lazily(translator: Open) -> None:
    """A translation is returned once it and all before it are done; no source is read before there is room."""
    taken: list[int] = []

    def sources() -> Iterator[list[int]]:
        for number, source in enumerate(SOURCES):
            taken.append(number)
            yield source

    opened, rules = translator(1), beam(4)
    expected = list(opened.translate(SOURCES, rules))
    found = opened.translate(sources(), rules, batch=1)
    assert taken == []
    for number, best in enumerate(expected):
        assert_same([next(found)], [best])
        assert taken == list(range(number + 1))
    assert list(opened.translate([], rules)) == []


def test_reorder_keeps_sources(translator: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """While no sentence enters or leaves, source states are not copied; nothing is copied if all rows stay."""
    calls: list[str] = []
    for name in ("take", "reorder"):
        right = getattr(States, name)
        monkeypatch.setattr(
            States, name, lambda self, *given, right=right, name=name: calls.append(name) or right(self, *given)
        )
    rules = beam(4, min_tokens=LONGEST)
    list(translator(1).translate(SOURCES[:3], rules))
    assert calls[0] == "take" and set(calls[1:]) == {"reorder"} and len(calls) <= LONGEST
    calls.clear()
    list(translator(1).translate(SOURCES[:3], beam(1, min_tokens=LONGEST)))
    assert calls == []


def test_sentences_that_leave_need_no_memory(translator: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last rows move to the places of those that leave."""
    made: list[int] = []
    right, keep, kept = States.__init__, States.keep, list[int]()
    monkeypatch.setattr(States, "__init__", lambda self, graph, batch: made.append(batch) or right(self, graph, batch))

    def noted(self: States, rows: Any, sources: Any) -> None:
        memory = self._buffers[0]["source_k"].numpy().ctypes.data
        keep(self, rows, sources)
        assert self._buffers[0]["source_k"].numpy().ctypes.data == memory
        kept.append(len(rows))

    monkeypatch.setattr(States, "keep", noted)
    opened = translator(1)
    made.clear()
    list(opened.translate(SOURCES, beam(3)))
    assert made == [len(SOURCES), 3 * len(SOURCES)] and len(kept) > 2
    assert kept == sorted(kept, reverse=True) and all(rows % 3 == 0 for rows in kept)


@pytest.mark.parametrize(
    "ended, places",
    [
        ([False, False], [0, 1]),
        ([True, False, False], [2, 1]),
        ([True, False, True, False], [3, 1]),
        ([False, True, True], [0]),
        ([True, True, False, False, False], [4, 3, 2]),
        ([True], []),
    ],
)
def test_last_sentences_fill_the_gaps(ended: list[bool], places: list[int]) -> None:
    assert _filled(ended) == places


def test_equal_source_lengths_reuse_buffers(translator: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = translator(1)
    bound: list[str] = []
    right = States._replace
    monkeypatch.setattr(
        States, "_replace", lambda self, spec, buffer: bound.append(spec.name) or right(self, spec, buffer)
    )
    list(opened.translate(SOURCES[:1] * 5, beam(4), batch=1))
    constant = [spec.name for spec in opened.signature.constant]
    assert sorted(bound) == sorted(constant * 2)  # the states of the entering row and of the four that continue


def test_beam_uses_top_k_outputs(translator: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[str, ...]] = []
    right = States.step
    monkeypatch.setattr(States, "step", lambda self, ids, wanted: read.append(wanted) or right(self, ids, wanted))
    for top_k, options, wanted in (
        (9, {}, TOP_LOG),  # 2 x 4 and one banned token
        (8, {}, LOGITS_ALONE),
        (9, {"min_tokens": 1}, LOGITS_ALONE),  # the end token may be one of them
        (10, {"min_tokens": 1}, TOP_LOG),
        (9, {"no_repeat_ngram": 2}, LOGITS_ALONE),
        (None, {}, LOGITS_ALONE),
    ):
        read.clear()
        list(translator(1, top_k=top_k).translate(SOURCES[:2], beam(4, **options)))
        assert set(read) == {wanted}


# each of these faults must be detected

FAULTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {}


def fault(function: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
    FAULTS[function.__name__] = function
    return function


@fault
def sources_of_two_rows_exchanged(patch: pytest.MonkeyPatch) -> None:
    right = Translator.encode

    def exchanged(self: Translator, sources: Any) -> dict[str, Any]:
        states = right(self, sources)
        for name in ("source_k", "source_length", "source_m"):
            states[name][[0, 1]] = states[name][[1, 0]]
        return states

    patch.setattr(Translator, "encode", exchanged)


@fault
def a_start_state_left_at_zero(patch: pytest.MonkeyPatch) -> None:
    right = Translator.encode
    patch.setattr(Translator, "encode", lambda self, sources: (s := right(self, sources)) | {"h": 0 * s["h"]})


@fault
def states_that_are_not_reordered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(States, "reorder", lambda self, rows: None)


@fault
def sources_that_stay_behind(patch: pytest.MonkeyPatch) -> None:
    """A sentence leaves, but the sources of the others do not move to its place."""
    right = States.keep
    patch.setattr(States, "keep", lambda self, rows, sources: right(self, rows, np.arange(len(rows))))


@fault
def hypotheses_that_stay_behind(patch: pytest.MonkeyPatch) -> None:
    right = States.keep
    patch.setattr(States, "keep", lambda self, rows, sources: right(self, sources, sources))


@fault
def sources_of_entering_ones_exchanged(patch: pytest.MonkeyPatch) -> None:
    right = States._take_sources

    def exchanged(self: States, parts: Any, source: int | None) -> None:
        right(self, [(values, np.arange(len(rows))) for values, rows in parts], source)

    patch.setattr(States, "_take_sources", exchanged)


@pytest.mark.parametrize("name", FAULTS)
def test_detects_fault(name: str, translator: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, rules = translator(1), beam(4)
    expected = generated(Eager(1), SOURCES, rules, LONGEST)
    assert_same(list(opened.translate(SOURCES, rules)), expected)
    FAULTS[name](monkeypatch)
    with pytest.raises(AssertionError):
        assert_same(list(opened.translate(SOURCES, rules)), expected)
