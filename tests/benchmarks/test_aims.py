"""Results are compared with aims; missing results give empty cells."""

from __future__ import annotations

from typing import Any

from comparison.aims import GENAI, LLAMA, aims_table

FORMS = {
    "default": "t2r:w4",
    "fast": "t2r:w4:block=128",
    "own": "t2r:w4:provider=t2r",
    "own_matched": "t2r:w4:head_bits=4:provider=t2r",
}
DEFAULT, FAST, OWN, MATCHED = (f"{form}:prefill=1" for form in FORMS.values())


def step(name: str, context: int, median: float, resident: int = 0) -> dict[str, Any]:
    return {"name": name, "threads": 2, "context": context, "median": median, "resident": resident}


def batch(name: str, count: int, gain: float) -> dict[str, Any]:
    return {"name": f"{name}:batch=any", "threads": 2, "batch": count, "gain": gain}


RESULTS = {
    "decode.json": {
        "steps": [
            *(step(DEFAULT, 16, 3.0, 260), step(MATCHED, 16, 2.5, 200), step(FAST, 16, 2.7, 180)),
            *(step(GENAI, 16, 3.0), step(LLAMA, 8192, 9.0, 400), step(DEFAULT, 8192, 3.0, 260)),
            *(step(DEFAULT, 100_000, 3.03), step(LLAMA, 16, 9.0, 250), step(OWN, 16, 1.5, 150)),
        ],
        "prompts": [
            {"name": FAST, "threads": 2, "tokens": 512, "median": 1400.0},
            {"name": LLAMA, "threads": 2, "tokens": 512, "median": 1000.0},
        ],
        "limits": [
            {"name": "t2r:float32:prefill=1", "threads": 2, "distance": 1.1},
            {"name": "t2r:float32:provider=t2r:prefill=1", "threads": 2, "distance": 1.3},
        ],
        "candidates": [{"name": MATCHED, "file_bytes": 51}, {"name": LLAMA, "file_bytes": 50}],
    },
    "starts.json": {
        "starts": [{"name": name, "threads": 2, "median": s} for name, s in ((DEFAULT, 0.5), (FAST, 0.4), (GENAI, 0.4))]
    },
    "batch.json": {
        "batches": [batch("t2r:w4", 16, 5.0), batch("t2r:w4:block=128", 16, 8.5), batch("t2r:w4", 64, 12.0)]
    },
    "export.json": {"export": [{"name": "t2r:w4", "seconds": 2.0}, {"name": GENAI, "seconds": 5.0}]},
}


def test_aim_cells() -> None:
    table = aims_table(RESULTS, FORMS)
    assert table.head[0] == "aim" and len(table.head) == 1 + len(FORMS)
    cells: dict[str, list[list[str]]] = {}
    for text, *found in table.rows:
        cells.setdefault(text.split(":")[0], []).append(found)
    assert cells["step against onnxruntime-genai int4, 16 tokens read"] == [["", "0.90, missed", "", "0.83, met"]]
    assert cells["the same, the default"] == [["1.00, met", "", "0.50, met", ""], ["0.33, met", "", "0.17, met", ""]]
    assert cells["the same, 8,192"] == [[""] * 4, ["0.33, missed", "", "", ""], ["0.65, missed", "", "", ""]]
    assert cells["step at 100,000 against 16"] == [["1.01, met", "", "", ""]]
    assert cells["prompts of 512 against llama.cpp"] == [["", "1.40, missed", "", ""]]
    assert cells["start against genai"] == [["1.25, missed", "1.00, met", "", ""]]
    assert cells["file against llama.cpp Q4_0"] == [["", "", "", "1.02, met"]]
    resident = ["1.04, missed", "0.72, met", "0.60, met", "0.80, met"]
    assert cells["memory against llama.cpp Q4_0, 16 tokens read"] == [resident]
    assert cells["batch 16"] == [["5.00, missed", "8.50, met", "", ""]]
    assert cells["batch 64"] == [["12.00, missed", "", "", ""]]
    assert cells["export against genai's builder"] == [["0.40, met", "", "", ""]]
    assert cells["the same, float32"] == [["1.10, met", "", "1.30, missed", ""]]


def test_aims_without_results() -> None:
    assert all(not any(cells) for _, *cells in aims_table({}, FORMS).rows)
