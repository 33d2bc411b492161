"""Texts that share a pool's rows equal those generated alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime import graphs
from runtime.conftest import Open, OpenTranslator
from runtime.graphs import GREEDY
from runtime.test_batch import RULES, asked, assert_close
from t2r_runtime import Batch, Decoder, Sampling, UserError
from t2r_runtime.decode.pool import Pool
from t2r_runtime.decode.score import score
from t2r_runtime.decode.text import Start, Text
from t2r_runtime.session.states import States


def finished(pool: Pool, steps: int = 200) -> None:
    """Run until all texts end."""
    for _ in range(steps):
        if not pool.busy:
            return
        pool.step()
    raise AssertionError("no end")


def alone(decoder: Decoder, ids: Any, max_tokens: int, sampling: Sampling) -> list[int]:
    decoder.reset()
    return decoder.generate(ids, max_tokens, sampling)


def test_penalties_read_a_prompt_once(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of a text costs the same, however long its prompt is."""
    converted, right = list[int](), np.array

    def array(value: Any, *rest: Any, **options: Any) -> Any:
        converted.append(np.size(value))
        return right(value, *rest, **options)

    pool, prompt = Pool(opened("silent"), 2), [3, 1, 4] * 40
    [text] = pool.add(prompt, 9, [Sampling(temperature=0, repetition_penalty=1.5, stop_tokens=())])
    with monkeypatch.context() as patched:
        patched.setattr("t2r_runtime.decode.text.np.array", array)
        finished(pool)
    assert len(text.tokens) == 9
    assert sum(size for size in converted if size > 8) == len(prompt)


@settings(max_examples=60)
@given(
    requests=st.lists(asked, min_size=1, max_size=9),
    kind=st.sampled_from(["constant", "silent"]),
    capacity=st.integers(1, 4),
    chunk=st.integers(1, 4),
    pauses=st.lists(st.integers(0, 3), min_size=9, max_size=9),
)
def test_every_request_equals_itself_alone(
    opened: Open, requests: list[dict[str, Any]], kind: str, capacity: int, chunk: int, pauses: list[int]
) -> None:
    """All at once or one after the other, with few rows or many, and prompts read in chunks."""
    decoder = opened(kind)
    pool, texts = Pool(decoder, capacity, chunk), list[Text]()
    for request, pause in zip(requests, pauses, strict=False):
        seeded = [replace(request["sampling"], seed=seed) for seed in (request["sampling"].seed, 9)]
        texts += pool.add(request["ids"], request["max_tokens"], seeded)
        for _ in range(pause):
            pool.step()
            assert pool._all.batch <= capacity
    finished(pool)
    expected = [
        alone(decoder, request["ids"], request["max_tokens"], replace(request["sampling"], seed=seed))
        for request in requests
        for seed in (request["sampling"].seed, 9)
    ]
    seeds = [seed for request in requests for seed in (request["sampling"].seed, 9)]
    for text, tokens, seed in zip(texts, expected, seeds, strict=True):
        if seed is not None or text.request.sampler.sampling.temperature == 0:
            assert text.tokens == tokens
        assert text.ended in ("stop", "length")


def test_a_long_prompt_holds_nobody_up(opened: Open) -> None:
    pool = Pool(opened(), capacity=3, chunk=5)
    (going,) = pool.add([1], 60, [GREEDY])
    pool.step()
    (long,) = pool.add([3] * 101, 2, [GREEDY])
    (short,) = pool.add([4, 5], 2, [GREEDY])
    for step in range(1, 40):
        before = len(going.tokens)
        pool.step()
        assert len(going.tokens) == before + 1
        if step == 3:
            assert short.ended is not None
        if long.tokens:
            break
    assert 20 <= step <= 23, "100 tokens in chunks of 5"
    finished(pool)
    assert long.tokens == alone(opened(), [3] * 101, 2, GREEDY)


def test_first_come_first_served(opened: Open) -> None:
    pool = Pool(opened(), capacity=1)
    texts = [pool.add([n], 3, [GREEDY])[0] for n in range(5)]
    order: list[Text] = []
    while pool.busy:
        for text, _ in pool.step():
            if text not in order:
                order.append(text)
    assert order == texts


def test_free_row_is_taken_in_place(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    right = States.take
    monkeypatch.setattr(
        States, "take", lambda self, parts: moved.append(sum(len(rows) for _, rows in parts)) or right(self, parts)
    )
    pool = Pool(opened(), capacity=2, chunk=64)
    requests = [([n + 1, 2], 3 + n, GREEDY) for n in range(6)]
    texts = [pool.add(ids, count, [sampling])[0] for ids, count, sampling in requests]
    finished(pool)
    assert [text.tokens for text in texts] == [alone(opened(), *request) for request in requests]
    assert moved[0] == 2
    assert len(moved) <= 2, "at the start, and when one is left"


@pytest.mark.parametrize("steps", [0, 1, 3, 9])
def test_remove_at_any_time(steps: int, opened: Open) -> None:
    """While waiting, reading, or in a row; the others continue."""
    decoder = opened()
    pool = Pool(decoder, capacity=2, chunk=2)
    requests = [([n, 3, 1, 4, 1, 5, 9, 2, 6], 4, replace(RULES[1], seed=n)) for n in range(4)]
    texts = [pool.add(ids, count, [sampling])[0] for ids, count, sampling in requests]
    for _ in range(steps):
        pool.step()
    for text in texts[::2]:
        if text.ended is None:
            pool.remove(text)
            assert text.ended == "removed"
    finished(pool)
    for text, request in zip(texts[1::2], requests[1::2], strict=True):
        assert text.tokens == alone(decoder, *request)


def test_states_of_a_text(opened: Open) -> None:
    decoder, pool = opened(), Pool(opened(), capacity=2)
    kept: list[dict[str, Any]] = []
    (first,) = pool.add([3, 1, 4], 2, [GREEDY], on_read=lambda reader: kept.append(reader.state()))
    (other,) = pool.add([2, 7], 9, [GREEDY])
    pool.step()
    pool.step()
    assert first.ended == "length"
    for text in (first, other):
        decoder.reset()
        decoder.prefill(text.seen[:-1])
        assert_close(pool.states(text), decoder.state())
    decoder.reset()
    decoder.prefill([3, 1])
    assert_close(kept[0], decoder.state())


@pytest.mark.parametrize("chunk", [2, 3, 64])
def test_states_at_marks_of_a_prompt(chunk: int, opened: Open) -> None:
    """Two prompts in turns: each is read to its marks and its end, whatever the chunks."""
    decoder, pool, prompt = opened(), Pool(opened(), 2, chunk), [3, 1, 4, 1, 5, 9, 2, 6]
    kept: list[list[dict[str, Any]]] = [[], []]
    texts = [
        pool.add(prompt, 3, [GREEDY], on_read=lambda reader, found=found: found.append(reader.state()), marks=marks)[0]
        for found, marks in zip(kept, ([2, 5], [3]), strict=True)
    ]
    finished(pool)
    for found, counts in zip(kept, ([2, 5, 7], [3, 7]), strict=True):
        for states, count in zip(found, counts, strict=True):
            decoder.reset()
            decoder.prefill(prompt[:count])
            assert_close(states, decoder.state())
    assert [text.tokens for text in texts] == [alone(decoder, prompt, 3, GREEDY)] * 2


@pytest.mark.parametrize("rules", [GREEDY, Sampling(temperature=2, seed=3, repetition_penalty=1.5, stop_tokens=())])
def test_start_after_a_prefix(rules: Sampling, opened: Open) -> None:
    """Penalties cover the whole text, including the prefix."""
    decoder = opened("silent")
    decoder.prefill([5, 6, 5])
    start = Start(decoder.state(), 3, [5, 6, 5])
    pool = Pool(decoder, capacity=2)
    (text,) = pool.add([1, 2], 6, [rules], start)
    finished(pool)
    assert text.tokens == alone(decoder, [5, 6, 5, 1, 2], 6, rules)


@pytest.mark.parametrize(("texts", "written"), [(2, 2), (3, 4)])
def test_start_is_written_once(texts: int, written: int, opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start is written again only for a waiting text whose turn comes."""
    decoder, right = opened("silent"), Decoder.set_state
    decoder.prefill([5, 6, 5])
    start, calls = Start(decoder.state(), 3, [5, 6, 5]), list[int]()
    pool = Pool(decoder, capacity=2)
    monkeypatch.setattr(Decoder, "set_state", lambda self, *states: calls.append(1) or right(self, *states))
    going = [pool.add([n + 1], 2, [GREEDY], start)[0] for n in range(texts)]
    finished(pool)
    assert len(calls) == written
    monkeypatch.undo()
    assert [text.tokens for text in going] == [alone(decoder, [5, 6, 5, n + 1], 2, GREEDY) for n in range(texts)]


@pytest.mark.parametrize("max_tokens", [0, 2])
def test_scored_prompt(max_tokens: int, opened: Open) -> None:
    """Logits after each token of the prompt but the last, then after each chosen one."""
    decoder = opened(top_k=4)
    ids = [3, 1, 4, 1, 5]
    found: list[tuple[np.ndarray, int]] = []
    pool = Pool(decoder, capacity=2)
    watches: list[Callable[[Any, int], object]] = [lambda logits, token: found.append((logits.copy(), token))]
    (text,) = pool.add(ids, max_tokens, [GREEDY], watch=watches, scored=True)
    (other,) = pool.add([2, 2], 9, [GREEDY])
    finished(pool)
    assert [token for _, token in found] == [*ids[1:], *text.tokens]
    assert text.ended == "length"
    assert len(text.tokens) == max_tokens
    decoder.reset()
    for (logits, _), read in zip(found, [*ids, *text.tokens], strict=False):
        np.testing.assert_allclose(logits, decoder.step([read])[0], rtol=1e-5, atol=1e-5)
    assert other.tokens == alone(decoder, [2, 2], 9, GREEDY)
    log = [logits - logits.max() - np.log(np.exp(logits - logits.max()).sum()) for logits, _ in found]
    expected = score(decoder, ids)
    np.testing.assert_allclose([row[t] for row, t in zip(log, ids[1:], strict=False)], expected, rtol=1e-4)


def test_prompt_of_several_texts_is_read_once(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    right = Decoder.prefill
    pool = Pool(opened(), capacity=2, chunk=64)
    monkeypatch.setattr(Decoder, "prefill", lambda self, ids: read.append(ids.array.size) or right(self, ids))
    texts = pool.add([1, 2, 3, 4], 3, [replace(RULES[1], seed=seed) for seed in range(5)])
    finished(pool)
    assert read[0] == 3
    assert max(read[1:]) <= 2, "one token of each row"
    monkeypatch.undo()
    for seed, text in enumerate(texts):
        assert text.tokens == alone(opened(), [1, 2, 3, 4], 3, replace(RULES[1], seed=seed))


def test_max_tokens_0_reads_the_prompt(opened: Open) -> None:
    decoder, kept = opened(), list[dict[str, Any]]()
    pool = Pool(decoder)
    (text,) = pool.add([4, 2], 0, [GREEDY], on_read=lambda reader: kept.append(reader.state()))
    assert pool.step() == [(text, None)]
    assert (text.ended, text.tokens) == ("length", [])
    decoder.prefill([4, 2])
    assert_close(kept[0], decoder.state())


def test_prompt_that_fails_ends_its_texts_alone(opened: Open) -> None:
    """A table of 9 positions: nothing is generated, so reading the tenth token fails."""
    pool = Pool(opened("table"), chunk=4)
    (other,) = pool.add([1], 3, [GREEDY])
    texts = pool.add([1] * 10, 0, [GREEDY, GREEDY])
    with pytest.raises(UserError, match="max_tokens of at most 0: this model's positions end at 9"):
        pool.add([1] * 11, 0, [GREEDY])
    ended = [text for _ in range(4) for text, token in pool.step() if token is None]
    assert ended == texts
    assert [str(text.error) for text in texts] == [
        "expected at most 9 tokens, where this model's positions end; received 2 more after 8; reset, read fewer "
        "tokens, or export with --past-end clamp or wrap:N"
    ] * 2
    assert other.tokens == alone(opened("table"), [1], 3, GREEDY)


def test_rows_of_graphs_with_an_end_are_given_up(opened: Open) -> None:
    """A free row would read past the table's last position."""
    pool = Pool(opened("table"), capacity=4, chunk=1)
    long = pool.add([1], 9, [GREEDY])[0]
    for n in range(3):
        pool.add([n], 1, [GREEDY])
    pool.step()
    waiting = pool.add([1, 2, 3, 4], 6, [GREEDY])[0]
    finished(pool)
    for text, ids, count in ((long, [1], 9), (waiting, [1, 2, 3, 4], 6)):
        assert text.tokens == alone(opened("table"), ids, count, GREEDY)


def test_failed_step_changes_nothing(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(opened())
    texts = [pool.add([n], 4, [GREEDY])[0] for n in (1, 2)]
    done = pool.add([3, 4], 0, [GREEDY])[0]

    def fails(self: States, session: Any, binding: Any, options: Any = None) -> None:
        raise UserError("the graph to run a step", "a fault", "export the model again", "runtime")

    pool.read()
    with monkeypatch.context() as patched:
        patched.setattr(States, "_call", fails)
        with pytest.raises(UserError, match="received a fault"):
            pool.step()
    assert (done, None) in pool.step()
    finished(pool)
    assert [text.tokens for text in texts] == [alone(opened(), [n], 4, GREEDY) for n in (1, 2)]


def test_rows_exceed_memory(opened: Open) -> None:
    with pytest.raises(UserError, match="expected states of at most .* bytes; received .*; choose a smaller batch"):
        Pool(opened(), capacity=1 << 30)


def test_sources_of_any_length_take_a_row(translator: OpenTranslator) -> None:
    """A longer source than the ones before moves all rows."""
    opened = translator(1)
    sources: list[list[int]] = [[4, 5], [6], [7, 8, 9, 10, 3], [11, 12], [3, 3, 4]]
    decoder = opened.start([sources[0]])
    pool, batch = Pool(decoder, capacity=2), Batch(decoder)
    starts = opened.source.start_tokens
    texts = [pool.add(starts, 6, [GREEDY], Start(opened.encode([source])))[0] for source in sources]
    finished(pool)
    for text, source in zip(texts, sources, strict=True):
        assert text.tokens == opened.generate(source, 6, GREEDY)
    handle = batch.add(starts, 6, GREEDY, opened.encode([sources[2]]))
    assert [batch.step()[handle] for _ in range(6)] == texts[2].tokens


def test_fork_of_another_graph_is_refused(opened: Open) -> None:
    decoder, other = opened(), opened("silent")
    for wrong in (other, decoder.fork()):
        if wrong is not other:
            wrong.reset(batch=2)
        with pytest.raises(UserError, match="expected a fork with one row"):
            decoder.put(0, wrong)
    assert graphs.VOCABULARY == decoder.signature.vocab_size
