from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2r_export.config.finetune import Shares
from t2r_export.data import documents
from t2r_export.data.documents import Texts, borders, parted
from t2r_export.paths import text_files
from t2r_runtime.errors import UserError


def listed(text: str, separator: str) -> list[str]:
    """The definition: the documents of a whole text."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    pieces = re.split(rf"^[ \t]*{re.escape(separator)}[ \t]*$", text, flags=re.MULTILINE) if separator else [text]
    return [piece.strip() for piece in pieces if piece.strip()]


def divided(whole: list[str], shares: Shares) -> list[list[str]]:
    """The definition: documents in three parts, at their borders or at a character."""
    first, second = borders(len(whole), shares)
    parts = [whole[:first], whole[first:second], whole[second:]]
    if all(parts):
        return parts
    first, second = borders(sum(map(len, whole)), shares)
    ends = [sum(map(len, whole[:n])) for n in range(len(whole))]
    cuts = ((0, first), (first, second), (second, 1 << 40))
    pieces = [[d[max(0, a - e) : max(0, b - e)] for d, e in zip(whole, ends, strict=True)] for a, b in cuts]
    return [[piece for piece in part if piece] for part in pieces]


@pytest.mark.parametrize("block", [3, 16, 1 << 20])
@given(
    lines=st.lists(
        st.sampled_from(["<end>", " <end>\t", "a <end>", "é", "", "  ", "x" * 9, "<end><end>"]), max_size=12
    ),
    breaks=st.sampled_from(["\n", "\r\n", "\r"]),
    mark=st.booleans(),
    separator=st.sampled_from(["<end>", "", "é", "\n"]),
)
def test_blocks_do_not_affect_documents(
    block: int, lines: list[str], breaks: str, mark: bool, separator: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = breaks.join(lines)
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes((("\ufeff" if mark else "") + text).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "BLOCK", block)
        if expected := listed(text, separator):
            assert list(Texts((path,), separator)) == expected
        else:
            with pytest.raises(UserError, match="an empty file"):
                list(Texts((path,), separator))


def test_long_document_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_DOCUMENT", 8)
    monkeypatch.setattr(documents, "BLOCK", 4)
    path = tmp_path / "text"
    path.write_text("abcdefghijklm\nno\n<end>\npq")
    found = list(Texts((path,), "<end>"))
    assert "".join(found).replace("\n", "") == "abcdefghijklmnopq" and max(map(len, found)) <= 8
    assert found[-1] == "pq"
    (tmp_path / "a.jsonl").write_text('{"text": "abcdefghijklm"}')
    assert list(Texts((tmp_path / "a.jsonl",))) == ["abcdefgh", "ijklm"]


@given(
    whole=st.lists(st.text("ab", min_size=1, max_size=9), min_size=1, max_size=40),
    valid=st.sampled_from([0.05, 0.2, 0.45]),
    test=st.sampled_from([0.05, 0.3, 0.5]),
)
def test_parts_equal_whole_list(whole: list[str], valid: float, test: float) -> None:
    shares = Shares(valid, test)
    found = list(parted(whole, shares))
    assert [[text for number, text in found if number == part] for part in range(3)] == divided(whole, shares)


def test_parts_by_hash_are_stable() -> None:
    shares = Shares(0.2, 0.1, "hash")
    whole = [f"document {n}" for n in range(2000)]
    parts = {text: part for part, text in parted(whole, shares)}
    counts = [list(parts.values()).count(part) for part in range(3)]
    assert counts == pytest.approx([1400, 400, 200], abs=60)
    grown = parted(["another", *reversed(whole)], shares)
    assert {text: part for part, text in grown if text != "another"} == parts
    more = {text: part for part, text in parted(whole, Shares(0.4, 0.1, "hash"))}
    assert all((part == 2) == (more[text] == 2) for text, part in parts.items())  # the test part is unchanged


def write_json(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_parquet(path: Path, rows: list[Any], field: str = "text") -> Path:
    pyarrow.parquet.write_table(pyarrow.table({"id": list(range(len(rows))), field: rows}), path, row_group_size=3)
    return path


def write_arrow(path: Path, rows: list[Any], field: str = "text") -> Path:
    """Writes a split as the datasets package does: a stream of record batches."""
    table = pyarrow.table({"id": list(range(len(rows))), field: rows})
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=3)
    return path


def test_fields_of_lines_and_tables(tmp_path: Path) -> None:
    rows = [f" word {n} " for n in range(10)] + ["\n"]
    stripped = [row.strip() for row in rows[:10]]
    lines = write_json(tmp_path / "a.jsonl", [{"id": 0, "body": row} for row in rows])
    lines.write_text(lines.read_text().replace("\n", "\n \r\n"))
    assert list(Texts((lines,), field="body")) == stripped
    for write, ending in ((write_parquet, "parquet"), (write_arrow, "arrow")):
        assert list(Texts((write(tmp_path / f"a.{ending}", rows, "body"),), field="body")) == stripped
        assert list(Texts((write(tmp_path / f"b.{ending}", rows),))) == stripped


def test_folder_files_in_order(tmp_path: Path) -> None:
    for name in (
        "b.txt",
        "a/c.jsonl",
        "a/b.parquet",
        "a/d.arrow",
        "a/cache-9.arrow",
        ".git/d.txt",
        ".e.txt",
        "README.md",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    names = [str(path.relative_to(tmp_path)) for path in text_files([tmp_path, tmp_path / "README.md"])]
    assert names == ["a/b.parquet", "a/c.jsonl", "a/d.arrow", "b.txt", "README.md"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"files that end in .txt, .jsonl, .parquet, .arrow, .npy in .*; received none"):
        text_files([tmp_path / "empty"])


@pytest.mark.parametrize(
    "line, message",
    [
        ('{"body": "b"}', "a text named 'text' in line 2 of .*; received none"),
        ('{"text": 3}', "a text named 'text' in line 2 of .*; received 3"),
        ('["text"]', "a text named 'text' in line 2"),
        ('{"text": "half', "a JSON object in line 2 of .*Unterminated string"),
        ("[" * 100_000, "a JSON object in line 2 of .*nested too deeply"),
        ('{"text": "\\ud800"}', "text in UTF-8 in line 2"),
        ('{"text": "' + "x" * 100 + '"}', "at most 64 bytes in line 2"),
        ('{"n": ' + "1" * 50 + "}", "a text named 'text' in line 2"),
    ],
)
def test_invalid_lines_are_named(line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_LINE", 1 << 20 if line.startswith("[[") else 64)
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n' + line + "\n")
    with pytest.raises(UserError, match=message):
        list(Texts((path,)))


def test_invalid_parquet_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, message: str) -> None:
        with pytest.raises(UserError, match=message):
            list(Texts((path,)))

    refused(write_parquet(tmp_path / "a.parquet", ["a", None]), "a text named 'text' in row 2 of .*; received none")
    refused(write_parquet(tmp_path / "b.parquet", [1, 2]), "in row 1 of .*; received 1")
    refused(write_parquet(tmp_path / "c.parquet", ["a"], "b"), r"a column 'text' in .*; received columns \['id', 'b'\]")
    whole = write_parquet(tmp_path / "d.parquet", ["a"] * 99).read_bytes()
    pages = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    damaged = whole[:-9], b"", b"PAR1" + bytes(99) + b"PAR1", b"PAR1" + bytes(pages - 4) + whole[pages:]
    for number, damage in enumerate(damaged):
        path = tmp_path / f"{number}.parquet"
        path.write_bytes(damage)
        refused(path, "a whole Parquet file")
    monkeypatch.setattr(documents, "MAX_COLUMN", 20)
    refused(tmp_path / "d.parquet", "row groups of at most 20 bytes")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused(tmp_path / "d.parquet", "the package pyarrow.*pip install pyarrow")


def test_invalid_arrow_is_refused(tmp_path: Path) -> None:
    def refused(path: Path, message: str) -> None:
        with pytest.raises(UserError, match=message):
            list(Texts((path,)))

    refused(write_arrow(tmp_path / "a.arrow", ["a", None]), "a text named 'text' in row 2 of .*; received none")
    refused(write_arrow(tmp_path / "b.arrow", ["a"], "b"), r"a column 'text' in .*; received columns \['id', 'b'\]")
    path = write_arrow(tmp_path / "c.arrow", [f"a {n}" for n in range(9)])
    whole = path.read_bytes()
    damaged = [whole[:size] for size in range(0, len(whole), 8)]  # every Arrow message ends at a multiple of 8
    damaged += [
        whole.replace(b"\0\0\3\0\0\0\6\0\0\0", b"\0\0\3\0\0\0\6\0\0\x7f"),
        whole[:16] + b"\xff" * 8 + whole[24:],
    ]
    for damage in damaged:
        path.write_bytes(damage)
        refused(path, "a whole Arrow stream in")
