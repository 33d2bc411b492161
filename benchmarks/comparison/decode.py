"""Compare decoders of the same size: time per token by context length, prompts, memory, start-up, bandwidth limit.

Every candidate runs in its own process. At each length all are opened and placed, then decode in turns, in another
random order each round; one works while the others sleep. All t2r graphs must pass parity first.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from comparison.bandwidth import bandwidth
from comparison.engines import Candidate, Files, make, parse, require_installed
from comparison.sizes import config_of
from comparison.tables import DECODE
from comparison.timing import machine
from comparison.worker import DISCARDED, Worker
from t2r_export.providers.bench import SETTLE, Spread, turns
from t2r_runtime.errors import UserError

FIRST_PROMPT = 16  # tokens of the prompt before the first token
MAX_TOKENS = 1 << 20

CONTEXTS = (16, 128, 1024, 4096, 8192, 100_000)
PROMPTS = (512, 4096)

W = TypeVar("W")
Note = Callable[[str], object]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Options of `bench_decode`."""

    engines: Sequence[str]
    size: str = "smollm-135m"
    threads: Sequence[int] = (2,)
    contexts: Sequence[int] = CONTEXTS
    rounds: int = 9
    tokens: int = 20  # per turn
    prompts: Sequence[int] = PROMPTS
    prompt_rounds: int = 3
    turn_contexts: Sequence[int] = ()  # context lengths before a chat message
    turn_tokens: int = 64  # of the message
    starts: int = 5
    longest_cache: int = 8192  # maximum context of candidates with a growing cache
    candidates: list[Candidate] = field(init=False)

    def __post_init__(self) -> None:
        config_of(self.size)
        object.__setattr__(self, "candidates", [parse(text) for text in self.engines])
        if len(set(self.engines)) != len(self.engines) or not self.engines:
            raise UserError("engines, each once", ", ".join(self.engines) or "none", "write `again` after a control")
        counts = (*self.threads, *self.contexts, *self.prompts, *self.turn_contexts, self.rounds, self.tokens)
        if not all(1 <= count <= MAX_TOKENS for count in counts):
            raise UserError(f"counts from 1 to {MAX_TOKENS}", str(counts), "correct the plan")
        require_installed(self.candidates)

    def takes(self, candidate: Candidate, tokens: int) -> bool:
        """Whether the candidate supports that many tokens."""
        end = config_of(self.size).max_positions
        return tokens <= (end or MAX_TOKENS * 2) and (candidate.constant or tokens <= self.longest_cache + self.room)

    @property
    def room(self) -> int:
        """Positions that a turn needs."""
        return self.tokens + DISCARDED


def bench_decode(plan: Plan, note: Note = lambda _: None, folder: Path | None = None) -> dict[str, Any]:
    """Measure the plan; returns plain data for tables and plots. A failed engine has the reason in its row.

    Raises:
        CheckFailed: a t2r graph fails parity. UserError: an engine does not support the model.
    """
    started = time.perf_counter()
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in ("steps", "prompts", "turns", "starts", "bandwidth")}
    with tempfile.TemporaryDirectory(dir=folder) as place:
        files = make_all(plan.candidates, plan.size, Path(place), note)
        for threads in plan.threads:
            speeds = [bandwidth(threads)]
            for context in plan.contexts:
                note(f"{threads} threads, {context} tokens")
                rows["steps"] += _steps(plan, files, threads, context)
                speeds.append(bandwidth(threads))
            for tokens in plan.prompts:
                note(f"{threads} threads, prompts of {tokens}")
                rows["prompts"] += _prompts(plan, files, threads, tokens)
            for context in plan.turn_contexts:
                note(f"{threads} threads, {plan.turn_tokens} tokens after {context}")
                rows["turns"] += _turns(plan, files, threads, context)
            note(f"{threads} threads, starts")
            rows["starts"] += _starts(plan, files, threads)
            middle = Spread.of([speed.bytes_per_second for speed in speeds])
            rows["bandwidth"].append({"threads": threads, "form": speeds[0].form, **asdict(middle)})
    return {
        "format": DECODE,
        "machine": machine(),
        "size": plan.size,
        "rounds": plan.rounds,
        "tokens": plan.tokens,
        "turn_tokens": plan.turn_tokens,
        "seconds": time.perf_counter() - started,
        "candidates": [_candidate(c, files[c.name]) for c in plan.candidates],
        **rows,
        "limits": limits(rows, files),
    }


def make_all(candidates: Sequence[Candidate], size: str, folder: Path, note: Note) -> dict[str, Files]:
    """Write the files of all candidates for a model size; returns them by name."""
    return make_each(candidates, lambda candidate, place: make(candidate, size, place), folder, note)


def make_each(
    candidates: Sequence[Candidate], make: Callable[[Candidate, Path], Files], folder: Path, note: Note
) -> dict[str, Files]:
    """Files by candidate name; controls share the files of the candidate they repeat."""
    made: dict[tuple[str, ...], Files] = {}
    for number, candidate in enumerate(candidates):
        if candidate.files_key not in made:
            note(f"making {candidate.name}")
            place = folder / str(number)
            place.mkdir()
            made[candidate.files_key] = make(candidate, place)
    return {candidate.name: made[candidate.files_key] for candidate in candidates}


def limits(rows: dict[str, list[dict[str, Any]]], files: dict[str, Files]) -> list[dict[str, Any]]:
    """For each t2r graph: bytes per token, bandwidth floor, and distance of the step at the first length."""
    found = []
    for speed in rows["bandwidth"]:
        seen = set()
        for step in rows["steps"]:
            token = files[step["name"]].token_bytes
            if step["threads"] != speed["threads"] or token is None or step["name"] in seen or "median" not in step:
                continue
            seen.add(step["name"])
            floor = 1e3 * token.floor(speed["median"])
            found.append(
                {
                    "name": step["name"],
                    "threads": step["threads"],
                    "context": step["context"],
                    "weight_bytes": token.weights,
                    "state_bytes": token.states,
                    "floor": floor,
                    "median": step["median"],
                    "distance": step["median"] / floor,
                }
            )
    return found


def _steps(plan: Plan, files: dict[str, Files], threads: int, context: int) -> list[dict[str, Any]]:
    """Rows of one length: milliseconds per token, and memory of the process."""
    return _side_by_side(
        plan,
        files,
        {"threads": threads, "context": context},
        room=context + plan.room,
        prepare=lambda worker: worker.place(context),
        rounds=plan.rounds,
        work=lambda worker: worker.decode(plan.tokens),
        spread=lambda seconds: Spread.of(seconds).scaled(1e3),
    )


def _prompts(plan: Plan, files: dict[str, Files], threads: int, tokens: int) -> list[dict[str, Any]]:
    """Rows of one prompt length: tokens per second."""
    return _side_by_side(
        plan,
        files,
        {"threads": threads, "tokens": tokens},
        room=tokens + 1,
        prepare=lambda worker: worker.read(FIRST_PROMPT),
        rounds=plan.prompt_rounds,
        work=lambda worker: [worker.read(tokens)],
        spread=lambda seconds: Spread.of(seconds).inverse(tokens),
    )


def _turns(plan: Plan, files: dict[str, Files], threads: int, context: int) -> list[dict[str, Any]]:
    """Rows of one length: milliseconds from a chat message to the first token of the answer."""

    def first(worker: Worker) -> None:
        worker.place(context)
        worker.turn(plan.turn_tokens)  # warm-up: opens the prefill graph

    return _side_by_side(
        plan,
        files,
        {"threads": threads, "context": context},
        room=context + plan.turn_tokens + DISCARDED,
        prepare=first,
        rounds=plan.rounds,
        work=lambda worker: [worker.turn(plan.turn_tokens)],
        spread=lambda seconds: Spread.of(seconds).scaled(1e3),
    )


def _side_by_side(
    plan: Plan,
    files: dict[str, Files],
    about: dict[str, int],
    room: int,
    prepare: Callable[[Worker], object],
    rounds: int,
    work: Callable[[Worker], list[float]],
    spread: Callable[[list[float]], Spread],
) -> list[dict[str, Any]]:
    """Rows of all candidates that support `room` tokens: opened and prepared together, then measured in turns."""
    openings = {
        c.name: functools.partial(_worker, c, files, about["threads"], room)
        for c in plan.candidates
        if plan.takes(c, room)
    }
    return [row | about for row in side_by_side(openings, prepare, rounds, work, spread)]


def side_by_side(
    openings: Mapping[str, Callable[[], Worker]],
    prepare: Callable[[Worker], object],
    rounds: int,
    work: Callable[[Worker], list[float]],
    spread: Callable[[list[float]], Spread],
) -> list[dict[str, Any]]:
    """Rows of engines by name: workers are made and prepared together, then measured in turns."""
    rows: dict[str, dict[str, Any]] = {name: {"name": name} for name in openings}
    with contextlib.ExitStack() as stack:
        workers = {}
        for name, opening in openings.items():
            with kept(rows[name]):
                worker = stack.enter_context(opening())
                worker.open()
                prepare(worker)
                workers[name] = worker
        for name, seconds in in_turn(workers, rows, rounds, work).items():
            with kept(rows[name]):
                rows[name] |= {**asdict(spread(seconds)), **workers[name].memory()}
    return with_ratios(rows)


def _starts(plan: Plan, files: dict[str, Files], threads: int) -> list[dict[str, Any]]:
    """Rows of seconds from process start to the first token."""

    def first_token(candidate: Candidate) -> None:
        with _worker(candidate, files, threads, FIRST_PROMPT + plan.room) as worker:
            worker.open()
            worker.first_token(FIRST_PROMPT)

    return start_rows(plan.candidates, threads, plan.starts, first_token)


def start_rows(
    candidates: Sequence[Candidate], threads: int, rounds: int, start: Callable[[Candidate], None]
) -> list[dict[str, Any]]:
    """Rows of the seconds that `start` takes per candidate, in turns; files are in the page cache."""
    rows: dict[str, dict[str, Any]] = {c.name: {"name": c.name, "threads": threads} for c in candidates}
    named = {c.name: c for c in candidates}
    seconds: dict[str, list[float]] = {name: [] for name in named}
    for name in turns(list(named), rounds):
        if "error" in rows[name]:
            continue
        with kept(rows[name]):
            before = time.perf_counter()
            start(named[name])
            seconds[name].append(time.perf_counter() - before)
    for name, values in seconds.items():
        if values and "error" not in rows[name]:
            rows[name] |= asdict(Spread.of(values))
    return with_ratios(rows)


def in_turn(
    workers: dict[str, W],
    rows: dict[str, dict[str, Any]],
    rounds: int,
    work: Callable[[W], list[float]],
    repeats: int = 0,
) -> dict[str, list[float]]:
    """Measurements of `work` per worker over all rounds; failed workers are excluded.

    The rounds are repeated up to `repeats` times, until the quartiles of each worker are within 5 % of its median.
    """
    values: dict[str, list[float]] = {name: [] for name in workers}
    for place, name in enumerate(turns(list(workers), rounds * (1 + repeats))):
        if place and place % (rounds * len(workers)) == 0 and all(map(is_steady, filter(None, values.values()))):
            break
        if "error" not in rows[name]:
            time.sleep(SETTLE)
            with kept(rows[name]):
                values[name] += work(workers[name])
    return {name: found for name, found in values.items() if found and "error" not in rows[name]}


def is_steady(values: Sequence[float]) -> bool:
    """Whether the quartiles are at most 5 % of the median apart."""
    low, median, high = np.percentile(values, [25, 50, 75])
    return bool(high - low <= 0.05 * median)


@contextlib.contextmanager
def kept(row: dict[str, Any]) -> Iterator[None]:
    """Context that writes a UserError of an engine into its row."""
    try:
        yield
    except UserError as error:
        row["error"] = error.received


def _worker(candidate: Candidate, files: dict[str, Files], threads: int, capacity: int) -> Worker:
    made = files[candidate.name]
    return Worker(candidate.engine, made.path, threads, capacity, made.options)


def with_ratios(rows: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows with the ratio of their median to the first."""
    measured = [row for row in rows.values() if "median" in row]
    for row in measured:
        row["ratio"] = row["median"] / measured[0]["median"]
    return list(rows.values())


def _candidate(candidate: Candidate, files: Files) -> dict[str, Any]:
    return {"name": candidate.name, "engine": candidate.engine, "form": candidate.form, "file_bytes": files.bytes}
