"""Compare translators: sentences per second, time per token by length, memory, start-up. Parity is checked first.

Every candidate runs in its own process. In each setting all are opened and translate everything once as a warm-up, then
in turns, in another random order each round. Sentences are sorted by length to reduce padding.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from comparison.decode import Note, in_turn, kept, make_each, start_rows, with_ratios
from comparison.engines import Candidate, Files, parse, require_installed
from comparison.tables import TRANSLATE
from comparison.timing import machine
from comparison.translator_runners import Tokens, Worker
from comparison.translators import ENGINES, Models, make, of_teacher, test_sources
from t2r_export.config.recipe import read_recipe
from t2r_export.errors import CheckFailed
from t2r_export.paths import existing_model
from t2r_export.providers.bench import Spread
from t2r_runtime.errors import UserError

MAX_COUNT = 1 << 16
CHECKED_BATCH = 32
ROUNDING = 0.02  # share of greedy translations that may differ between engines in float32, by near ties


@dataclass(frozen=True, kw_only=True)
class TranslatePlan:
    """Options of `bench_translate`."""

    engines: Sequence[str]
    recipe: str  # its pairs have the sentences
    teacher: str  # softmax
    student: str
    sentences: int = 64  # per turn
    checked: int = 320  # sentences of the parity check
    beams: Sequence[int] = (1, 4)
    batches: Sequence[int] = (1, 32)
    threads: Sequence[int] = (1, 2)  # lengths and starts use the first
    rounds: int = 5
    lengths: Sequence[int] = (16, 64, 256, 1024, 4096)  # of a greedy translation
    length_rounds: int = 3
    starts: int = 3
    candidates: list[Candidate] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "candidates", [parse(text, ENGINES) for text in self.engines])
        if len(set(self.engines)) != len(self.engines) or not self.engines:
            raise UserError("engines, each once", ", ".join(self.engines) or "none", "write `again` after a control")
        lists = (*self.beams, *self.batches, *self.threads, *self.lengths)
        counts = (*lists, self.sentences, self.checked, self.rounds, self.length_rounds)
        if not all(1 <= count <= MAX_COUNT for count in counts) or not self.threads:
            raise UserError(f"counts from 1 to {MAX_COUNT}", str(counts), "correct the plan")
        read_recipe(Path(self.recipe))
        for path in (self.teacher, self.student):
            try:
                existing_model(Path(path))
            except UserError as error:
                built = f"t2r build {self.recipe} --work FOLDER makes one, or name another in the plan"
                raise UserError(error.expected, error.received, built) from error
        require_installed(self.candidates, ENGINES)

    @property
    def positions(self) -> int:
        """Positions of the longest translation, start tokens included."""
        return max(self.lengths, default=0) + 2


def bench_translate(plan: TranslatePlan, note: Note = lambda _: None) -> dict[str, Any]:
    """Measure the plan; returns plain data for tables. A failed engine has the reason in its row.

    Raises:
        CheckFailed: a t2r graph fails parity, or translations of engines differ.
        UserError: an engine does not support the model.
    """
    started = time.perf_counter()
    models = Models.load(Path(plan.teacher), Path(plan.student), plan.positions)
    test = test_sources(Path(plan.recipe), models.teacher)
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in ("speeds", "lengths", "starts")}
    with tempfile.TemporaryDirectory() as place:
        files = make_each(plan.candidates, lambda candidate, at: make(candidate, models, at), Path(place), note)
        note("parity")
        same = parity(plan, files, chosen(test, plan.checked))
        sources = sorted(chosen(test, plan.sentences), key=len, reverse=True)
        middle = sources[len(sources) // 2]
        for threads in plan.threads:
            for width in plan.beams:
                for batch in plan.batches:
                    note(f"{threads} threads, beam {width}, batch {batch}")
                    rows["speeds"] += _speeds(plan, files, sources, threads, width, batch)
        threads = plan.threads[0]
        for length in plan.lengths:
            note(f"{threads} threads, {length} tokens")
            rows["lengths"] += _lengths(plan, files, middle, threads, length)
        if plan.starts:
            note(f"{threads} threads, starts")
            rows["starts"] += _starts(plan, files, middle, threads)
    return {
        "format": TRANSLATE,
        "machine": machine(),
        "size": Path(plan.recipe).parent.name,
        "sentences": len(sources),
        "rounds": plan.rounds,
        "seconds": time.perf_counter() - started,
        "candidates": [{"name": c.name, "file_bytes": files[c.name].bytes} for c in plan.candidates],
        "parity": same,
        **rows,
    }


def chosen(sources: Sequence[Tokens], count: int) -> list[Tokens]:
    """At most `count` sources, evenly spread."""
    count = min(count, len(sources))
    return [sources[i * len(sources) // count] for i in range(count)]


def parity(plan: TranslatePlan, files: Mapping[str, Files], sources: Sequence[Tokens]) -> list[dict[str, Any]]:
    """Rows per candidate and beam with the number of translations that differ from the first float32 candidate's.

    Raises:
        CheckFailed: more greedy float32 translations differ than rounding explains. UserError: an engine fails.
    """
    rows: list[dict[str, Any]] = []
    candidates = [c for c in plan.candidates if of_teacher(c)]
    for candidate in sorted(candidates, key=lambda c: c.form != "float32"):
        with _worker(candidate, files, plan.threads[0]) as worker:
            worker.open()
            for width in plan.beams:
                _, found = worker.translate(sources, width, CHECKED_BATCH)
                rows.append({"name": candidate.name, "beam": width, "sentences": len(sources), "found": found})
    first = {row["beam"]: row["found"] for row in reversed(rows)}
    for row in rows:
        pairs = zip(row.pop("found"), first[row["beam"]], strict=True)
        row["differ"] = sum(one != other for one, other in pairs)
        if row["name"].split(":")[1] == "float32" and row["beam"] == 1 and row["differ"] > ROUNDING * len(sources):
            raise CheckFailed(
                f"no speeds: {row['differ']} of {len(sources)} greedy translations of {row['name']} are not those of "
                f"{rows[0]['name']}"
            )
    return rows


def _speeds(
    plan: TranslatePlan, files: Mapping[str, Files], sources: Sequence[Tokens], threads: int, width: int, batch: int
) -> list[dict[str, Any]]:
    """Rows of sentences per second."""
    about = {"threads": threads, "beam": width, "batch": batch}
    return _side_by_side(plan, files, about, plan.rounds, sources, None)


def _lengths(
    plan: TranslatePlan, files: Mapping[str, Files], source: Tokens, threads: int, length: int
) -> list[dict[str, Any]]:
    """Rows of milliseconds per token of a greedy translation of that length."""
    about = {"threads": threads, "beam": 1, "batch": 1, "length": length}
    return _side_by_side(plan, files, about, plan.length_rounds, [source], length)


def _side_by_side(
    plan: TranslatePlan,
    files: Mapping[str, Files],
    about: Mapping[str, int],
    rounds: int,
    sources: Sequence[Tokens],
    length: int | None,
) -> list[dict[str, Any]]:
    """Rows of all candidates: sentences per second, or milliseconds per token with a forced length."""
    rows: dict[str, dict[str, Any]] = {c.name: {"name": c.name, **about} for c in plan.candidates}

    def translate(worker: Worker) -> tuple[float, list[Tokens]]:
        found: tuple[float, list[Tokens]] = worker.translate(sources, about["beam"], about["batch"], length)
        return found

    with contextlib.ExitStack() as stack:
        workers = {}
        for candidate in plan.candidates:
            row = rows[candidate.name]
            with kept(row):
                worker = stack.enter_context(_worker(candidate, files, about["threads"]))
                worker.open()
                row["tokens"] = sum(map(len, translate(worker)[1]))
                workers[candidate.name] = worker
        for name, seconds in in_turn(workers, rows, rounds, lambda worker: [translate(worker)[0]]).items():
            row, spread = rows[name], Spread.of(seconds)
            with kept(row):
                made = spread.inverse(len(sources)) if length is None else spread.scaled(1e3 / row["tokens"])
                row |= {**asdict(made), "tokens_per_second": row["tokens"] / spread.median, **workers[name].memory()}
    return with_ratios(rows)


def _starts(plan: TranslatePlan, files: Mapping[str, Files], source: Tokens, threads: int) -> list[dict[str, Any]]:
    """Rows of seconds from process start to the first translation."""

    def first_translation(candidate: Candidate) -> None:
        with _worker(candidate, files, threads) as worker:
            worker.open()
            worker.translate([source], 1, 1)

    return start_rows(plan.candidates, threads, plan.starts, first_translation)


def _worker(candidate: Candidate, files: Mapping[str, Files], threads: int) -> Worker:
    made = files[candidate.name]
    return Worker(candidate.engine, made.path, threads, made.options)
