"""`t2r translate`: one output line per input line."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import small
from cli_models import LETTERS, Output, letter_tokenizer, run
from runtime import graphs, translators
from runtime.test_tokenizer import pieces
from t2r_export.checkpoints import checkpoint
from t2r_export.config.plain import to_plain
from t2r_export.lab.config.merged import MergeConfig
from t2r_runtime import Beam, Tokenizer, Translator

LINES = ["bad", "", "a", "  ", "", "lid fed", "cab", ""]
READ = [line for line in LINES if line.strip()]
Type = Callable[[str | bytes], None]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Type:
    """Sets the content of stdin."""

    def put(text: str | bytes) -> None:
        raw = text if isinstance(text, bytes) else text.encode()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))

    return put


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translator from the letters a … m to all of them."""
    texts = {"tokenizer": letter_tokenizer(), "source_tokenizer": letter_tokenizer(LETTERS[: translators.SOURCE])}
    return translators.save(tmp_path_factory.mktemp("translate") / "t", 1, **texts)


def best(graph: Path, beam: Beam) -> list[Any]:
    translator = Translator(graph, threads=1)
    tokenizer = Tokenizer.of_source(translator.signature)
    return list(translator.translate(map(tokenizer.encode, READ), beam))


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_per_input_line(graph: Path, batch: int, end: str, typed: Type, capsys: Output) -> None:
    beam = Beam(4, 0.6, max_tokens=9)
    texts = iter("".join(LETTERS[token] for token in one.tokens) for (one,) in best(graph, beam))
    expected = [next(texts) if line in READ else "" for line in LINES]
    typed(end.join([*LINES, ""]))
    out, err = run(capsys, "translate", graph, "--length-penalty", 0.6, "--max-tokens", 9, "--rows", batch)
    assert out.split("\n") == [*expected, ""]
    cut = [one for (one,) in best(graph, beam) if len(one.tokens) == 9]
    assert err.count("was cut at 9 tokens\n") == len(cut)
    typed("\n".join(LINES[:-1]))  # the last line has no newline
    assert run(capsys, "translate", graph, "--length-penalty", 0.6, "--max-tokens", 9)[0].split("\n") == expected


def test_n_best(graph: Path, typed: Type, capsys: Output) -> None:
    found = best(graph, Beam(4, n_best=3, max_tokens=9))
    typed("\n".join(LINES))
    out, _ = run(capsys, "translate", graph, "--n-best", 3, "--max-tokens", 9)
    expected = [[f"{one.score:.4f}\t{''.join(LETTERS[t] for t in one.tokens)}" for one in each] for each in found]
    filled = iter(expected)
    assert out.splitlines() == [text for line in LINES[:-1] for text in (next(filled) if line in READ else [""])]


def test_json_lines(graph: Path, typed: Type, capsys: Output) -> None:
    found = iter(best(graph, Beam(1, max_tokens=9)))
    typed("\n".join(LINES))
    out, _ = run(capsys, "translate", graph, "--beam", 1, "--max-tokens", 9, "--json")
    told = [json.loads(line) for line in out.splitlines()]
    assert [one["source"] for one in told] == LINES[:-1]
    for one in told:
        translations = next(found) if one["source"] in READ else []
        assert [each["tokens"] for each in one["translations"]] == [each.tokens for each in translations]
        assert [each["score"] for each in one["translations"]] == pytest.approx([each.score for each in translations])
        for each in one["translations"]:
            assert each["text"] == "".join(LETTERS[token] for token in each["tokens"])


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translator whose sources have full stops, spaces and capitals."""
    texts = {"tokenizer": letter_tokenizer(), "source_tokenizer": letter_tokenizer("abcdefghi.AB ")}
    return translators.save(tmp_path_factory.mktemp("reader") / "t", 1, **texts)


def translated(graph: Path, *sources: str) -> list[Any]:
    translator = Translator(graph, threads=1)
    tokenizer = Tokenizer.of_source(translator.signature)
    return [one for (one,) in translator.translate(map(tokenizer.encode, sources), Beam(4, max_tokens=9))]


@pytest.mark.parametrize("batch", [1, 5])
def test_line_split_into_sentences(reader: Path, batch: int, typed: Type, capsys: Output) -> None:
    typed("bad. Abc. A\n\nBed\n")
    first = translated(reader, "bad.", "Abc.", "A")
    expected = [" ".join("".join(LETTERS[t] for t in one.tokens) for one in first), ""]
    expected.append("".join(LETTERS[t] for one in translated(reader, "Bed") for t in one.tokens))
    out, _ = run(capsys, "translate", reader, "--max-tokens", 9, "--rows", batch)
    assert out.splitlines() == expected


def test_no_split(reader: Path, typed: Type, capsys: Output) -> None:
    (whole,) = translated(reader, "bad. Abc.")
    for options in (["--no-split"], ["--n-best", 2]):
        typed("bad. Abc.\n")
        out, _ = run(capsys, "translate", reader, "--max-tokens", 9, "--json", *options)
        assert json.loads(out)["translations"][0]["tokens"] == whole.tokens


def test_sentences_of_a_line_have_one_score(reader: Path, typed: Type, capsys: Output) -> None:
    typed("bad. Abc.\n")
    out, _ = run(capsys, "translate", reader, "--max-tokens", 9, "--json")
    (told,) = json.loads(out)["translations"]
    found = translated(reader, "bad.", "Abc.")
    counts = [len(one.tokens) for one in found]

    assert told["tokens"] == [token for one in found for token in one.tokens]
    assert told["score"] == pytest.approx(
        sum(n * one.score for n, one in zip(counts, found, strict=True)) / sum(counts)
    )


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A translator with digits in its source vocabulary only."""
    texts = {"tokenizer": letter_tokenizer(), "source_tokenizer": letter_tokenizer("abcdefg 123AB")}
    return translators.save(tmp_path_factory.mktemp("counter") / "t", 1, **texts)


def test_missing_numbers_are_reported(counter: Path, typed: Type, capsys: Output) -> None:
    options = ["--max-tokens", 30, "--check-numbers"]
    typed("bad 12 A 3\n\nbad\n")
    _, err = run(capsys, "translate", counter, *options)
    lines = [line for line in err.splitlines() if "lacks" in line]
    assert lines == ["line 1: the translation lacks 12", "line 1: the translation lacks 3"]
    typed("bad 12 A 3\n\nbad\n")
    out, _ = run(capsys, "translate", counter, *options, "--json", "--n-best", 2)
    told = [json.loads(line)["translations"] for line in out.splitlines()]
    assert [[one["missing"] for one in each] for each in told] == [[["12", "3"]] * 2, [], [[], []]]
    assert not any(one["added"] for each in told for one in each)
    typed("bad 12\n")
    out, err = run(capsys, "translate", counter, "--json")
    assert "missing" not in json.loads(out)["translations"][0] and "lacks" not in err


def test_translations_with_all_numbers_are_preferred(
    tmp_path_factory: pytest.TempPathFactory, typed: Type, capsys: Output
) -> None:
    """Sentence by sentence, among the final hypotheses: those of --n-best for the sentence alone."""
    digits = letter_tokenizer("0123" + LETTERS[4:])
    texts = {"tokenizer": digits, "source_tokenizer": letter_tokenizer("0123efg.!?AB ")}
    graph = translators.save(tmp_path_factory.mktemp("digits") / "t", 1, **texts)
    sentences, options = [f"{left}e{right}." for left in range(4) for right in range(4)], ["--max-tokens", 7, "--json"]

    def told(text: str, *more: object) -> list[list[dict[str, Any]]]:
        typed(text)
        out, _ = run(capsys, "translate", graph, *options, *more)
        return [json.loads(line)["translations"] for line in out.splitlines()]

    options.append("--no-copy")
    each = told("\n".join(sentences), "--n-best", 4, "--check-numbers")
    plain = told("\n".join(sentences), "--n-best", 4)
    for preferred, found in zip(each, plain, strict=True):
        differing = {one["text"]: len(one.pop("missing")) + len(one.pop("added")) for one in preferred}
        assert preferred == sorted(found, key=lambda one: differing[one["text"]])
    changed = [one[0] != other[0] for one, other in zip(each, plain, strict=True)]
    assert any(changed) and not all(changed)
    lines = [" ".join(sentences[first : first + 3]) for first in (0, 3, 6, 9)]
    whole = [one[0]["text"] for one in told("\n".join(lines), "--check-numbers")]
    assert whole == [" ".join(one[0]["text"] for one in each[first : first + 3]) for first in (0, 3, 6, 9)]


def test_numbers_are_copied(tmp_path: Path, typed: Type, capsys: Output) -> None:
    digits = letter_tokenizer(LETTERS[:6] + "0123" + LETTERS[10:])
    graph = translators.save(tmp_path / "t", 1, tokenizer=digits, source_tokenizer=letter_tokenizer("0123efg.!?AB "))
    lines = [f"e{left}g e{right}{left}" for left in range(4) for right in range(4)]

    def differing(*options: object) -> int:
        typed("\n".join(lines))
        out, _ = run(capsys, "translate", graph, "--json", "--check-numbers", "--max-tokens", 12, *options)
        found = [json.loads(line)["translations"][0] for line in out.splitlines()]
        return sum(len(one["missing"]) + len(one["added"]) for one in found)

    assert differing() < differing("--no-copy")


def test_translation_cut_or_repeating_noted(
    reader: Path, typed: Type, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    from t2r_runtime import Translation

    found = {1: [5, 6, 2], 2: [3] * 14 + [2], 3: [4, 5, 6] * 10}

    def translate(self: Translator, sources: Any, beam: Beam, batch: int) -> Any:
        return ([Translation(found[number], -1.0)] for number, _ in enumerate(sources, 1))

    monkeypatch.setattr(Translator, "translate", translate)
    monkeypatch.setattr("t2r_runtime.translate.search.Rules.__init__", lambda self, *_: setattr(self, "max_tokens", 30))
    typed("Bad\nAdd\nBed\n")
    out, err = run(capsys, "translate", reader, "--json")
    told = [json.loads(line)["translations"][0] for line in out.splitlines()]
    assert [(one["cut"], one["repeats"]) for one in told] == [(False, False), (False, True), (True, True)]
    assert err.splitlines() == [
        "line 2: the translation repeats itself",
        "line 3: the translation was cut at 30 tokens",
        "line 3: the translation repeats itself",
    ]


def test_empty_lines_written_at_once(graph: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    """A program that writes any line, then waits, gets its answer."""

    class Typing:
        def __init__(self) -> None:
            self.count = 0

        @property
        def buffer(self) -> Any:
            return self

        def readline(self) -> bytes:
            if self.count == len(LINES):
                return b""
            assert capsys.readouterr().out.count("\n") == min(self.count, 1)
            self.count += 1
            return f"{LINES[self.count - 1]}\n".encode()

    monkeypatch.setattr("sys.stdin", Typing())
    run(capsys, "translate", graph, "--max-tokens", 5)


REFUSED: list[tuple[str | bytes, list[object], str]] = [
    (
        "bad\nabcdefghijklm\n",
        [],
        "expected a source of at most 12 tokens; received 13 in line 2; split it into sentences",
    ),
    (
        "bad\nxyz\n",
        [],
        "expected a text; received an empty one in line 2; pass some text: this model has no BOS token",
    ),
    (
        b"bad\n\xff\n",
        [],
        "expected text in UTF-8 in line 2 of stdin; received the byte 0xff at offset 4; convert it to",
    ),
    ("bad\n", ["--beam", 30], "expected a beam of at most the vocabulary, 29; received 30; choose another value"),
]


@pytest.mark.parametrize("text, options, message", REFUSED, ids=lambda value: str(value)[:20])
def test_invalid_arguments(
    text: str | bytes, options: list[object], message: str, graph: Path, typed: Type, capsys: Output
) -> None:
    typed(text)
    _, err = run(capsys, "translate", graph, "--max-tokens", 5, *options, code=2)
    assert err.startswith(f"t2r: {message}")
    assert err.count("\n") == 1


def test_wrong_verb_for_model(graph: Path, typed: Type, tmp_path: Path, capsys: Output) -> None:
    typed("bad\n")
    message = "t2r: expected the graph of a decoder; received a translator's; use translate\n"
    assert run(capsys, "generate", graph, "--prompt", "bad", code=2) == ("", message)
    assert run(capsys, "chat", graph, code=2) == ("", message)
    alone = graphs.save(tmp_path / "g.onnx", tokenizer=pieces())
    message = "t2r: expected a translator; received the graph of a decoder; use Decoder, or t2r-run generate\n"
    assert run(capsys, "translate", alone, code=2) == ("", message)
    message = "t2r: expected a graph with a tokenizer; received one without; pass token ids, or export with a"
    assert run(capsys, "translate", translators.save(tmp_path / "t"), code=2)[1].startswith(message)


def test_inspect_merged_layers(tmp_path: Path, capsys: Output) -> None:
    model, out = tmp_path / "t.pt", tmp_path / "m.pt"
    checkpoint.save(model, small.model("translator_softmax"), None, {})
    said, _ = run(capsys, "convert", model, out, "--mixer", "linear:feature_size=3", "--cross", "merged:shared=true")
    assert said.startswith(f"{out}: 2 of 2 layers converted to linear")
    made = checkpoint.load(out)
    assert [[part.kind for part in layer.mixers] for layer in made.config.layers] == [["merged"]] * 2
    assert made.provenance["convert"]["cross"] == to_plain(MergeConfig(shared=True))
    _, error = run(capsys, "convert", model, out, "--cross", "merged:feed_forward=true", "--force", code=2)
    assert "expected softmax in merged layers with the feed-forward inside; received linear; choose it, or" in error
