"""Benchmarks of translators: statistics, order of turns, refused input. No test asserts a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import small
from cli_models import LETTERS, letter_tokenizer
from runtime import translators
from t2r_export.config.bench import TranslationConfig
from t2r_export.providers import bench
from t2r_export.providers.bench_translators import bench_translations
from t2r_export.providers.timed import TimedTranslator
from t2r_runtime import Beam, Tokenizer, Translator
from t2r_runtime.errors import UserError

SENTENCES = ["bad", "a", "lid", "cab"]
SHORT: dict[str, Any] = {"rounds": 2, "starts": 1, "threads": 1, "beam": 3, "batch": 2}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SETTLE", 0)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translator from the letters a … m to all letters."""
    tokenizers = {"tokenizer": letter_tokenizer(), "source_tokenizer": letter_tokenizer(LETTERS[: translators.SOURCE])}
    return translators.save(tmp_path_factory.mktemp("bench") / "t", 1, **tokenizers)


class Player:
    """A Worker without a process: half a second per turn for the first that is made, a quarter for others."""

    made: list[Player] = []
    log: list[tuple[Any, ...]] = []

    def __init__(self, kind: type) -> None:
        assert kind is TimedTranslator
        self.number = len(self.made)
        self.made.append(self)

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        self.log.append((self.number, name, *arguments))
        if name == "__init__":
            self.graph = arguments[0]
        elif name == "about":
            return Translator(self.graph).signature, {"cpu": 9}
        return {"translate": (0.25 if self.number else 0.5, 40), "memory": 7_000_000}.get(name)

    def close(self) -> None:
        self.log.append((self.number, "close"))


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> type[Player]:
    monkeypatch.setattr(Player, "made", [])
    monkeypatch.setattr(Player, "log", [])
    monkeypatch.setattr(bench, "Worker", Player)
    return Player


def test_rates_ratios_and_turns(graph: Path, played: type[Player]) -> None:
    found = bench_translations([graph, graph], SENTENCES, TranslationConfig(**SHORT))
    a, b = found.graphs
    assert (a.sentences.median, b.sentences.median) == (pytest.approx(8), pytest.approx(16))
    assert (a.ratio, b.ratio) == (1.0, pytest.approx(2))
    assert (a.tokens, a.tokens_per_second, a.memory, a.placement) == (40, pytest.approx(80), 7_000_000, {"cpu": 9})
    assert (found.count, a.sentences.count) == (4, 2)
    assert a.start is not None and a.start.count == 1
    sources = Tokenizer(letter_tokenizer()).encode_documents(SENTENCES)
    asked = [call for call in played.log if call[1] == "translate"]
    assert asked[:2] == [(number, "translate", sources, Beam(3), 2) for number in (0, 1)]  # not counted
    assert [sorted(call[0] for call in asked[i : i + 2]) for i in (2, 4)] == [[0, 1]] * 2
    assert [call[2:] for call in asked[6:]] == [(sources[:1], Beam(3), 1)] * 2  # one new process each
    assert len(played.made) == 4 == len([call for call in played.log if call[1] == "close"])


def test_real_processes(graph: Path) -> None:
    said: list[str] = []
    found = bench_translations([graph], SENTENCES, TranslationConfig(**SHORT), said.append)
    (figures,) = found.graphs
    translator = Translator(graph, threads=1)
    sources = Tokenizer.of_source(translator.signature).encode_documents(SENTENCES, special_tokens=True)
    assert figures.tokens == sum(len(best.tokens) for best, *_ in translator.translate(sources, Beam(3)))
    assert figures.sentences.median > 0 and figures.memory
    assert said == ["opening", "turn 1 of 2", "turn 2 of 2", f"starting {graph}"]


def test_bad_input_is_refused(graph: Path, tmp_path: Path) -> None:
    small.graph(tmp_path / "decoder.onnx", "rotary_drop")
    with pytest.raises(UserError, match="a translator; received the graph of a decoder"):
        bench_translations([tmp_path / "decoder.onnx"], SENTENCES, TranslationConfig(**SHORT))
    with pytest.raises(UserError, match="a source of at most 12 tokens; received 20"):
        bench_translations([graph], ["a" * 20], TranslationConfig(**SHORT))
    for nothing in (([], SENTENCES), ([graph], [])):
        with pytest.raises(UserError, match="at least one graph and one sentence to measure"):
            bench_translations(*nothing)
    for count in ({"beam": 0}, {"batch": 0}, {"rounds": 0}, {"starts": -1}):
        with pytest.raises(UserError, match=f"expected {next(iter(count))} to be an integer from "):
            TranslationConfig(**count)
