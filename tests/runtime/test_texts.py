"""Text is read in one place: as UTF-8, without a byte order mark at its start."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from t2r_runtime import UserError
from t2r_runtime.text.texts import decode_lines, read_text

ROOT = Path(__file__).parents[2]
MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize("place", ["file", "stdin"])
def test_byte_order_mark_removed(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = MARK + "Größe\r\n".encode() + MARK
    (tmp_path / "t.txt").write_bytes(raw)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))
    assert read_text("-" if place == "stdin" else tmp_path / "t.txt") == "Größe\r\n\ufeff"  # a mark inside stays


def test_decode_lines() -> None:
    assert list(decode_lines([MARK + b"a\r\n", b"\n", MARK + b"b"], "t")) == ["a", "", "\ufeffb"]
    assert list(decode_lines([MARK], "t")) == [""]


@pytest.mark.parametrize("raw, offset", [(b"\xff\xfea\0", 0), (MARK + b"a\xe9b", 4), ("é".encode()[:1], 0)])
def test_not_utf8_offset(raw: bytes, offset: int, tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(raw)
    expected = f"expected text in UTF-8 in {path}; received the byte 0x{raw[offset]:02x} at offset {offset}; convert"
    with pytest.raises(UserError, match=re.escape(expected)):
        read_text(path)


def test_invalid_line_number_and_offset() -> None:
    found = decode_lines([b"ab\n", b"c\xff\n"], "-")
    assert next(found) == "ab"
    with pytest.raises(UserError, match="in line 2 of stdin; received the byte 0xff at offset 4;"):
        next(found)


def test_text_size_limit(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"abcd")
    assert read_text(tmp_path / "t.txt", most=4) == "abcd"
    with pytest.raises(UserError, match="a text of at most 3 bytes in"):
        read_text(tmp_path / "t.txt", most=3)
    with pytest.raises(UserError, match="expected a text; received .*no.txt, which does not exist"):
        read_text(tmp_path / "no.txt")


# modules that read files other than a user's text: ours, the system's, and a checkpoint folder's JSON
OTHERS = {
    "t2r_export/data/encoding.py",  # its request
    "t2r_export/describe.py",
    "t2r_export/checkpoints/hub/card.py",  # reports
    "t2r_export/checkpoints/hub/code.py",  # its own program
    "runtimes/python/t2r_runtime/contract/chat_worker.py",  # its request
    "runtimes/python/t2r_runtime/conformance.py",
    "runtimes/python/t2r_runtime/serve/fields.py",  # a request's body
    "runtimes/python/t2r_runtime/session/providers.py",
    "runtimes/python/t2r_runtime/text/texts.py",
    "t2r_export/build.py",
    "t2r_export/distill.py",  # its own results
    "t2r_export/checkpoints/gguf/header.py",
    "t2r_export/cli/demo.py",  # its own list of checksums
    "t2r_export/checkpoints/importers/files.py",
    "t2r_export/checkpoints/piece_file.py",
    "t2r_export/checkpoints/piece_tokenizer.py",
    "tests/golden/vocabularies.py",
    "t2r_export/graph/contents.py",
    "t2r_export/checkpoints/build_record.py",
    "t2r_export/providers/bench.py",
    "t2r_export/providers/matrix.py",
    "t2r_export/providers/served.py",
    "t2r_export/providers/timed.py",
    "t2r_export/training/curves.py",
    "t2r_export/training/drawing.py",  # its own plot
    "t2r_export/training/measured.py",  # process memory
    "t2r_export/training/memory.py",  # that of the machine
    "runtimes/python/t2r_runtime/session/tuning.py",  # quotas of cgroups
}
READING = re.compile(r"\.read_text\(|\.decode\((\"utf|'utf|\))|sys\.stdin(?!\.isatty|\.buffer\.readline)")


def test_text_read_in_one_place() -> None:
    sources = [*(ROOT / "t2r_export").rglob("*.py"), *(ROOT / "runtimes" / "python" / "t2r_runtime").rglob("*.py")]
    found = {str(path.relative_to(ROOT)) for path in sources if READING.search(path.read_text(encoding="utf-8"))}
    assert found <= OTHERS
    assert "runtimes/python/t2r_runtime/text/texts.py" in found
