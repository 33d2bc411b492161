"""/v1/translate gives the translations of `t2r-run translate`."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli_models import LETTERS, Output, letter_tokenizer
from runtime import translators
from runtime.serve.server import Server, running
from t2r_runtime.cli import main
from t2r_runtime.serve.errors import ApiError
from t2r_runtime.serve.translate import MAX_SENTENCES
from t2r_runtime.serve.translations import Request, Translations
from t2r_runtime.translate.beam import Beam
from t2r_runtime.translate.translator import MAX_SOURCE, Translator

TEXTS = ["bad", "a", "lid. cab", "fed", "abc", "k", "c. d. e. f."]


@pytest.fixture(scope="module")
def server(translator_graph: Path) -> Any:
    with running(translator_graph, "--rows", 3) as server:
        yield server


def alone(
    graph: Path, texts: list[str], capsys: Output, monkeypatch: pytest.MonkeyPatch, *options: object
) -> list[Any]:
    import io

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(texts).encode())))
    capsys.readouterr()
    assert main([str(each) for each in ("translate", graph, "--json", *options)]) == 0
    return [json.loads(line)["translations"] for line in capsys.readouterr().out.splitlines()]


def test_all_at_once_equal_each_alone(
    server: Server, translator_graph: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sets of options, which do not share a batch."""
    expected = {
        beam: alone(translator_graph, TEXTS, capsys, monkeypatch, "--beam", beam, "--max-tokens", 7) for beam in (1, 3)
    }
    asked = [(number, beam) for number in range(len(TEXTS)) for beam in (1, 3)] * 3

    def one(number: int, beam: int) -> Any:
        return server.good("/v1/translate", {"source": TEXTS[number], "beam": beam, "max_tokens": 7})

    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(lambda each: one(*each), asked))
    for (number, beam), answer in zip(asked, found, strict=True):
        [data] = answer["data"]
        assert data["source"] == TEXTS[number]
        [mine], [theirs] = data["translations"], expected[beam][number]
        assert mine.pop("score") == pytest.approx(theirs["score"], rel=1e-5)
        assert mine == {key: value for key, value in theirs.items() if key != "score"}


def test_list_of_texts_and_n_best(
    server: Server, translator_graph: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = server.good(
        "/v1/translate", {"source": [*TEXTS[:3], " "], "n": 2, "beam": 3, "max_tokens": 7, "split": True}
    )
    assert [data["index"] for data in answer["data"]] == [0, 1, 2, 3]
    assert [len(data["translations"]) for data in answer["data"]] == [2, 2, 2, 0]
    assert answer["usage"]["prompt_tokens"] == len("badalidcab"), "the tokenizer has no full stop"
    whole = server.good("/v1/translate", {"source": TEXTS[0], "n": 2, "beam": 3, "max_tokens": 7})
    expected = alone(translator_graph, TEXTS[:1], capsys, monkeypatch, "--n-best", 2, "--beam", 3, "--max-tokens", 7)
    assert [one["text"] for one in whole["data"][0]["translations"]] == [one["text"] for one in expected[0]]


def test_checked_numbers(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = {"tokenizer": letter_tokenizer("0123" + LETTERS[4:])}
    graph = translators.save(tmp_path / "digits", 1, source_tokenizer=letter_tokenizer("0123efg.!?AB "), **digits)
    texts = [f"{left}e{right}. {right}f." for left in range(4) for right in range(4)]
    plain, expected = (
        alone(graph, texts, capsys, monkeypatch, "--max-tokens", 7, "--no-copy", *more)
        for more in ([], ["--check-numbers"])
    )
    with running(graph) as server:
        asked = {"source": texts, "max_tokens": 7, "check_numbers": True, "copy": False}
        found = [one["translations"] for one in server.good("/v1/translate", asked)["data"]]
    for key in ("missing", "added"):
        assert [one[key] for (one,) in found] == [one[key] for (one,) in expected]
    assert [one["text"] for (one,) in found] == [one["text"] for (one,) in expected]
    assert [one["text"] for (one,) in found] != [one["text"] for (one,) in plain]


@pytest.mark.parametrize(
    "fields",
    [{}, {"source": 1}, {"source": []}, {"source": [""]}, {"source": "a" * 13}, {"source": "a", "beam": 65}]
    + [{"source": "a", "n": 5, "beam": 2}, {"source": "a", "max_tokens": 1}, {"source": "a", "max_tokens": 10**6}],
)
def test_wrong_requests(fields: dict[str, Any], server: Server) -> None:
    status, answer = server.ask("/v1/translate", fields)
    assert status == 400
    assert answer["error"]["message"].startswith("expected ")
    assert server.ask("/v1/completions", {"prompt": "a"})[0] == 400


def test_what_wrong_requests_are_told(server: Server, tmp_path: Path) -> None:
    _, answer = server.ask("/v1/translate", {"source": "a", "stream": True})
    assert answer["error"]["message"] == 'expected a known field; received "stream"; leave it out'
    assert answer["error"]["param"] == "stream"
    letters = letter_tokenizer(LETTERS[: translators.SOURCE])
    graph = translators.save(tmp_path / "t", 1, tokenizer=letter_tokenizer(), source_tokenizer=letters, max_source=None)
    with running(graph) as other:
        for source, status in (("a" * MAX_SOURCE, 200), (["b", "a" * (MAX_SOURCE + 1)], 400)):
            found, answer = other.ask("/v1/translate", {"source": source, "beam": 1, "max_tokens": 5})
            assert found == status
    assert answer["error"]["param"] == "source"
    assert answer["error"]["message"] == (
        f"expected a source of at most {MAX_SOURCE} tokens; received {MAX_SOURCE + 1}; split it into sentences"
    )


def test_requests_take_turns(translator_graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short ones, one of them with other options, do not wait for a long one; a second long one is refused."""
    finished: list[tuple[Request, int]] = []
    right = Translations._finish
    worker = Translations("t", Translator(translator_graph, threads=1), 2, 6)

    def finish(self: Translations, request: Request, error: ApiError | None) -> None:
        assert error is None
        finished.append((request, long.entered))
        right(self, request, error)

    monkeypatch.setattr(Translations, "_finish", finish)
    sources = [np.array([3, 1, 4 + number % 3]) for number in range(100)]

    async def run() -> list[Request]:
        nonlocal long
        beam, other = Beam(1, max_tokens=5), Beam(2, max_tokens=5)
        requests = [long := worker.submit(sources, beam)]
        requests += [worker.submit(sources[:3], each) for each in (beam, other)]
        with pytest.raises(ApiError, match="expected at most 6 sentences that wait"):
            worker.submit(sources, beam)
        worker.start(asyncio.get_running_loop())
        await asyncio.gather(*(request.done for request in requests))
        await asyncio.to_thread(worker.stop)
        return requests

    long: Request
    requests = asyncio.run(run())
    assert {request for request, _ in finished} == set(requests) and finished[-1][0] is long
    assert all(entered < 20 for _, entered in finished[:2])
    greedy = [long.found[place][0].tokens for place in range(3)]
    assert [requests[1].found[place][0].tokens for place in range(3)] == greedy


def test_too_many_sentences_are_not_encoded(server: Server) -> None:
    status, answer = server.ask("/v1/translate", {"source": "Bad. " * (MAX_SENTENCES + 1)})
    assert status == 400
    assert answer["error"]["message"] == (
        f"expected at most {MAX_SENTENCES:,} sentences; received {MAX_SENTENCES + 1:,}; send several requests"
    )


def test_client_that_vanishes(translator_graph: Path) -> None:
    """The client's sentences leave the batch; others continue."""
    with running(translator_graph, "--rows", 2) as server:
        for _ in range(2):
            connection = server.connection()
            body = json.dumps({"source": "Bad cab. " * 120, "beam": 4, "max_tokens": 100})
            connection.request("POST", "/v1/translate", body, {"content-type": "application/json"})
            connection.close()
        assert server.good("/v1/translate", {"source": "bad", "beam": 1})["data"][0]["translations"]
        server.until("t2r_cancelled_total", 2)
