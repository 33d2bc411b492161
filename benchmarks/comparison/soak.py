"""Mixed load on a server: sessions, streams, clients that disconnect, invalid bodies, SIGKILL and restarts.

Acknowledged states may not be lost: a request that continues a completely received answer finds its tokens cached. A
truncated answer is requested again. Memory is compared after the last kill.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparison.decode import Note
from comparison.engines import Files
from comparison.servers import HOST, Place, T2RServer
from comparison.tables import SOAK
from comparison.timing import machine
from t2r_export.checkpoints import checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.errors import CheckFailed
from t2r_export.export import export
from t2r_export.paths import existing_model
from t2r_runtime.errors import UserError

JSON = {"content-type": "application/json"}
LONGEST = 512  # tokens of a session, which then restarts
ROWS = 16
SAMPLES = 32  # of memory
SETTLED = 0.6  # share of the requests after which memory is compared
GROWTH = 0.02  # maximum growth of memory from there to the end
WRONG: Sequence[bytes] = (
    b"",
    b"{",
    b"[1, 2]",
    b'{"prompt": "\xff"}',
    b'{"prompt": [1], "max_tokens": "many"}',
    b'{"prompt": [1], "max_tokens": -1}',
    b'{"prompt": [99999999]}',
    b'{"prompt": [1], "temprature": 1}',
    b'{"prompt": [1], "temperature": 1e999}',
    b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"prompt": [1], "session_id": "' + b"a" * 1000 + b'"}',
    b'{"prompt": [1], "n": 100000}',
)


@dataclass(frozen=True, kw_only=True)
class SoakPlan:
    """Options of `bench_soak`."""

    model: str = "models/stories3M/model.pt"
    requests: int = 200_000
    clients: int = 8
    sessions: int = 25  # of each client
    kills: int = 20  # in the first half
    threads: int = 2

    def __post_init__(self) -> None:
        if min(self.requests, self.clients, self.sessions, self.threads) < 1 or self.kills < 0:
            raise UserError("counts of at least 1", str(self), "correct the plan")
        existing_model(Path(self.model))


def bench_soak(plan: SoakPlan, note: Note = lambda _: None) -> dict[str, Any]:
    """Run the load; returns plain data for a table.

    Raises:
        CheckFailed: acknowledged tokens are lost, the server ended by itself, an answer has a wrong status, or memory
            grows.
    """
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "graph.onnx"
        export(loaded := checkpoint.load(Path(plan.model)), path, ExportConfig(prefill=True))
        place = Place(slots=ROWS, context=LONGEST, threads=plan.threads, folder=Path(root), keeps=True)
        with T2RServer(Files(path, path.stat().st_size), place) as server:
            load = Load(plan, server, loaded.config.vocab_size, note)
            load.run()
            load.check()
            said = server.said()
    if "Traceback" in said:
        raise CheckFailed(f"the server has a fault: {said[-400:]}")
    early, late = load.memory
    return {
        "format": SOAK,
        "machine": machine(),
        "size": Path(plan.model).parent.name,
        "clients": plan.clients,
        "seconds": load.seconds,
        "counts": dict(sorted(load.counts.items())),
        "memory": {f"resident beside kept states, after {SETTLED:.0%} of the requests": early, "at their end": late},
    }


class Load:
    """The clients of a server, and the thread that kills it."""

    def __init__(self, plan: SoakPlan, server: T2RServer, vocabulary: int, note: Note) -> None:
        self.plan, self.vocabulary, self._server, self._note = plan, vocabulary, server, note
        self._lock = threading.Lock()
        self._up = threading.Event()
        self.life = 0  # number of starts so far
        self._asked = 0
        self._samples: list[tuple[int, int]] = []  # requests so far, resident bytes without kept states
        self.counts: Counter[str] = Counter({"lost": 0, "wrong statuses": 0})
        self.seconds = 0.0

    def run(self) -> None:
        """Send all requests, and kill the server in between."""
        started = time.monotonic()
        self._up.set()
        with ThreadPoolExecutor(self.plan.clients) as pool:
            clients = [pool.submit(Client(self, number).run) for number in range(self.plan.clients)]
            self._watch(clients)
            for client in clients:
                client.result()
        self.seconds = time.monotonic() - started

    def check(self) -> None:
        """Raise CheckFailed for lost tokens, wrong statuses or memory growth."""
        early, late = self.memory
        if self.counts["lost"] or self.counts["wrong statuses"] or late > early * (1 + GROWTH):
            raise CheckFailed(f"a server under load fails: {dict(self.counts)}, memory {early:,} then {late:,} bytes")

    @property
    def memory(self) -> tuple[int, int]:
        """Median of resident bytes, in the first and in the last third of the samples without kills."""
        settled = [size for asked, size in self._samples if asked >= SETTLED * self.plan.requests]
        third = max(len(settled) // 3, 1)
        return int(statistics.median(settled[:third])), int(statistics.median(settled[-third:]))

    def next(self) -> int | None:
        """Wait for the server, and count a request; returns the number of starts, or None after the last request."""
        while True:
            self._up.wait()
            with self._lock:
                if self._up.is_set():
                    self._asked += 1
                    return self.life if self._asked <= self.plan.requests else None

    def count(self, name: str) -> None:
        with self._lock:
            self.counts[name] += 1

    @property
    def port(self) -> int:
        return self._server.port

    def _watch(self, clients: Sequence[Future[None]]) -> None:
        """Kill and restart the server, sample its memory, and check that it does not end by itself."""
        requests, kills = self.plan.requests, self.plan.kills
        deaths = [requests * (kill + 1) // (2 * kills + 2) for kill in range(kills)]
        samples = [requests * (sample + 1) // (SAMPLES + 1) for sample in range(SAMPLES)]
        while not all(client.done() for client in clients):
            if self._server.process.poll() is not None:
                raise CheckFailed(f"the server ended by itself: {self._server.said()[-400:]}")
            if deaths and self._asked >= deaths[0]:
                deaths.pop(0)
                self._kill()
            while samples and self._asked >= samples[0]:
                self._sample(samples.pop(0))
                self._note(f"{self._asked:,} of {requests:,} requests")
            time.sleep(0.02)
        self._sample(requests)

    def _sample(self, asked: int) -> None:
        self._samples.append((asked, self._server.resident() - int(self._server.metric("t2r_kept_bytes"))))

    def _kill(self) -> None:
        with self._lock:
            self._up.clear()
            self.life += 1
        try:
            self._server.restart()
        finally:
            self._up.set()
        self.count("kill -9")


class Client:
    """A client with its own sessions, which sends one request after another."""

    def __init__(self, load: Load, number: int) -> None:
        self._load, self._number, self._random = load, number, random.Random(number)
        self._texts: dict[str, list[int]] = {}  # acknowledged tokens by session
        self._open: dict[str, list[int]] = {}  # prompts of truncated answers, to be requested again

    def run(self) -> None:
        """Send requests until none is left."""
        kinds = (self._session, self._session, self._session, self._stream, self._vanish, self._wrong)
        while (life := self._load.next()) is not None:
            try:
                self._random.choice(kinds)()
            except (OSError, http.client.HTTPException, ValueError):
                if life == self._load.life:
                    raise
                self._load.count("answers cut by a kill")

    def _session(self) -> None:
        """Continue a session after its acknowledged tokens."""
        name = f"{self._number}-{self._random.randrange(self._load.plan.sessions)}"
        known = self._texts.get(name, [])
        prompt = self._open.setdefault(name, [*known, self._token(), self._token()])
        answer = self._whole({"prompt": prompt, "max_tokens": 1 + self._random.randrange(4), "session_id": name})
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        if cached < len(known) - 1:  # the newest token was chosen but not read
            self._load.count("lost")
        whole = [*self._open.pop(name), *answer["choices"][0]["tokens"]]
        self._texts[name] = whole if len(whole) < LONGEST else []
        self._load.count("sessions continued" if known else "sessions begun")

    def _stream(self) -> None:
        with self._streamed(8) as response:
            if response.read().count(b"data: {") != 8:
                raise ValueError("a stream that was cut")
        self._load.count("streams")

    def _vanish(self) -> None:
        """Disconnect from a long stream, before or after some tokens."""
        with self._streamed(4096) as response:
            for _ in range(self._random.randrange(6)):
                response.readline()
        self._load.count("clients that vanished")

    def _wrong(self) -> None:
        """Check that the answer to an invalid body has a status of 400 to 499."""
        with self._posted(self._random.choice(WRONG)) as response:
            response.read()
            if not 400 <= response.status < 500:
                self._load.count("wrong statuses")
        self._load.count("malformed bodies")

    def _token(self) -> int:
        return self._random.randrange(self._load.vocabulary)

    def _whole(self, body: dict[str, Any]) -> dict[str, Any]:
        asked = {**body, "return_tokens": True, "ignore_eos": True, "temperature": 0.7, "seed": 1}
        with self._posted(json.dumps(asked).encode()) as response:
            answer: dict[str, Any] = json.loads(response.read())
        if response.status != 200:
            self._load.count("wrong statuses")
            raise ValueError(answer)
        return answer

    def _streamed(self, tokens: int) -> contextlib.AbstractContextManager[http.client.HTTPResponse]:
        body = {"prompt": [self._token()], "max_tokens": tokens, "stream": True}
        return self._posted(json.dumps({**body, "ignore_eos": True, "return_tokens": True}).encode())

    @contextlib.contextmanager
    def _posted(self, body: bytes) -> Any:
        with contextlib.closing(http.client.HTTPConnection(HOST, self._load.port, timeout=60)) as connection:
            connection.request("POST", T2RServer.path, body, JSON)
            with contextlib.closing(connection.getresponse()) as response:
                yield response
