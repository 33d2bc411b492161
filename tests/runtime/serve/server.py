"""A server process on a free loopback port, and its clients."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

JSON = {"content-type": "application/json"}
PATIENCE = 60  # test timeout in seconds


class Client:
    """Requests to a server."""

    def __init__(self, host: str, port: int, key: str | None = None) -> None:
        self.host, self.port = host, port
        self._headers = JSON if key is None else {**JSON, "authorization": f"Bearer {key}"}

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)

    def ask(
        self, path: str, body: Any = None, method: str | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and answer: JSON or text. A body other than bytes is sent as JSON."""
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        with contextlib.closing(self.connection()) as connection:
            connection.request(
                method or ("GET" if body is None else "POST"), path, raw, self._headers if headers is None else headers
            )
            response = connection.getresponse()
            text = response.read().decode()
            kind = response.getheader("content-type", "")
            return response.status, json.loads(text) if kind.startswith("application/json") else text

    def good(self, path: str, body: Any = None) -> Any:
        """The answer, which must not be an error."""
        status, answer = self.ask(path, body)
        assert status == 200, answer
        return answer

    def complete(self, prompt: Any, **fields: Any) -> dict[str, Any]:
        """The answer of /v1/completions."""
        answer: dict[str, Any] = self.good("/v1/completions", {"prompt": prompt, "return_tokens": True, **fields})
        return answer

    def tokens(self, prompt: Any, **fields: Any) -> list[list[int]]:
        """The tokens of each choice."""
        return [choice["tokens"] for choice in self.complete(prompt, **fields)["choices"]]

    @contextlib.contextmanager
    def stream(self, path: str = "/v1/completions", **fields: Any) -> Iterator[Iterator[Any]]:
        """Events of a stream; the connection is closed at the end of the block."""
        with contextlib.closing(self.connection()) as connection:
            connection.request("POST", path, json.dumps({"stream": True, **fields}), JSON)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            assert response.getheader("content-type") == "text/event-stream; charset=utf-8"
            with contextlib.closing(response):
                yield events(response)

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        lines = self.good("/metrics").splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(rf"{name}[ {{]", line))

    def until(self, name: str, value: float) -> None:
        """Wait until a metric has this value."""
        while self.metric(name) != value:
            time.sleep(0.01)

    def raw(self, data: bytes) -> bytes:
        """Send bytes; returns the response until the server closes or is silent for a second."""
        with socket.create_connection((self.host, self.port), timeout=1) as connection:
            found = b""
            with contextlib.suppress(OSError):
                connection.sendall(data)
                while part := connection.recv(1 << 16):
                    found += part
            return found


class Server(Client):
    """`t2r-run serve` with these arguments.

    Attributes:
        said: lines of its stderr so far.
    """

    def __init__(self, *arguments: object, environment: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-W", "error", "-m", "t2r_runtime", "serve", "--port", "0", "--threads", "1"]
        self.process = subprocess.Popen(
            [*command, *map(str, arguments)], stderr=subprocess.PIPE, text=True, env=os.environ | (environment or {})
        )
        self.said: list[str] = []
        assert self.process.stderr is not None
        while (line := self.process.stderr.readline()) and not line.startswith("serving "):
            self.said.append(line)
        found = re.fullmatch(r"serving .* on http://(\S+):(\d+)\n", line)
        assert found is not None, self.said
        super().__init__(found[1], int(found[2]))
        self._reader = threading.Thread(target=lambda: self.said.extend(self.process.stderr or []))
        self._reader.start()

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """Wait for the process and return its exit code."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


def events(response: http.client.HTTPResponse) -> Iterator[Any]:
    """The parsed data of each event, without the final [DONE]."""
    done = False
    for line in response:
        if line.strip():
            assert line.startswith(b"data: ")
            assert not done
            if line == b"data: [DONE]\n":
                done = True
            else:
                yield json.loads(line[6:])


@contextlib.contextmanager
def running(*arguments: object, environment: dict[str, str] | None = None) -> Iterator[Server]:
    """A server, which must exit without errors."""
    server = Server(*arguments, environment=environment)
    try:
        yield server
        if server.process.poll() is None:
            assert server.end() == 0, server.said
        server.ended()
        assert not any("Traceback" in line or "Error" in line for line in server.said), "".join(server.said)
    finally:
        if server.process.poll() is None:
            server.end(signal.SIGKILL)


@contextlib.contextmanager
def within(
    *graphs: Path,
    rows: int = 2,
    folder: Path | None = None,
    keep_bytes: int = 10**6,
    key: str | None = None,
    log: str = "none",
    tool_format: str | None = None,
    draft: object = None,
) -> Iterator[Client]:
    """A server in a thread of this process, so that tests can patch it; its clients send the key."""
    from t2r_runtime import Decoder, Translator
    from t2r_runtime.serve import run
    from t2r_runtime.serve.access import Access
    from t2r_runtime.serve.log import Log
    from t2r_runtime.serve.models import Limits
    from t2r_runtime.serve.tools.formats import FORMATS

    def decoder(path: Path) -> Decoder:
        return Decoder(path, threads=1)

    def translator(path: Path) -> Translator:
        return Translator(path, threads=1)

    with run.listening("127.0.0.1", 0) as listener:
        access = Access(key=key)
        more = folder, keep_bytes, access, Log(log), FORMATS.get(tool_format or "")
        server = run.server(run.served(graphs, decoder, translator, Limits(rows), *more, draft))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield Client(*listener.getsockname(), key=key)
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
        assert not thread.is_alive()


def letters(folder: Path, name: str = "letters", **changes: Any) -> Path:
    """A graph with a letter tokenizer and a chat template."""
    from cli_models import LETTERS, letter_tokenizer
    from runtime import graphs

    chat = {"template": "{{ messages | map(attribute='content') | join('k') }}", "tokens": {}}
    own = {"tokenizer": letter_tokenizer(LETTERS[: graphs.VOCABULARY]), "chat_template": chat, **changes}
    return graphs.save(folder / f"{name}.onnx", **own)
