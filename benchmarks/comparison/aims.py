"""What this project aims at in speed, and where the results of `make bench` stand: a table of docs/performance.md.

A figure is of one of our forms as the plan names them: `form` alone is its step graph, `form:prefill=1` that with a
prefill graph beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from comparison.tables import Table

THREADS = 2
FILES = {"decode.json", "batch.json", "export.json"}  # that figures are taken from
Results = Mapping[str, Mapping[str, Any]]  # by the name of the file: decode.json, batch.json, export.json
GENAI, LLAMA = "genai:int4", "llama.cpp:Q4_0"


@dataclass(frozen=True)
class Aim:
    """A figure of one of our forms that should be at most, or at least, a number."""

    text: str
    bound: float
    most: bool
    figure: Callable[[Results, str], float]

    def cell(self, results: Results, form: str) -> str:
        try:
            figure = self.figure(results, form)
        except LookupError:  # not measured
            return ""
        met = figure <= self.bound if self.most else figure >= self.bound
        return f"{figure:.2f}, {'met' if met else 'missed'}"


def _step(results: Results, name: str, context: int) -> float:
    return _median(results["decode.json"]["steps"], name=name, threads=THREADS, context=context)


def _median(rows: list[Mapping[str, Any]], key: str = "median", **wanted: Any) -> float:
    for row in rows:
        if row.items() >= wanted.items() and key in row:
            return float(row[key])
    raise LookupError("not measured")


def _against(other: str, context: int) -> Callable[[Results, str], float]:
    return lambda results, form: _step(results, _with_prefill(form), context) / _step(results, other, context)


def _prompts(other: str, tokens: int) -> Callable[[Results, str], float]:
    def figure(results: Results, form: str) -> float:
        rows = results["decode.json"]["prompts"]
        names = _with_prefill(form), other
        ours, theirs = (_median(rows, name=name, threads=THREADS, tokens=tokens) for name in names)
        return ours / theirs

    return figure


def _with_prefill(form: str) -> str:
    return f"{form}:prefill=1"


def _gain(results: Results, form: str) -> float:
    rows = results["batch.json"]["batches"]
    return _median(rows, "gain", name=f"{form}:batch=any", threads=THREADS, batch=16)


def _export(results: Results, form: str) -> float:
    rows = results["export.json"]["export"]
    return _median(rows, "seconds", name=form) / _median(rows, "seconds", name=GENAI)


def _distance(results: Results, form: str) -> float:
    return _median(results["decode.json"]["limits"], "distance", name=_with_prefill(form), threads=THREADS)


AIMS = (
    Aim("step against onnxruntime-genai int4, 16 tokens read: at most 0.70", 0.70, True, _against(GENAI, 16)),
    Aim("the same, 1,024: at most 0.45", 0.45, True, _against(GENAI, 1024)),
    Aim("the same, 8,192: at most 0.10", 0.10, True, _against(GENAI, 8192)),
    Aim("step against llama.cpp Q4_0, 16 tokens read: at most 1.00", 1.00, True, _against(LLAMA, 16)),
    Aim("the same, 1,024: at most 0.60", 0.60, True, _against(LLAMA, 1024)),
    Aim("the same, 8,192: at most 0.25", 0.25, True, _against(LLAMA, 8192)),
    Aim(
        "step at 100,000 against 16: at most 1.02",
        1.02,
        True,
        lambda results, form: _step(results, _with_prefill(form), 100_000) / _step(results, _with_prefill(form), 16),
    ),
    Aim("prompts of 512 against llama.cpp: at least 1.3 times the tokens", 1.3, False, _prompts(LLAMA, 512)),
    Aim("the same against genai: at least 2.5", 2.5, False, _prompts(GENAI, 512)),
    Aim("prompts of 4,096 against genai: at least 3", 3.0, False, _prompts(GENAI, 4096)),
    Aim("batch 16: at least 6 times the tokens a second of batch 1", 6.0, False, _gain),
    Aim("export against genai's builder: at most 0.5 of its time", 0.5, True, _export),
    Aim("step against the bandwidth limit, 4 bits: at most 1.6", 1.6, True, _distance),
)
FLOAT32 = Aim("the same, float32: at most 1.2", 1.2, True, _distance)


def aims_table(results: Results, forms: Mapping[str, str]) -> Table:
    """Each aim, with the forms `default` and `fast` of the plan."""
    columns = {"default": forms["default"], "fast form": forms["fast"]}
    rows = [[aim.text, *(aim.cell(results, form) for form in columns.values())] for aim in AIMS]
    rows.append([FLOAT32.text, FLOAT32.cell(results, "t2r:float32"), ""])
    return Table("what we aim at, and where it stands", ["aim", *columns], rows)
