"""Tables and plots of results, and the page they fill."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from comparison.aims import FILES, FORMS
from comparison.page import fill
from comparison.plots import draw, require_plots
from comparison.tables import DECODE, TRANSLATE, batch_table, decode_tables, export_table, read_result
from t2r_runtime.errors import UserError


def spread(median: float, **more: Any) -> dict[str, Any]:
    return {"median": median, "low": median - 1, "high": median + 1, "count": 3, "ratio": median / 2, **more}


RESULT: dict[str, Any] = {
    "format": DECODE,
    "machine": {"cpu": "A CPU", "cores": 2},
    "size": "tiny",
    "candidates": [{"name": name, "file_bytes": 3_000_000} for name in ("t2r:w4", "t2r:w4:again", "torch:softmax")],
    "steps": [
        {"name": "t2r:w4", "threads": 2, "context": 16, **spread(2.0, resident=5_000_000, peak=6_000_000)},
        {"name": "t2r:w4:again", "threads": 2, "context": 16, **spread(2.1, resident=5_000_000, peak=6_000_000)},
        {"name": "torch:softmax", "threads": 2, "context": 16, **spread(10.0, resident=8_000_000, peak=9_000_000)},
        {"name": "t2r:w4", "threads": 2, "context": 1024, **spread(2.0, resident=5_000_000, peak=6_000_000)},
        {"name": "torch:softmax", "threads": 2, "context": 1024, "error": "out of memory"},
    ],
    "prompts": [{"name": "t2r:w4", "threads": 2, "tokens": 512, **spread(700.0)}],
    "turns": [{"name": "t2r:w4", "threads": 2, "context": 4096, **spread(40.0)}],
    "turn_tokens": 64,
    "starts": [{"name": "t2r:w4", "threads": 2, **spread(2.0)}, {"name": "torch:softmax", "threads": 2}],
    "bandwidth": [{"threads": 2, "form": "a way", "median": 3e10, "low": 2e10, "high": 4e10, "count": 3}],
    "limits": [
        {
            "name": "t2r:w4",
            "threads": 2,
            "context": 16,
            "weight_bytes": 57_000_000,
            "state_bytes": 3_000_000,
            "floor": 2.0,
            "median": 4.0,
            "distance": 2.0,
        }
    ],
}


def test_decode_table_layout() -> None:
    table = decode_tables(RESULT)["steps-2"]
    assert table.title.startswith("tiny, 2 threads: ms a token")
    assert table.head == ["", "16", "1,024"]
    assert table.rows == [
        ["t2r:w4", "2.00 (1.00-3.00)", "2.00 (1.00-3.00)"],
        ["t2r:w4:again", "2.10 (1.10-3.10)", "-"],
        ["torch:softmax", "10.00 (9.00-11.00)", "failed: out of memory"],
    ]


def test_other_decode_tables() -> None:
    tables = decode_tables(RESULT)
    assert tables["ratios-2"].rows[2] == ["torch:softmax", "5.00", "failed: out of memory"]
    assert tables["memory-2"].rows[0] == ["t2r:w4", "5.0", "5.0"]
    assert tables["prompts-2"].rows == [["t2r:w4", "700 (699-701)"]]
    assert tables["starts-2"].rows == [
        ["t2r:w4", "2.00 (1.00-3.00)", "1.00", "3.0"],
        ["torch:softmax", "-", "-", "3.0"],
    ]
    assert "30.0 GB/s (20.0-40.0) read by a way" in tables["limit-2"].title
    assert tables["limit-2"].head[3:] == ["limit, ms", "GB/s after 16", "GB/s after 1,024"]
    assert tables["limit-2"].rows == [["t2r:w4", "57.0", "3.0", "2.00", "30", "30"]]


def test_no_prompts_no_prompt_table() -> None:
    assert "prompts-2" not in decode_tables({**RESULT, "prompts": []})


def test_tables_per_thread_count() -> None:
    result = copy.deepcopy(RESULT)
    for kind in ("steps", "starts", "bandwidth", "limits"):
        result[kind] += [{**row, "threads": 1} for row in RESULT[kind][:1]]
    tables = decode_tables(result)
    assert len(tables["steps-1"].rows) == 1
    assert "1 thread:" in tables["steps-1"].title
    assert len(tables["steps-2"].rows) == 3


def test_markdown() -> None:
    assert decode_tables(RESULT)["ratios-2"].markdown().splitlines()[:3] == [
        "|  | 16 | 1,024 |",
        "| --- | --- | --- |",
        "| t2r:w4 | 1.00 | 1.00 |",
    ]


def test_batches() -> None:
    row = {"name": "t2r:w4", "threads": 2, "batch": 4, **spread(8.0), "tokens_per_second": 500.0, "gain": 2.5}
    table = batch_table(
        {"size": "tiny", "batches": [row, {"name": "t2r:w4", "threads": 2, "batch": 64, "error": "no"}]}
    )
    assert table.rows[0] == ["t2r:w4", "2", "4", "8.00 (7.00-9.00)", "500", "2.50", "-"]
    assert table.rows[1] == ["t2r:w4", "2", "64", *["failed: no"] * 4]


def test_exports() -> None:
    row = {
        "name": "t2r:w4",
        "size": "tiny",
        "parameters": 1234,
        "seconds": 2.0,
        "low": 1.0,
        "high": 3.0,
        "ratio": 1.0,
        "peak_bytes": 200_000_000,
        "memory_ratio": 2.5,
        "file_bytes": 5_000_000,
    }
    expected = ["t2r:w4", "tiny", "1,234", "2.0 (1.0-3.0)", "1.00", "200", "2.50", "5.0"]
    assert export_table({"export": [row]}).rows == [expected]


DRAWN = ("t2r:w4", "torch:softmax")  # engines of RESULT, which also has t2r:w4:again


def test_plots(tmp_path: Path) -> None:
    written = draw(RESULT, tmp_path / "plots", DRAWN)
    assert sorted(path.name for path in written) == [
        f"{kind}-tiny-2.{end}" for kind in ("memory", "time") for end in ("png", "svg")
    ]
    svg = (tmp_path / "plots" / "time-tiny-2.svg").read_text()
    for text in ("t2r:w4<", "torch:softmax", "milliseconds per token", "tiny, 2 threads, A CPU"):
        assert text in svg
    assert "again" not in svg
    assert (tmp_path / "plots" / "memory-tiny-2.png").read_bytes().startswith(b"\x89PNG")


def test_plot_of_translations(tmp_path: Path) -> None:
    names = ("t2r:w4", "t2r:w4:model=teacher", "ctranslate2:int8")
    rows = [
        {"name": name, "threads": 2, "length": length, **spread(2.0, resident=5_000_000)}
        for name in names
        for length in (16, 256)
    ]
    machine = {"cpu": "A CPU"}
    draw({"format": TRANSLATE, "machine": machine, "size": "de-en", "lengths": rows}, tmp_path, names)
    svg = (tmp_path / "time-de-en-2.svg").read_text()
    for text in (*names, "tokens of the translation", "de-en, 2 threads, A CPU"):
        assert text in svg
    assert (tmp_path / "memory-de-en-2.png").exists()


def test_plot_is_reproducible(tmp_path: Path) -> None:
    first = [path.read_bytes() for path in draw(RESULT, tmp_path, DRAWN)]
    second = [path.read_bytes() for path in draw(RESULT, tmp_path, DRAWN)]
    assert first == second
    assert b"torch:softmax" in b"".join(first)
    assert b"t2r:w4:again" not in b"".join(first)


def test_file_in_place_of_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="a folder at .*file"):
        draw(RESULT, tmp_path / "file", DRAWN)


def test_missing_matplotlib_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"matplotlib, to draw; .*t2r-export\[plot\]"):
        require_plots()


def test_result_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(RESULT))
    assert read_result(path) == RESULT
    for text in ("{", "[]", '{"a": 1}'):
        path.write_text(text)
        with pytest.raises(UserError, match="a result of benchmarks/run.py in"):
            read_result(path)
    path.write_text('{"format": "other"}')
    with pytest.raises(UserError, match="a format of t2r-bench-decode, .*; received other"):
        read_result(path)
    with pytest.raises(UserError, match="No such file"):
        read_result(tmp_path / "none.json")


def test_page_placeholders_are_filled(tmp_path: Path) -> None:
    result = {**RESULT, "machine": {"cpu": "A CPU", "cores": 2, "memory_bytes": 8e9, "system": "Linux"}}
    result["machine"] |= dict.fromkeys(("python", "torch", "onnxruntime-genai", "llama-cpp-python"))
    result["machine"]["onnxruntime"] = "1.31.1"
    page = tmp_path / "page.md"
    page.write_text(
        "before\n<!-- table decode.json ratios-2 -->\nold\n<!-- end -->\nbetween\n<!-- table decode.json machine -->\n"
        "<!-- end -->\n<!-- table none.json x -->\nkept\n<!-- end -->\nafter\n<!-- table aims aims -->\n<!-- end -->\n"
    )
    for _ in range(2):  # filling is idempotent
        assert fill(page, {"decode.json": result}, FORMS) == [
            "none.json x",
            "aims aims",  # only some results
        ]
    text = page.read_text()
    assert "| t2r:w4 | 1.00 | 1.00 |\n" in text
    assert text.count("t2r:w4:again") == 1
    assert "old" not in text
    assert "2 cores of an A CPU, 8 GB, Linux; onnxruntime 1.31.1." in text
    assert text.startswith("before\n<!-- table decode.json ratios-2 -->\n")
    assert "<!-- table none.json x -->\nkept\n<!-- end -->\nafter\n" in text
    fill(page, dict.fromkeys(FILES, result), FORMS)
    assert f"| aim | {' | '.join(FORMS.values())} |" in page.read_text()
