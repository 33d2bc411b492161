"""A result is held against each aim; what was not measured says nothing."""

from __future__ import annotations

from typing import Any

from comparison.aims import GENAI, LLAMA, aims_table

FORMS = {"default": "t2r:w4", "fast": "t2r:w4:block=128"}
DEFAULT, FAST = (f"{form}:prefill=1" for form in FORMS.values())


def step(name: str, context: int, median: float) -> dict[str, Any]:
    return {"name": name, "threads": 2, "context": context, "median": median}


RESULTS = {
    "decode.json": {
        "steps": [step(DEFAULT, 16, 3.0), step(FAST, 16, 2.0), step(GENAI, 16, 3.0), step(DEFAULT, 100_000, 3.03)],
        "prompts": [
            {"name": FAST, "threads": 2, "tokens": 512, "median": 1400.0},
            {"name": LLAMA, "threads": 2, "tokens": 512, "median": 1000.0},
        ],
        "limits": [{"name": "t2r:float32:prefill=1", "threads": 2, "distance": 1.1}],
    },
    "batch.json": {
        "batches": [
            {"name": f"{name}:batch=any", "threads": 2, "batch": 16, "gain": gain}
            for name, gain in zip(FORMS.values(), (5.0, 6.5), strict=True)
        ]
    },
    "export.json": {"export": [{"name": "t2r:w4", "seconds": 2.0}, {"name": GENAI, "seconds": 5.0}]},
}


def test_each_aim_is_met_missed_or_not_measured() -> None:
    table = aims_table(RESULTS, FORMS)
    rows = {row[0]: row[1:] for row in table.rows}
    found = {text.split(":")[0]: cells for text, cells in rows.items()}
    assert found["step against onnxruntime-genai int4, 16 tokens read"] == ["1.00, missed", "0.67, met"]
    assert found["step against llama.cpp Q4_0, 16 tokens read"] == ["", ""]
    assert found["step at 100,000 against 16"] == ["1.01, met", ""]
    assert found["prompts of 512 against llama.cpp"] == ["", "1.40, met"]
    assert found["batch 16"] == ["5.00, missed", "6.50, met"]
    assert found["export against genai's builder"] == ["0.40, met", ""]
    assert found["the same, float32"] == ["1.10, met", ""]


def test_nothing_measured_is_a_table_of_nothing() -> None:
    assert all(cells == ["", ""] for _, *cells in aims_table({}, FORMS).rows)
