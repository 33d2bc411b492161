"""Clients that disconnect or are silent, and server faults: rows are freed, other requests are answered."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import small
from runtime.serve.server import letters, running, within
from t2r_export.config.export import ExportConfig
from t2r_export.export import export
from t2r_runtime import UserError
from t2r_runtime.contract.chat import MAX_TEMPLATE
from t2r_runtime.decode.pool import Pool
from t2r_runtime.serve.connections import CROWDED, MOST, PATIENCE, Patience
from t2r_runtime.session import providers
from t2r_runtime.translate.sentences import Sentences

COMPLETIONS = "/v1/completions"


def test_client_that_vanishes_frees_its_row(graph: Path) -> None:
    """With one row, other requests wait until it is free."""
    with running(graph, "--rows", 1, "--max-tokens", 10**9) as server:
        long = {"max_tokens": 10**9, "ignore_eos": True}
        with server.stream(prompt="a", **long) as events:
            next(events)
        assert len(server.tokens("b", max_tokens=3, ignore_eos=True)[0]) == 3
        with server.stream(prompt="a", **long) as events:
            next(events)
            connection = server.connection()  # waits for the row, and disconnects without an answer
            body = json.dumps({"prompt": "c", **long})
            connection.request("POST", COMPLETIONS, body, {"content-type": "application/json"})
            server.until("t2r_texts_waiting", 1)
            connection.close()
            server.until("t2r_texts_waiting", 0)
        assert len(server.tokens("b", max_tokens=3, ignore_eos=True)[0]) == 3
        assert server.metric("t2r_cancelled_total") == 3


def test_first_request_opens_no_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small.with_layers(small.LLAMA, small.LINEAR, small.LINEAR)
    export(small.checkpoint(config), graph := tmp_path / "g.onnx", ExportConfig(prefill=True))
    opened: list[object] = []
    right = providers.open_session
    monkeypatch.setattr(providers, "open_session", lambda path, *rest: (opened.append(path), right(path, *rest))[1])
    with within(graph) as server:
        assert len(opened) == 2
        server.complete([1, 2, 3, 4], max_tokens=2)
        assert len(opened) == 2


def test_client_that_vanishes_within_its_body(graph: Path) -> None:
    with running(graph) as server:
        start = (
            b"POST %s HTTP/1.1\r\nhost: localhost\r\n" % COMPLETIONS.encode()
            + b"content-type: application/json\r\ncontent-length: 100\r\n\r\n"
        )
        with socket.create_connection((server.host, server.port)) as connection:
            connection.sendall(start + b'{"prompt": ')
        server.until("t2r_cancelled_total", 1)
        assert len(server.tokens("a", max_tokens=3, ignore_eos=True)[0]) == 3
        assert server.metric("t2r_cancelled_total") == 1


@pytest.mark.parametrize("start", [b"", b"GET /hea", b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\nGET /hea"])
def test_silent_connection_is_closed(start: bytes, graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client sends no request, a partial one, or a partial second one; connections with slow answers stay open."""
    monkeypatch.setattr("t2r_runtime.serve.connections.PATIENCE", 0.2)
    with within(graph) as server, ThreadPoolExecutor(1) as pool:
        busy = pool.submit(server.tokens, "a", max_tokens=4096, ignore_eos=True)
        found = b""
        with socket.create_connection((server.host, server.port), timeout=60) as connection:
            connection.sendall(start)
            while part := connection.recv(1 << 16):
                found += part
        assert found.count(b"HTTP/1.1 200 OK") == start.count(b"HTTP")
        assert len(busy.result()[0]) == 4096


def test_client_that_never_reads_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answers fill all buffers; closing the connection would wait for it, also when the server ends."""
    monkeypatch.setattr("t2r_runtime.serve.connections.PATIENCE", 0.2)
    look, numbers = Patience.look, [0]

    def counted(self: Patience, connections: Collection[Any], now: float) -> None:
        numbers.append(len(connections))
        look(self, connections, now)

    monkeypatch.setattr(Patience, "look", counted)
    graph = letters(tmp_path, chat_template={"template": "a" * MAX_TEMPLATE, "tokens": {}})
    with within(graph) as server, socket.create_connection((server.host, server.port), timeout=60) as connection:
        connection.sendall(b"GET /tokenizer_info HTTP/1.1\r\nhost: localhost\r\n\r\n" * 400)
        while not max(numbers) or numbers[-1]:
            time.sleep(0.01)
        found = b"".join(iter(lambda: connection.recv(1 << 20), b""))
    assert 0 < found.count(b"HTTP/1.1 200") < 400


def test_body_that_never_ends(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is closed with the answer, whose end the client sees."""
    monkeypatch.setattr("t2r_runtime.serve.app.BODY_SECONDS", 0.2)
    with within(graph) as server, socket.create_connection((server.host, server.port), timeout=10) as connection:
        head = b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n" % COMPLETIONS.encode()
        connection.sendall(head + b"content-length: 100\r\n\r\n{")
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert answer.startswith(b"HTTP/1.1 408") and b"connection: close" in answer


class Connection:
    """A connection as uvicorn has it, with unsent bytes, and a request that runs or waits for its body."""

    def __init__(self, unsent: int = 0, runs: bool = False, more_body: bool = False) -> None:
        self.unsent, self.aborted, self.transport = unsent, False, self
        self.cycle = SimpleNamespace(response_complete=not (runs or more_body), more_body=more_body)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.aborted = True


def test_patience_with_clients() -> None:
    idle, busy, slow, stuck = Connection(), Connection(runs=True), Connection(900), Connection(70, runs=True)
    body, quick = Connection(more_body=True), Connection()
    several, patience = [idle, busy, slow, stuck, body, quick], Patience()
    for second in range(int(PATIENCE) + 1):
        patience.look(several, second)
        slow.unsent -= 7
        quick.cycle = SimpleNamespace(response_complete=True, more_body=False)  # another request, answered at once
    assert not any(each.aborted for each in several)
    patience.look(several, PATIENCE + 1)
    assert [each.aborted for each in several] == [True, False, False, True, True, False]
    crowd = [Connection(runs=True) for _ in range(MOST // 2)] + [late := Connection()]
    patience.look(crowd, 50)
    patience.look(crowd, 51 + CROWDED)
    assert late.aborted and not any(each.aborted for each in crowd[:-1])


@pytest.mark.parametrize(
    "fault, status, code",
    [
        (ZeroDivisionError("secret"), 500, "bug"),
        (UserError("the graph to run a step", "a fault", "export the model again", "runtime"), 500, "runtime"),
    ],
)
def test_fault_ends_the_requests_that_run(
    fault: Exception, status: int, code: str, graph: Path, translator_graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their clients get an error (a bug gives no details); later requests are answered."""
    with within(graph, translator_graph) as server, ThreadPoolExecutor(4) as pool:
        asked = {"model": "letters", "max_tokens": 4096, "ignore_eos": True, "temperature": 0}
        source = {"model": translator_graph.stem, "source": "bad"}
        expected = server.tokens("a", **{**asked, "max_tokens": 5}), server.good("/v1/translate", source)["data"]
        with server.stream(prompt="a", **asked) as events:
            next(events)
            with monkeypatch.context() as patched:
                for place in (Pool, Sentences):
                    patched.setattr(place, "step", lambda *_: (_ for _ in ()).throw(fault))
                *_, last = events
                assert last["error"]["code"] == code
                found = list(
                    pool.map(
                        lambda path, body: server.ask(path, body),
                        *zip((COMPLETIONS, {"prompt": "b", **asked}), ("/v1/translate", source), strict=True),
                    )
                )
        for received, answer in found:
            assert (received, answer["error"]["code"]) == (status, code)
            assert "secret" not in json.dumps(answer)
        assert server.tokens("a", **{**asked, "max_tokens": 5}) == expected[0]
        assert server.good("/v1/translate", source)["data"] == expected[1]


def test_many_clients_that_vanish_at_once(graph: Path) -> None:
    with running(graph, "--rows", 3, "--queue", 300, "--max-tokens", 10**9) as server:

        def one(number: int) -> None:
            dice = random.Random(number)
            fields = {"n": dice.randint(1, 3), "prompt": [[dice.randrange(11)] * dice.randint(1, 200)] * 2}
            if number % 4 == 0:
                assert len(server.tokens([1], max_tokens=5, ignore_eos=True)[0]) == 5
            elif number % 4 == 1:
                connection = server.connection()
                body = json.dumps({**fields, "max_tokens": 10**9, "ignore_eos": True})
                connection.request("POST", COMPLETIONS, body, {"content-type": "application/json"})
                connection.close()
            else:
                with server.stream(**fields, max_tokens=10**9, ignore_eos=True) as events:
                    for _ in range(dice.randint(0, 5)):
                        next(events)

        with ThreadPoolExecutor(16) as pool:
            list(pool.map(one, range(48)))
        assert len(server.tokens([1], max_tokens=5, ignore_eos=True)[0]) == 5
        server.until("t2r_rows_running", 0)
        assert server.metric("t2r_texts_waiting") == 0
