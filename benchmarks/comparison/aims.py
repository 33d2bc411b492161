"""Speed aims and the results of `make bench`: a table of docs/performance.md.

Figures refer to the plan's forms of t2r graphs: `form` is its step graph, `form:prefill=1` adds a prefill graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from comparison.tables import Table

THREADS = 2
FILES = {"decode.json", "starts.json", "batch.json", "export.json"}  # results with figures
FORMS = {  # of the plan → column
    "default": "default",
    "fast": "fast form",
    "own": "default, own provider",
    "own_matched": "blocks and head as theirs, own provider",
}
Results = Mapping[str, Mapping[str, Any]]  # by file name, as in FILES
Figure = Callable[[Results, str], float]  # of a form
GENAI, LLAMA = "genai:int4", "llama.cpp:Q4_0"


@dataclass(frozen=True)
class Aim:
    """An upper or lower bound for a figure."""

    text: str
    bound: float
    figure: Figure
    most: bool = True  # upper bound
    forms: tuple[str, ...] = tuple(FORMS)  # forms with this aim

    def cell(self, results: Results, form: str) -> str:
        try:
            figure = self.figure(results, form)
        except LookupError:  # not measured
            return ""
        met = figure <= self.bound if self.most else figure >= self.bound
        return f"{figure:.2f}, {'met' if met else 'missed'}"


def _median(rows: list[Mapping[str, Any]], key: str = "median", **wanted: Any) -> float:
    for row in rows:
        if row.items() >= wanted.items() and key in row:
            return float(row[key])
    raise LookupError("not measured")


def _figure(kind: str, name: str, key: str = "median", file: str = "decode.json", **wanted: Any) -> Figure:
    """A figure from a row of `file`; {} in `name` is replaced by the form."""
    return lambda results, form: _median(results[file][kind], key, name=name.format(form), **wanted)


def _over(ours: Figure, theirs: Figure) -> Figure:
    return lambda results, form: ours(results, form) / theirs(results, form)


def _step(name: str, context: int, key: str = "median") -> Figure:
    return _figure("steps", name, key, threads=THREADS, context=context)


def _against(other: str, context: int, key: str = "median") -> Figure:
    return _over(_step(OURS, context, key), _step(other, context, key))


def _prompts(other: str, tokens: int) -> Figure:
    ours, theirs = (_figure("prompts", name, threads=THREADS, tokens=tokens) for name in (OURS, other))
    return _over(ours, theirs)


def _start(name: str) -> Figure:
    return _figure("starts", name, file="starts.json", threads=THREADS)


def _gain(batch: int) -> Figure:
    return _figure("batches", "{}:batch=any", "gain", "batch.json", threads=THREADS, batch=batch)


def _seconds(name: str) -> Figure:
    return _figure("export", name, "seconds", "export.json")


OURS = "{}:prefill=1"
DISTANCE = _figure("limits", OURS, "distance", threads=THREADS)
EVEN, DEFAULT, BATCHED = ("fast", "own_matched"), ("default", "own"), ("default", "fast", "own")
AIMS = (
    Aim("step against onnxruntime-genai int4, 16 tokens read: at most 0.85", 0.85, _against(GENAI, 16), forms=EVEN),
    Aim("the same, the default: at most 1.00", 1.0, _against(GENAI, 16), forms=DEFAULT),
    Aim("the same, 1,024: at most 0.40", 0.4, _against(GENAI, 1024)),
    Aim("the same, 8,192: at most 0.10", 0.1, _against(GENAI, 8192)),
    Aim("step against llama.cpp Q4_0, 16 tokens read: at most 0.85", 0.85, _against(LLAMA, 16), forms=EVEN),
    Aim("the same, the default: at most 1.00", 1.0, _against(LLAMA, 16), forms=DEFAULT),
    Aim("the same, 1,024: at most 0.40", 0.4, _against(LLAMA, 1024)),
    Aim("the same, 8,192: at most 0.10", 0.1, _against(LLAMA, 8192)),
    Aim("step at 100,000 against 16: at most 1.02", 1.02, _over(_step(OURS, 100_000), _step(OURS, 16))),
    Aim("prompts of 512 against llama.cpp: at least 1.5 times the tokens", 1.5, _prompts(LLAMA, 512), most=False),
    Aim("the same against genai: at least 2.2", 2.2, _prompts(GENAI, 512), most=False),
    Aim("start against genai: at most 1.00", 1.0, _over(_start(OURS), _start(GENAI)), forms=BATCHED),
    Aim("the same against llama.cpp: at most 1.20", 1.2, _over(_start(OURS), _start(LLAMA)), forms=BATCHED),
    Aim(
        "file against llama.cpp Q4_0: at most 1.03",
        1.03,
        _over(_figure("candidates", OURS, "file_bytes"), _figure("candidates", LLAMA, "file_bytes")),
        forms=("own_matched",),
    ),
    Aim("memory against llama.cpp Q4_0, 16 tokens read: at most 1.00", 1.0, _against(LLAMA, 16, "resident")),
    Aim("the same, 8,192: at most 0.50", 0.5, _against(LLAMA, 8192, "resident")),
    Aim("batch 16: at least 8 times the tokens a second of batch 1", 8.0, _gain(16), most=False, forms=BATCHED),
    Aim("batch 64: at least 16 times", 16.0, _gain(64), most=False, forms=BATCHED),
    Aim(
        "export against genai's builder: at most 0.4 of its time",
        0.4,
        _over(_seconds("{}"), _seconds(GENAI)),
        forms=("default", "fast"),
    ),
    Aim("step against the bandwidth limit, 4 bits: at most 1.5", 1.5, DISTANCE),
)
FLOAT32 = Aim("the same, float32: at most 1.25", 1.25, DISTANCE)
WHOLE = {"default": "t2r:float32", "own": "t2r:float32:provider=t2r"}  # forms in float32


def aims_table(results: Results, forms: Mapping[str, str]) -> Table:
    """Table of all aims; `forms` maps names of the plan to candidates."""
    rows = [
        [aim.text, *(aim.cell(results, forms[name]) if name in aim.forms else "" for name in FORMS)] for aim in AIMS
    ]
    rows.append([FLOAT32.text, *(FLOAT32.cell(results, WHOLE[name]) if name in WHOLE else "" for name in FORMS)])
    return Table("what we aim at, and where it stands", ["aim", *FORMS.values()], rows)
