"""Texts are bounded before any work on them, and encoded in threads that nothing else waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cli_models import LETTERS, letter_tokenizer
from runtime import graphs
from runtime.serve.server import Client, letters, within
from t2r_runtime import Tokenizer
from t2r_runtime.serve.encoders import MAX_TEXT, PER_TOKEN, WINDOW, Encoders
from t2r_runtime.serve.grammars import Grammars
from t2r_runtime.serve.models import MAX_PROMPT
from t2r_runtime.serve.request_options import MAX_LOG_PROBS
from t2r_runtime.text.tokenizer_file import Library

LONG = "a" * (WINDOW + 1)
ENDPOINTS = {  # the field of a text, and the body with it
    "/v1/completions": ("prompt", lambda text: {"prompt": text, "max_tokens": 1}),
    "/v1/chat/completions": ("messages", lambda text: {"messages": [{"role": "user", "content": text}]}),
    "/v1/translate": ("source", lambda text: {"source": text, "split": False}),
    "/tokenize": ("prompt", lambda text: {"prompt": text}),
}


class Encoded:
    """The work of tokenizers: the size of each text that they got, and the thread."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.threads: set[str] = set()
        self.go = threading.Event()  # long texts wait for it

    def note(self, texts: list[str]) -> None:
        self.sizes += map(len, texts)
        self.threads.add(threading.current_thread().name.rpartition("_")[0])
        if max(map(len, texts)) > WINDOW:
            assert self.go.wait(60)


@pytest.fixture(autouse=True)
def unprepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers prepare no grammars: that encodes a text too."""
    monkeypatch.setattr(Grammars, "prepare", lambda self: None)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Encoded]:
    work = Encoded()
    one, many = Library.encode, Library.encode_batch
    monkeypatch.setattr(Library, "encode", lambda self, text, *rest: work.note([text]) or one(self, text, *rest))
    monkeypatch.setattr(
        Library, "encode_batch", lambda self, texts, *rest, **more: work.note(texts) or many(self, texts, *rest, **more)
    )
    yield work
    work.go.set()


@pytest.fixture
def server(graph: Path, translator_graph: Path) -> Iterator[Client]:
    with within(graph, translator_graph) as server:
        yield server


def asked(server: Client, path: str, text: Any) -> tuple[int, Any]:
    kind = "translator" if path == "/v1/translate" else "language model"
    [model] = [each["id"] for each in server.good("/v1/models")["data"] if each["kind"] == kind]
    return server.ask(path, {"model": model, **ENDPOINTS[path][1](text)})


@pytest.mark.parametrize("path", ENDPOINTS)
def test_too_many_characters_reach_no_tokenizer(path: str, server: Client, encoded: Encoded) -> None:
    encoded.go.set()
    status, answer = asked(server, path, "a" * (MAX_TEXT + 1))
    assert (status, encoded.sizes) == (400, [])
    assert answer["error"]["param"] == ENDPOINTS[path][0]
    assert answer["error"]["message"] == (
        f"expected at most {MAX_TEXT:,} characters of texts; received {MAX_TEXT + 1:,}; send less"
    )
    assert asked(server, path, "a")[0] == 200
    assert encoded.sizes == [1] and encoded.threads == {"encode"}


def test_bound_of_a_model_with_few_positions(tmp_path: Path, translator_graph: Path, encoded: Encoded) -> None:
    """Only /tokenize, which counts tokens, takes longer texts."""
    encoded.go.set()
    graph = letters(tmp_path, max_positions=9, past_end="refuse")
    with within(graph, translator_graph) as server:
        for path, tokens in (("/v1/completions", 9), ("/v1/chat/completions", 9), ("/v1/translate", 12)):
            status, answer = asked(server, path, "a" * (PER_TOKEN * tokens + 1))
            assert status == 400
            assert (
                f"a text of at most {PER_TOKEN * tokens} characters, for {tokens} tokens" in answer["error"]["message"]
            )
        assert encoded.sizes == []
        assert asked(server, "/tokenize", LONG)[1]["count"] == len(LONG)
        assert asked(server, "/v1/completions", "a" * 9)[0] == 200


def test_too_many_tokens_are_not_looked_at(server: Client) -> None:
    for path, name in (("/v1/completions", "prompt"), ("/detokenize", "tokens")):
        status, answer = server.ask(path, {"model": "letters", name: [*[1] * MAX_PROMPT, "a"]})
        assert status == 400
        assert f"expected at most {MAX_PROMPT:,} tokens in all; " in answer["error"]["message"]


def test_log_probabilities_are_bounded_and_written_apart(server: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set[str]()
    right = Tokenizer.token_text
    monkeypatch.setattr(
        Tokenizer, "token_text", lambda *one: threads.add(threading.current_thread().name[:6]) or right(*one)
    )
    fields = {"model": "letters", "echo": True, "logprobs": 20, "max_tokens": 1, "prompt": [[1] * 99]}
    found = server.good("/v1/completions", fields)["choices"][0]["logprobs"]
    assert len(found["tokens"]) == 100 and threads == {"encode"}
    for path, more in (
        ("/v1/completions", {"prompt": [1] * (MAX_LOG_PROBS // 21)}),
        ("/v1/completions", {"max_tokens": 4096, "n": 7}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4096, "n": 7}),
    ):
        asked = {**fields, **more} if path == "/v1/completions" else {"model": "letters", "logprobs": True, **more}
        status, answer = server.ask(path, {**asked, **({} if "echo" in asked else {"top_logprobs": 20})})
        assert status == 400 and answer["error"]["param"] == "logprobs"
        assert f"an answer of at most {MAX_LOG_PROBS:,} log-probabilities; " in answer["error"]["message"]


def test_long_texts_hold_up_nothing_else(server: Client, encoded: Encoded, monkeypatch: pytest.MonkeyPatch) -> None:
    """While more long texts are encoded than asyncio has threads, other requests are answered."""
    arrived, run = list[int](), Encoders.run
    monkeypatch.setattr(Encoders, "run", lambda self, size, work: arrived.append(size) or run(self, size, work))
    with ThreadPoolExecutor(40) as pool, ExitStack() as stack:
        stack.callback(encoded.go.set)  # also if the test fails, or each text would wait for its timeout
        paths = ["/tokenize", "/v1/translate"] * 20
        waiting = [pool.submit(asked, server, paths[0], LONG)]
        while not encoded.sizes:  # now the thread of long texts is busy
            time.sleep(0.01)
        waiting += [pool.submit(asked, server, path, LONG) for path in paths[1:]]
        while len(arrived) < len(waiting):
            time.sleep(0.01)
        assert server.good("/health") == {"status": "ok"}
        fields = {"model": "letters", "max_tokens": 2, "ignore_eos": True, "session_id": "s"}
        server.complete("abc", **fields)
        found = server.complete("abcd", **fields)
        assert found["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
        assert not any(each.done() for each in waiting)
        encoded.go.set()
        found = [each.result()[0] for each in waiting]
    assert found == [400 if path == "/v1/translate" else 200 for path in paths]
    assert encoded.threads == {"encode", "encode long"}


def test_other_threads_run_while_a_text_is_encoded() -> None:
    """The library holds no lock of Python's, so the other thread wakes up again and again."""
    tokenizer, begun, ended, wakes = Tokenizer(letter_tokenizer()), threading.Event(), threading.Event(), 0

    def work() -> None:
        begun.set()
        tokenizer.decode(tokenizer.encode(LETTERS[: graphs.VOCABULARY] * 30_000))
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    while not ended.is_set():
        time.sleep(0.001)
        wakes += 1
    thread.join()
    assert wakes > 5
