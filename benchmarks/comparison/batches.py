"""Throughput of t2r graphs by batch size; each batch size runs in its own process, in turns."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from comparison.decode import Note, in_turn, kept, make_all
from comparison.engines import Candidate, Files, parse
from comparison.sizes import config_of
from comparison.tables import BATCH
from comparison.timing import machine
from comparison.worker import Worker
from t2r_export.providers.bench import Spread
from t2r_runtime.errors import UserError

CONTEXT = 16
MAX_BATCH = 1 << 12


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """Options of `bench_batches`; graphs have a dynamic batch."""

    engines: Sequence[str]
    size: str = "smollm-135m"
    batches: Sequence[int] = (1, 4, 16, 64)
    threads: Sequence[int] = (2,)
    rounds: int = 9
    tokens: int = 10  # per turn
    candidates: list[Candidate] = field(init=False)

    def __post_init__(self) -> None:
        config_of(self.size)
        if any(parse(text).engine != "t2r" for text in self.engines):
            raise UserError("graphs of t2r, which many sequences share", ", ".join(self.engines), "name t2r's forms")
        candidates = [parse(text if "batch=" in text else f"{text}:batch=any") for text in self.engines]
        object.__setattr__(self, "candidates", candidates)
        if not self.batches or not all(1 <= batch <= MAX_BATCH for batch in self.batches):
            raise UserError(f"batches from 1 to {MAX_BATCH}", str(list(self.batches)), "correct them")


def bench_batches(plan: BatchPlan, note: Note = lambda _: None) -> dict[str, Any]:
    """Measure the plan; returns plain data.

    Raises:
        CheckFailed: a graph does not match the model. UserError: no such graph.
    """
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        files = make_all(plan.candidates, plan.size, Path(place), note)
        for threads in plan.threads:
            for candidate in plan.candidates:
                note(f"{threads} threads, {candidate.name}")
                rows += rows_of(plan, candidate, files[candidate.name], threads)
    return {
        "format": BATCH,
        "machine": machine(),
        "size": plan.size,
        "rounds": plan.rounds,
        "tokens": plan.tokens,
        "batches": rows,
    }


def rows_of(plan: BatchPlan, candidate: Candidate, files: Files, threads: int) -> list[dict[str, Any]]:
    """A row per batch size: milliseconds per step, total tokens per second, gain over the first."""
    rows: dict[str, dict[str, Any]] = {
        str(batch): {"name": candidate.name, "threads": threads, "batch": batch} for batch in plan.batches
    }
    with contextlib.ExitStack() as stack:
        workers = {}
        for key, row in rows.items():
            with kept(row):
                worker = Worker("t2r", files.path, threads, CONTEXT, {**(files.options or {}), "batch": row["batch"]})
                workers[key] = stack.enter_context(worker)
                worker.open()
                worker.place(CONTEXT)
        for key, values in in_turn(workers, rows, plan.rounds, lambda worker: worker.decode(plan.tokens)).items():
            with kept(rows[key]):
                rows[key] |= {**asdict(Spread.of(values).scaled(1e3)), **workers[key].memory()}
    measured = [row for row in rows.values() if "median" in row]
    for row in measured:
        row["tokens_per_second"] = 1e3 * row["batch"] / row["median"]
        row["gain"] = row["tokens_per_second"] / measured[0]["tokens_per_second"]
    return list(rows.values())
