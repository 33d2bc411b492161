"""Compare servers of decoders of the same size: streams, known prefixes after a restart, overhead, sessions.

Every server runs in its own process on loopback; all are open and take turns, in another random order each round. A
text is read once, and each round continues it: as a session of t2r's server, as a slot of llama.cpp's.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from comparison import batches
from comparison.decode import Note, in_turn, kept, make_each, with_ratios
from comparison.engines import Candidate, Files
from comparison.servers import ENGINES, SERVERS, Place, Server, T2RServer, parsed
from comparison.sizes import config_of
from comparison.streams import rate, streams
from comparison.tables import SERVE
from comparison.timing import machine
from comparison.worker import DISCARDED, Worker
from t2r_export.checkpoints import checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.export import export
from t2r_export.paths import existing_model
from t2r_export.providers.bench import Spread
from t2r_runtime.errors import UserError

MAX_COUNT = 1 << 17
FEW = 8  # tokens of a short prompt
WARM = 0.1  # share of the sessions before memory is measured


@dataclass(frozen=True, kw_only=True)
class ServePlan:
    """Options of `bench_serve`."""

    engines: Sequence[str]
    size: str = "smollm-135m"
    threads: int = 2
    streams: Sequence[int] = (8, 64)
    contexts: Sequence[int] = (16, 256, 1024)  # tokens before each stream
    rounds: int = 5
    tokens: int = 32  # per stream and turn
    prefix: int = 4096  # known tokens before the first one after a restart
    prefix_rounds: int = 3
    message: int = 8  # new tokens after the prefix
    sessions: int = 10_000
    sessions_model: str = "models/stories3M/model.pt"
    candidates: list[Candidate] = field(init=False)

    def __post_init__(self) -> None:
        config_of(self.size)
        object.__setattr__(self, "candidates", parsed(self.engines))
        counts = (*self.streams, *self.contexts, self.threads, self.rounds, self.tokens, self.prefix, self.message)
        if not all(1 <= count <= MAX_COUNT for count in (*counts, self.prefix_rounds, self.sessions)):
            raise UserError(f"counts from 1 to {MAX_COUNT}", str(counts), "correct the plan")
        existing_model(Path(self.sessions_model))

    @property
    def ours(self) -> list[Candidate]:
        """The candidates of t2r."""
        return [candidate for candidate in self.candidates if candidate.engine == "t2r"]


def bench_serve(plan: ServePlan, note: Note = lambda _: None) -> dict[str, Any]:
    """Measure the plan; returns plain data for tables. A failed engine has the reason in its row.

    Raises:
        CheckFailed: a t2r graph fails parity. UserError: an engine does not support the model.
    """
    started = time.perf_counter()
    rows: dict[str, list[dict[str, Any]]] = {"streams": []}
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        made = make_each(plan.candidates, lambda c, at: ENGINES[c.engine].make(c, plan.size, at), root, note)
        for count in plan.streams:
            note(f"{count} streams")
            rows["streams"] += _streams(plan, made, root, count, note)
        note(f"the first token after {plan.prefix} after a restart")
        rows["prefix"] = _prefix(plan, made, root)
        note("one stream, and a decoder without a server")
        rows["overhead"] = [row for candidate in plan.ours for row in _overhead(plan, candidate, made, root)]
        note(f"a step of {max(plan.streams)} rows, and of one")
        sides = batches.BatchPlan(
            engines=[c.name for c in plan.ours], size=plan.size, batches=(1, max(plan.streams)), rounds=plan.rounds
        )
        rows["steps"] = [row for c in plan.ours for row in batches.rows_of(sides, c, made[c.name], plan.threads)]
        note(f"{plan.sessions} sessions")
        rows["sessions"] = [_sessions(plan, root)]
    return {
        "format": SERVE,
        "machine": machine(),
        "size": plan.size,
        "threads": plan.threads,
        "prefix_tokens": plan.prefix,
        "message": plan.message,
        "rounds": plan.rounds,
        "seconds": time.perf_counter() - started,
        **rows,
    }


def texts_of(plan: ServePlan, count: int, tokens: int) -> list[list[int]]:
    """`count` different random texts of `tokens` token ids, from 3."""
    ids = np.random.default_rng(0).integers(3, config_of(plan.size).vocab_size, (count, tokens))
    return [text.tolist() for text in ids]


@contextlib.contextmanager
def _running(
    plan: ServePlan, made: dict[str, Files], rows: dict[str, dict[str, Any]], root: Path, place: Place
) -> Iterator[dict[str, Server]]:
    """A server for each candidate, by name; if one fails, its row has the reason."""
    with contextlib.ExitStack() as stack:
        found = {}
        for candidate in plan.candidates:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=root)))
            with kept(rows[candidate.name]):
                server = SERVERS[candidate.engine](made[candidate.name], replace(place, folder=folder))
                found[candidate.name] = stack.enter_context(server)
        yield found


def _streams(plan: ServePlan, made: dict[str, Files], root: Path, count: int, note: Note) -> list[dict[str, Any]]:
    """Rows for `count` streams: their total tokens per second and the server's memory, after each context length."""
    failed: dict[str, dict[str, Any]] = {c.name: {} for c in plan.candidates}
    lines: list[dict[str, Any]] = []
    context = max(plan.contexts) + plan.tokens + FEW
    place = Place(slots=count, context=context, threads=plan.threads, folder=root)
    with _running(plan, made, failed, root, place) as servers:
        for context in plan.contexts:
            note(f"{count} streams, after {context} tokens each")
            rows = {name: {"name": name, "streams": count, "context": context, **failed[name]} for name in failed}
            texts = texts_of(plan, count, context)
            for name, server in servers.items():
                with kept(rows[name]):
                    _asked(server, texts, 1)  # read once

            def turn(server: Server, texts: list[list[int]] = texts) -> list[float]:
                return [rate(_asked(server, texts, plan.tokens))]

            for name, rates in in_turn(servers, rows, plan.rounds, turn).items():
                rows[name] |= {**asdict(Spread.of(rates)), "resident": servers[name].resident()}
            lines += with_ratios(rows)
    return lines


def _asked(server: Server, texts: Sequence[Sequence[int]], tokens: int) -> list[list[float]]:
    """Times of the tokens of concurrent streams, one continuing each text.

    One more token is requested, and its time ignored: a server may save its states before it sends the last one.
    """
    return streams(server, [server.body(ids, tokens + 1, text) for text, ids in enumerate(texts)], tokens)


def _prefix(plan: ServePlan, made: dict[str, Files], root: Path) -> list[dict[str, Any]]:
    """Rows of milliseconds from a request to its first token, after a prefix that was read before a restart."""
    rows: dict[str, dict[str, Any]] = {c.name: {"name": c.name, "context": plan.prefix} for c in plan.candidates}
    texts = texts_of(plan, plan.prefix_rounds, plan.prefix + plan.message)
    context = plan.prefix + plan.message + FEW
    place = Place(slots=plan.prefix_rounds, context=context, threads=plan.threads, folder=root, keeps=True)
    with _running(plan, made, rows, root, place) as servers:
        left = {server: list(enumerate(texts)) for server in servers.values()}  # each text is used once per server
        for name, server in servers.items():
            with kept(rows[name]):
                _asked(server, [ids[: plan.prefix] for ids in texts], 1)
                for text in range(plan.prefix_rounds):
                    server.keep(text)

        def first(server: Server) -> list[float]:
            text, ids = left[server].pop()
            server.restart()
            before = time.perf_counter()
            server.recall(text)
            recalled = time.perf_counter() - before
            [[seconds]] = streams(server, [server.body(ids, 2, text)], 1)
            return [recalled + seconds]

        for name, seconds in in_turn(servers, rows, plan.prefix_rounds, first).items():
            rows[name] |= asdict(Spread.of(seconds).scaled(1e3))
    return with_ratios(rows)


def _overhead(plan: ServePlan, candidate: Candidate, made: dict[str, Files], root: Path) -> list[dict[str, Any]]:
    """Rows of milliseconds per token: of a decoder alone, and of one stream of a server."""
    files = made[candidate.name]
    alone, served = f"{candidate.name}, alone", f"{candidate.name}, one stream"
    rows: dict[str, dict[str, Any]] = {name: {"name": name} for name in (alone, served)}
    [text] = texts_of(plan, 1, FEW)
    tokens = plan.tokens * 2
    with tempfile.TemporaryDirectory(dir=root) as folder, contextlib.ExitStack() as stack:
        place = Place(slots=1, context=2 * FEW + tokens, threads=plan.threads, folder=Path(folder))
        server = stack.enter_context(SERVERS[candidate.engine](files, place))
        worker = stack.enter_context(Worker("t2r", files.path, plan.threads, FEW + tokens, dict(files.options or {})))
        worker.open()
        worker.place(FEW)

        def stream() -> list[float]:
            [times] = _asked(server, [text], tokens)
            return [float(gap) for gap in np.diff(times)[DISCARDED:]]

        work: dict[str, Callable[[], list[float]]] = {alone: lambda: worker.decode(tokens), served: stream}
        for name, seconds in in_turn(work, rows, plan.rounds, lambda each: each()).items():
            rows[name] |= asdict(Spread.of(seconds).scaled(1e3))
    return with_ratios(rows)


def _sessions(plan: ServePlan, root: Path) -> dict[str, Any]:
    """Memory and files of `plan.sessions` sessions of a small model, and the bytes of their states."""
    path = root / "sessions.onnx"
    export(checkpoint.load(Path(plan.sessions_model)), path, ExportConfig())
    slots = max(plan.streams)
    place = Place(slots=slots, context=FEW, threads=plan.threads, folder=root / "sessions", keeps=True)
    with T2RServer(Files(path, path.stat().st_size), place) as server:

        def keep(first: int, last: int) -> tuple[int, int]:
            for start in range(first, last, slots):
                some = range(start, min(start + slots, last))
                bodies = [server.body([3 + text % 7] * FEW, 0, text) for text in some]
                streams(server, bodies, 0)
            return int(server.metric("t2r_kept_bytes")), server.resident()

        warm = int(plan.sessions * WARM)
        (before, small), (after, large) = keep(0, warm), keep(warm, plan.sessions)
        written = sum(file.stat().st_size for file in (place.folder / "keep").rglob("*.state"))
    return {
        "name": Path(plan.sessions_model).parent.name,
        "sessions": plan.sessions,
        "state_bytes": after // plan.sessions,
        "memory_ratio": (large - small) / (after - before),  # memory per additional session, relative to its states
        "file_ratio": written / after,
    }
