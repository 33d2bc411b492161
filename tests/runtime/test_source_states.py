"""Encoder outputs: states that no step changes, whose length depends on the source."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from runtime import graphs, translators
from runtime.conftest import OpenTranslator as Open
from runtime.test_tokenizer import pieces
from runtime.translators import BANNED, START, Eager
from t2r_runtime import Batch, Beam, Decoder, Sampling, Translator, UserError

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
GREEDY = Sampling(temperature=0)
SOURCES = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]


@pytest.mark.parametrize("cache", [False, True])
def test_steps_match_numpy(cache: bool, translator: Open) -> None:
    """Steps for sources of different lengths, batched and alone."""
    eager = Eager(cache=cache)
    states = eager.encode(*translators.padded(SOURCES))
    opened = translator(cache=cache)
    for name, state in opened.encode(SOURCES).items():
        assert state.dtype == states[name].dtype
        np.testing.assert_allclose(state, states[name], **CLOSE)
    together, each = opened.start(SOURCES), [opened.start([source]) for source in SOURCES]
    for column in np.random.default_rng(3).integers(0, translators.TARGET, (6, 3)):
        logits, states = eager.step(states, column)
        np.testing.assert_allclose(together.step(column), logits, **CLOSE)
        for row, alone in enumerate(each):
            np.testing.assert_allclose(alone.step(column[row]), logits[row : row + 1], **CLOSE)


def test_decoder_sources_of_any_length(translator: Open) -> None:
    opened = translator()
    decoder = opened.start(SOURCES[:1])
    for source in (*SOURCES, SOURCES[0]):
        decoder.set_state(opened.encode([source]))
        np.testing.assert_array_equal(decoder.prefill(START), opened.start([source]).prefill(START))
    decoder.reset()
    assert decoder.state()["source_k"].shape == (1, 1, translators.D)
    assert not decoder.state()["source_k"].any()


@pytest.mark.parametrize("rows", [[2, 0, 1], [1, 1], [2], [0, 2, 1, 1]])
@pytest.mark.parametrize("cache", [False, True])
def test_take_rows_with_sources(rows: list[int], cache: bool, translator: Open) -> None:
    decoder = translator(cache=cache).start(SOURCES)
    decoder.step([1, 2, 3])  # the states are now in the second buffers
    expected = decoder.fork()
    expected.set_state({name: state[rows] for name, state in decoder.state().items()})
    decoder.reorder(rows)
    for _ in range(3):
        ids = np.arange(len(rows))
        np.testing.assert_array_equal(decoder.step(ids), expected.step(ids))


def test_decoders_of_sources_of_different_lengths(translator: Open) -> None:
    """They are padded to a batch, and each continues as it would alone."""
    each = [translator().start([source]) for source in SOURCES]
    for place, decoder in enumerate(each):
        decoder.prefill([5] * (place + 1))
    both = each[0].fork()
    both.take([(each[2], [0]), (each[1], [0, 0]), (each[0], [0])])
    assert both.state()["source_k"].shape == (4, 5, translators.D)
    assert both.state()["source_length"].tolist() == [1, 5, 5, 3]
    for token in (4, 7):
        logits = both.step([token] * 4)
        for row, place in enumerate((2, 1, 1, 0)):
            if row != 2:
                np.testing.assert_allclose(logits[row : row + 1], each[place].step(token), **CLOSE)


@pytest.mark.parametrize("cache", [False, True])
def test_snapshots_hold_the_source(cache: bool, translator: Open, tmp_path: Path) -> None:
    decoder = translator(cache=cache).start(SOURCES[:2])
    decoder.prefill([START, START])
    decoder.save_state(tmp_path / "s.npz", 5)
    other = translator(cache=cache).start([[1] * 9])
    assert other.load_state(tmp_path / "s.npz") == 5
    for name, state in decoder.state().items():
        np.testing.assert_array_equal(other.state()[name], state)
    np.testing.assert_array_equal(other.step([5, 6]), decoder.step([5, 6]))


def test_texts_of_a_batch(translator: Open) -> None:
    """Sampled and greedy, with sources that come and go; no banned token is chosen."""
    opened = translator(4, banned_tokens=(0, 6, 9))
    rules = [GREEDY, Sampling(seed=3, stop_tokens=()), Sampling(top_k=5, seed=4, stop_tokens=())]
    expected = [opened.generate(source, 9, rule) for source, rule in zip(SOURCES, rules, strict=True)]
    assert [list(opened.stream(*one)) for one in zip(SOURCES, [9] * 3, rules, strict=True)] == expected
    assert not {0, 6, 9} & {token for text in expected for token in text}
    batch = Batch(opened.start(SOURCES[:1]))
    written: dict[int, list[int]] = {handle: [] for handle in range(3)}
    for source, rule in zip(SOURCES, rules, strict=True):
        batch.add(START, 9, rule, opened.encode([source]))
        for handle, token in batch.step().items():
            written[handle].append(token)
    while batch.sequences:
        for handle, token in batch.step().items():
            written[handle].append(token)
    assert list(written.values()) == expected


@pytest.mark.parametrize("top_k", [None, 1, 2, 4, 9])
def test_banned_tokens_are_never_chosen(top_k: int | None, translator: Open) -> None:
    """With and without top-k outputs, which may all be banned."""
    free = translator(4, banned_tokens=()).generate(SOURCES[1], 6, GREEDY)
    banned = tuple(sorted({*free[:2], *BANNED}))
    for sampling in (GREEDY, Sampling(top_k=3, seed=1)):
        expected = translator(4, banned_tokens=banned).generate(SOURCES[1], 6, sampling)
        assert not {*expected} & {*banned}
        assert translator(4, banned_tokens=banned, top_k=top_k).generate(SOURCES[1], 6, sampling) == expected


def refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}") as caught:
        call()
    assert str(caught.value).isprintable()


def test_batch_memory_limit(translator: Open, tmp_path: Path) -> None:
    opened = Translator(translators.save(tmp_path / "t", max_source=None), threads=1, max_state_bytes=2000)
    opened.encode([[1] * 100])
    refused(lambda: opened.encode([[1] * 1000]), "expected states of at most 16000 bytes; received 28")
    decoder = opened.start([[1, 2]])
    states = {**decoder.state(), "source_k": np.zeros((1, 1000, translators.D), np.float32)}
    refused(lambda: decoder.set_state(states), "expected states of at most 16000 bytes; received 28")
    assert decoder.state()["source_k"].shape == (1, 2, translators.D)
    refused(lambda: opened.translate([], Beam(width=4), batch=64), "expected states of at most 16000 bytes; received 5")


@pytest.mark.parametrize(
    "name, shape", [("source_k", (2, 0, 7)), ("source_k", (2, 3, 8)), ("source_k", (1, 3, 7)), ("source_m", (2, 3))]
)
def test_set_state_wrong_source_shapes(name: str, shape: tuple[int, ...], translator: Open) -> None:
    decoder = translator().start(SOURCES[:2])
    states = {**decoder.state(), name: np.zeros(shape, np.float32)}
    refused(
        lambda: decoder.set_state(states), "expected the states of this graph, with equal batch sizes, cache lengths"
    )


SOURCES_REFUSED: list[tuple[Any, str]] = [
    ([], "expected at least one source; received none; pass some"),
    (None, "expected sources as a list; received None"),
    ("ab", "expected sources as a list; received 'ab'"),
    ([[]], "expected a source of at least one token, integers (M,); received []; encode it"),
    ([3], "expected a source of at least one token, integers (M,); received 3; encode it"),
    ([["a"]], "expected a source of at least one token, integers (M,); received ['a']; encode it"),
    ([[1], [1.5]], "expected a source of at least one token, integers (M,); received [1.5]; encode it"),
    ([[1, 13]], "expected tokens of a source in 0 … 12; received 1 … 13; use the source's tokenizer"),
    ([[-1]], "expected tokens of a source in 0 … 12; received -1; use the source's tokenizer"),
    ([[1] * 13], "expected a source of at most 12 tokens; received 13; split it into sentences"),
]


@pytest.mark.parametrize("sources, message", SOURCES_REFUSED, ids=lambda value: str(value)[:30])
def test_invalid_sources(sources: Any, message: str, translator: Open) -> None:
    refused(lambda: translator().encode(sources), message)


BEAMS: list[tuple[dict[str, Any], str]] = [
    ({"width": 0}, "expected width of at least 1; received 0; choose another value"),
    ({"width": True}, "expected width of at least 1; received True"),
    ({"width": 2, "n_best": 3}, "expected n_best of at most the width, 2; received 3"),
    ({"max_tokens": 0}, "expected max_tokens of at least 1; received 0"),
    ({"min_tokens": -1}, "expected min_tokens of at least 0; received -1"),
    ({"length_penalty": float("nan")}, "expected a length_penalty from -10.0 to 10.0; received nan"),
    ({"length_penalty": 11}, "expected a length_penalty from -10.0 to 10.0; received 11"),
    ({"early_stopping": "always"}, "expected early_stopping True, False or \"never\"; received 'always'"),
    ({"early_stopping": 1}, 'expected early_stopping True, False or "never"; received 1'),
    ({"forced_end": 1}, "expected forced_end True or False; received 1"),
    ({"repetition_penalty": 0}, "expected a repetition_penalty from 0.01 to 100 (1 is none); received 0"),
    ({"no_repeat_ngram": 65}, "expected no_repeat_ngram from 0 (no limit) to 64; received 65"),
]


@pytest.mark.parametrize("options, message", BEAMS, ids=lambda value: str(value)[:40])
def test_invalid_beams(options: dict[str, Any], message: str) -> None:
    refused(lambda: Beam(**options), message)


def test_invalid_arguments_before_encoding(translator: Open) -> None:
    opened, sources = translator(), iter(SOURCES)
    for call, message in (
        (
            lambda: opened.translate(sources, Beam(width=30)),
            "expected a beam of at most the vocabulary, 29; received 30",
        ),
        (lambda: opened.translate(sources, None), "expected a Beam; received NoneType None"),
        (lambda: opened.translate(sources, batch=0), "expected a batch of at least 1; received 0"),
        (lambda: opened.translate("text"), "expected sources that can be iterated; received 'text'"),
        (
            lambda: translator(states=translators.signature().states, max_positions=9).translate(
                sources, Beam(max_tokens=10)
            ),
            "expected max_tokens of at most 9: this model's positions end at 9; received 10; request fewer, or export",
        ),
    ):
        refused(call, message)  # type: ignore[arg-type]
    assert list(sources) == SOURCES


def test_positions_refuse(translator: Open) -> None:
    """Translations end at the last position, without an error."""
    best = list(translator(max_positions=9).translate(SOURCES, Beam(width=3)))
    assert {len(one.tokens) for (one,) in best} == {9}
    assert max(len(one.tokens) for (one,) in translator().translate(SOURCES, Beam(width=3))) > 9


def test_graph_without_source(tmp_path: Path) -> None:
    path = graphs.save(tmp_path / "g.onnx")
    message = "expected a translator; received the graph of a decoder; use Decoder, or t2r-run generate"
    refused(lambda: Translator(path), message)
    path = graphs.save(tmp_path / "g.onnx", "source")
    message = "expected a translator's step graph, which names its encoder; received none; export the model again"
    refused(lambda: Translator(path), message)


def test_a_missing_encoder(tmp_path: Path) -> None:
    path = translators.save(tmp_path / "t")
    (tmp_path / "t" / "encoder.onnx").unlink()
    for kind in (Translator, Decoder):
        message = "expected the encoder graph encoder.onnx beside step.onnx; received none; copy the companions too"
        refused(lambda kind=kind: kind(path), message)  # type: ignore[misc]
    Decoder(path, companions=())


def test_an_encoder_of_another_checkpoint(tmp_path: Path) -> None:
    def edit(encoder: onnx.ModelProto) -> None:
        other = translators.signature(checkpoint_sha256="bad").companion("encoder")
        helper.set_model_props(encoder, other.to_metadata())

    opened = Translator(translators.save(tmp_path / "t", edit=edit), threads=1)
    message = "expected encoder.onnx to have the same model as step.onnx; received another model"
    refused(lambda: opened.encode([[1]]), message)


@pytest.mark.parametrize("top_k", [None, 20])
def test_nonfinite_logits(top_k: int | None, translator: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    right, bad = Translator.encode, np.full((1, 7), np.nan, np.float32)
    monkeypatch.setattr(Translator, "encode", lambda self, sources: right(self, sources) | {"h": bad})
    refused(
        lambda: list(translator(top_k=top_k).translate([[1]])), "expected finite logits; received NaN or infinity; "
    )


def test_graphs_of_a_fixed_batch(translator: Open) -> None:
    opened = translator(batch=1)
    expected = list(translator().translate(SOURCES, Beam(width=1, max_tokens=8), batch=1))
    assert list(opened.translate(SOURCES, Beam(width=1, max_tokens=8))) == expected
    message = (
        "expected a graph of any batch for a beam of 4; received one of 1; export it without --batch, or translate"
    )
    refused(lambda: opened.translate(SOURCES), message)


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "translation.md"
    (program,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    translators.save(tmp_path, tokenizer=pieces(), source_vocab_size=300, max_source=99).rename(tmp_path / "de-en.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Translator, "checked", lambda self, source: np.array(source) % translators.SOURCE)
    exec(program, {})
    assert len(capsys.readouterr().out.splitlines()) >= 2
