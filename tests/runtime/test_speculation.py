"""Drafts change nothing: tokens, position and states are those of single steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import small
from runtime.clock import set_even
from t2r_runtime import Decoder, Sampling
from t2r_runtime.decode.drafts import Lookup, Model
from t2r_runtime.decode.generate import Request
from t2r_runtime.decode.pace import Pace, Times
from t2r_runtime.decode.pool import Pool
from t2r_runtime.errors import UserError

NAMES = ("none", "rotary_after", "gated_rotary", "delta_rotary", "hybrid_gated", "lstm", "softmax")
SAMPLINGS = {
    "greedy": Sampling(0, stop_tokens=()),
    "sampled": Sampling(1, seed=3, stop_tokens=()),
    "few": Sampling(1, top_k=3, seed=4, stop_tokens=()),
    "penalties": Sampling(0.7, seed=5, stop_tokens=(), repetition_penalty=1.3, no_repeat_ngram=4),
}
PROMPT = [1, 5, 3]


class Told:
    """Drafts from a known text; a given share is right."""

    def __init__(self, text: Sequence[int], share: float) -> None:
        self._text, self._share, self._read = text, share, 0
        self._rng = np.random.default_rng(0)

    def read(self, tokens: Sequence[int]) -> None:
        self._read += len(tokens)

    def kind(self) -> object:
        return "told"

    def propose(self, most: int, request: Request) -> Sequence[int]:
        known = [*self._text[self._read : self._read + most], *[0] * most][:most]
        return [t if self._rng.random() < self._share else (t + 1) % small.VOCABULARY for t in known]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Decoder]:
    folder = tmp_path_factory.mktemp("speculation")
    decoders = {}
    for name in NAMES:
        small.graph(folder / f"{name}.onnx", name, draft_check=True, prefill=name != "lstm", top_k=3)
        decoders[name] = Decoder(folder / f"{name}.onnx", threads=1)
    return decoders


def by_steps(decoder: Decoder, count: int, sampling: Sampling) -> list[int]:
    decoder.reset(batch=1)
    return list(decoder.stream(PROMPT, count, sampling))


def assert_same_text(decoder: Decoder, count: int, sampling: Sampling, draft: object) -> None:
    expected = by_steps(decoder, count, sampling)
    states, read, position = decoder.state(), decoder.history(), decoder.position
    decoder.reset()
    assert decoder.generate(PROMPT, count, sampling, draft=draft) == expected
    np.testing.assert_array_equal(decoder.history(), read)
    assert decoder.position == position
    for name, value in decoder.state().items():
        np.testing.assert_allclose(value, states[name], rtol=1e-3, atol=2e-4, err_msg=name)


@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", NAMES)
def test_a_text_is_the_same(made: dict[str, Decoder], name: str, sampling: str, share: float) -> None:
    decoder, rules = made[name], SAMPLINGS[sampling]
    count = min(90, (decoder.signature.reach or 1000) - len(PROMPT))
    assert_same_text(decoder, count, rules, Told([*PROMPT, *by_steps(decoder, count, rules)], share))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", ["none", "hybrid_gated"])
def test_lookup_and_model(made: dict[str, Decoder], name: str, sampling: str) -> None:
    decoder = made[name]
    for draft in ("lookup", decoder.fork(), made["rotary_after"].fork()):
        assert_same_text(decoder, 120, SAMPLINGS[sampling], draft)


@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(1, 60), share=st.floats(0, 1), taken=st.integers(1, 60), stop=st.integers(0, small.VOCABULARY - 1)
)
def test_stop_at_any_token(made: dict[str, Decoder], count: int, share: float, taken: int, stop: int) -> None:
    """At the last token, a stop token, or the caller's stop: all but the last token have been read."""
    decoder, rules = made["gated_rotary"], Sampling(1, seed=7, stop_tokens=(stop,))
    expected = by_steps(decoder, count, rules)[:taken]
    text: list[int] = []

    def wanted(token: int) -> bool:
        text.append(token)
        return len(text) < taken

    decoder.reset()
    told = Told([*PROMPT, *by_steps(decoder, count, Sampling(1, seed=7, stop_tokens=()))], share)
    decoder.reset()
    assert decoder.generate(PROMPT, count, rules, wanted, told) == expected == text
    np.testing.assert_array_equal(decoder.history(), [*PROMPT, *expected[:-1]])
    reader = decoder.fork()
    reader.prefill([*PROMPT, *expected[:-1]])
    for name, value in reader.state().items():
        np.testing.assert_allclose(decoder.state()[name], value, rtol=1e-3, atol=2e-4, err_msg=name)


def test_closed_stream(made: dict[str, Decoder]) -> None:
    decoder, rules = made["none"], SAMPLINGS["greedy"]
    expected = by_steps(decoder, 40, rules)
    decoder.reset()
    stream = decoder.stream(PROMPT, 40, rules, draft=Told([*PROMPT, *expected], 1.0))
    taken = [next(stream) for _ in range(11)]
    stream.close()  # type: ignore[attr-defined]
    assert taken == expected[:11]
    np.testing.assert_array_equal(decoder.history(), [*PROMPT, *taken[:-1]])


def test_accepted_drafts_save_runs(made: dict[str, Decoder], monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, rules, runs = made["none"], SAMPLINGS["greedy"], []
    text = [*PROMPT, *by_steps(decoder, 200, rules)]
    run = decoder._states._run
    monkeypatch.setattr(decoder._states, "_run", lambda *a: (runs.append(1), run(*a))[1])
    set_even(monkeypatch, decoder)
    decoder.reset()
    decoder.generate(PROMPT, 200, rules, draft=Told(text, 1.0))
    assert len(runs) < 30


def test_the_end_of_positions(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", "learned", draft_check=True)
    decoder, rules = Decoder(tmp_path / "g.onnx", threads=1), SAMPLINGS["greedy"]
    count = small.POSITIONS - len(PROMPT) + 1
    text = [*PROMPT, *by_steps(decoder, count, rules)]
    for draft in (Told(text, 1.0), Told(text, 0.0), "lookup", decoder.fork()):
        assert_same_text(decoder, count, rules, draft)


def test_generate_continues(made: dict[str, Decoder]) -> None:
    decoder, rules = made["hybrid_gated"], Sampling(0, stop_tokens=(), no_repeat_ngram=5)
    expected = by_steps(decoder, 60, rules)
    decoder.reset()
    first = decoder.generate(PROMPT, 25, rules, draft="lookup")
    second = decoder.generate(first[-1:], 35, rules, draft="lookup")
    assert first + second == expected


def test_refusals(made: dict[str, Decoder], tmp_path: Path) -> None:
    decoder = made["none"]
    for draft in ("look", 3, decoder):
        with pytest.raises(UserError, match="draft 'lookup', or another Decoder"):
            decoder.generate([1], 3, draft=draft)
    small.graph(tmp_path / "g.onnx")
    plain = Decoder(tmp_path / "g.onnx", threads=1)
    with pytest.raises(UserError, match="a draft-check graph beside the step graph; received none"):
        plain.stream([1], 3, draft="lookup")
    small.graph(tmp_path / "other.onnx", small.with_layers(small.GPT2, small.LINEAR, vocab_size=19))
    with pytest.raises(UserError, match="a draft model of a decoder with the same 17 tokens"):
        Model(Decoder(tmp_path / "other.onnx", threads=1), decoder.signature)


def test_forks_in_other_threads_share_times() -> None:
    """Decoders of one graph share its run times, and each may have a thread."""

    class Slow(dict[int, float]):
        """A run of another thread is timed while this one reads the times."""

        def __iter__(self) -> Iterator[int]:
            for size in super().__iter__():
                yield size
                self[len(self) + 1] = 1.0

    assert Pace(Times(Slow({1: 1.0})))._steps(1, 1) > 1


def test_lookup_longest_latest_match() -> None:
    lookup = Lookup()
    request = None
    lookup.read([7, 8, 1, 2, 9, 8, 1, 3, 6, 8])
    assert lookup.kind() is None
    lookup.read([1])
    assert lookup.kind() == 2 and lookup.propose(4, request) == [3, 6, 8, 1]  # type: ignore[arg-type]
    lookup.read([2])
    assert lookup.kind() == 3 and lookup.propose(2, request) == [9, 8]  # type: ignore[arg-type]


def test_lookup_periodic_continuation() -> None:
    lookup = Lookup()
    lookup.read([4, 5, 6] * 3)
    assert lookup.propose(7, None) == [4, 5, 6, 4, 5, 6, 4]  # type: ignore[arg-type]


def paced(
    pace: Pace, kind: str, share_right: float, tokens: int, slope: float, check: float = 0.0, after: float = 0.0
) -> tuple[float, list[int]]:
    """Generate with drafts of which a given share of runs is all right and the others all wrong.

    A run takes 1 s plus `slope` s per token after the first; one of several tokens `check` s more, and the step after
    it `after` s more. Returns seconds per token and the draft lengths.
    """
    took, depths, rng, written, waiting = 0.0, [], np.random.default_rng(0), 0, 1
    count = 1
    while written < tokens:
        depths.append(pace.depth(kind, waiting))
        before, count = count, waiting + depths[-1]
        seconds = 1 + slope * (count - 1) + (check if count > 1 else after * (before > 1))
        right = depths[-1] if rng.random() < share_right else 0
        pace.times.ran(count, seconds)
        pace.judged(kind, depths[-1], right, right + 1)
        took, written, waiting = took + seconds, written + right + 1, right + 1
    return took / written, depths


COSTS = [(0.05, 0.0, 0.0), (0.3, 0.0, 0.0), (1.2, 0.0, 0.0), (0.15, 2.6, 0.0), (0.3, 0.3, 2.0)]


@pytest.mark.parametrize(("slope", "check", "after"), COSTS)
@pytest.mark.parametrize("length", [200, 1000])
def test_pace_bounded_loss(slope: float, check: float, after: float, length: int) -> None:
    took, depths = paced(Pace(Times()), "wrong", 0.0, length, slope, check, after)
    assert any(depths) and took < 1.03


@pytest.mark.parametrize(("slope", "check", "after"), COSTS)
def test_pace_of_short_texts(slope: float, check: float, after: float) -> None:
    """The allowance is that of all texts, not of each."""
    times = Times()
    assert sum(paced(Pace(times), "wrong", 0.0, 20, slope, check, after)[0] for _ in range(20)) < 20 * 1.03


def test_pace_gains_with_good_drafts() -> None:
    assert paced(Pace(Times()), "right", 1.0, 200, 0.1)[0] < 0.5
    assert paced(Pace(Times()), "mixed", 0.7, 400, 0.1)[0] < 0.85


def test_pace_finds_what_pays() -> None:
    """Checking a single guess costs more than it brings, checking many does not (a small model on a fast machine)."""
    took, depths = paced(Pace(Times()), "right", 1.0, 200, 0.15, 2.6)
    assert took < 0.6 and depths[-1] == 15


def test_pace_skips_hopeless_drafts() -> None:
    """Earlier texts have timed the runs."""
    assert not any(paced(Pace(Times({1: 1.0, 2: 2.0, 16: 16.0})), "unknown", 0.0, 200, 1.0)[1])


def test_pace_per_kind() -> None:
    pace = Pace(Times({1: 1.0}))
    for _ in range(40):
        pace.judged("wrong", 3, 0, 1)
        pace.judged("right", 3, 3, 4)
    assert pace.depth("wrong", 1) == 0 and pace.depth("right", 1) > 0


def test_pace_retries_after_rest() -> None:
    pace = Pace(Times({1: 1.0}))
    for _ in range(5):
        pace.judged("poor", 1, 0, 1)
    assert pace.depth("poor", 1) == 0
    for _ in range(150):
        pace.judged(None, 0, 0, 1)
    assert pace.depth("poor", 1) > 0


def test_pace_ignores_first_run_of_size() -> None:
    times = Times()
    for seconds in (9.0, 1.0, 1.1):
        times.ran(2, seconds)
    assert 1.0 < times.seconds[2] < 1.1


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", ["gated_rotary", "hybrid_gated", "lstm"])
def test_a_text_alone_in_a_pool(
    made: dict[str, Decoder], name: str, sampling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts for the first text, until another joins and after that ends; all tokens but the newest have been read
    where its states are asked for."""
    decoder, rules, counts = made[name], SAMPLINGS[sampling], list[tuple[int, int]]()
    set_even(monkeypatch, decoder)
    pool = Pool(decoder, 2, draft="lookup", drafted=lambda *pair: counts.append(pair))
    [text] = pool.add([5, 1, 2], 90, [rules])

    def step(count: int) -> int:
        """Number of right draft tokens."""
        counts.clear()
        for _ in range(count):
            before = len(text.tokens)
            pool.step()
            assert len(text.tokens) == before + (text.ended is None or len(text.tokens) == 90)
        return sum(right for _, right in counts)

    found = step(31)
    [other] = pool.add(PROMPT, 17, [rules])
    found += step(1)  # the runs so far are judged
    assert step(16) == 0 and counts == [] and other.ended is not None
    found += step(41)
    for more in (0, 1):
        step(more)
        states, reader = pool.states(text), decoder.fork()
        reader.prefill(text.seen[:-1])
        for state, value in reader.state().items():
            np.testing.assert_allclose(states[state], value, rtol=1e-3, atol=2e-4, err_msg=state)
    assert (text.ended, pool.busy) == ("length", False)
    assert other.tokens == by_steps(decoder, 17, rules)
    decoder.reset()
    assert text.tokens == list(decoder.stream([5, 1, 2], 90, rules))
    assert found > 9 or sampling != "greedy", "a text that repeats itself"


def test_a_pool_without_draft_check(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx")
    with pytest.raises(UserError, match="a draft-check graph beside the step graph; received none"):
        Pool(Decoder(tmp_path / "g.onnx", threads=1), draft="lookup")


def test_drafter_without_drafts(made: dict[str, Decoder]) -> None:
    class Silent(Told):
        def propose(self, most: int, request: Request) -> Sequence[int]:
            return []

    assert_same_text(made["none"], 30, SAMPLINGS["greedy"], Silent([], 1.0))


def test_pace_depth_grows_with_acceptance() -> None:
    pace = Pace(Times())
    _, depths = paced(pace, "right", 1.0, 600, 0.1)
    assert depths[:2] == [0, 0] and min(depths[2:]) > 0 and depths[-1] == 15
    assert pace.trusts("right", 15, 1)


def test_pace_trusts_by_acceptance() -> None:
    pace = Pace(Times())
    for _ in range(20):
        pace.judged("poor", 3, 0, 1)
    assert not pace.trusts("poor", 3, 5)
