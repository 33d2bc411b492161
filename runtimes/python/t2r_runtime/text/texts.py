"""Reads UTF-8 text from files and stdin, without a byte order mark."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from t2r_runtime.errors import UserError
from t2r_runtime.files import existing_file

STDIN = "-"  # the path of stdin


def read_text(path: str | Path, what: str = "a text", most: int | None = None) -> str:
    """Read the text of a file, or of stdin if the path is `-`.

    Args:
        what: what the file is, for error messages.
        most: maximum size in bytes.

    Raises:
        UserError: the file is missing, unreadable, too large or not UTF-8.
    """
    size = -1 if most is None else most + 1
    try:
        if str(path) == STDIN:
            raw = sys.stdin.buffer.read(size)
        else:
            with existing_file(path, what).open("rb") as file:
                raw = file.read(size)
    except OSError as error:
        received = error.strerror or str(error)
        raise UserError(f"read access to {path}", received, "name another file", "file") from error
    if most is not None and len(raw) > most:
        raise UserError(f"{what} of at most {most:,} bytes in {path}", "more", "shorten it", "file")
    return decoded(raw, _named(path))


def decode_lines(lines: Iterable[bytes], name: str | Path) -> Iterator[str]:
    """Yield the lines of a file or of stdin as text, without line breaks.

    Raises:
        UserError: a line is not UTF-8.
    """
    at = 0
    for number, line in enumerate(lines, 1):
        yield decoded(line, f"line {number} of {_named(name)}", at).rstrip("\r\n")
        at += len(line)


def decoded(raw: bytes, name: str, at: int = 0) -> str:
    """Decode bytes of a file.

    Args:
        name: name of the file, for error messages.
        at: offset of the bytes in the file; a byte order mark is dropped at offset 0.

    Raises:
        UserError: not UTF-8, with the offset of the invalid byte.
    """
    mark = len(codecs.BOM_UTF8) if at == 0 and raw.startswith(codecs.BOM_UTF8) else 0
    try:
        return raw[mark:].decode()
    except UnicodeDecodeError as error:
        place = error.start + mark
        received = f"the byte 0x{raw[place]:02x} at offset {at + place}"
        raise UserError(f"text in UTF-8 in {name}", received, "convert it to UTF-8", "file") from error


def _named(path: str | Path) -> str:
    return "stdin" if str(path) == STDIN else str(path)
