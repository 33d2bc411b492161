"""Text wherever it comes in, from a file or stdin: UTF-8, without a byte order mark at its start."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from t2r_runtime.errors import UserError
from t2r_runtime.files import existing_file

STDIN = "-"  # the path that means it


def read_text(path: str | Path, what: str = "a text", most: int | None = None) -> str:
    """The text of a file, or of stdin where the path is `-`.

    Args:
        what: the file is.
        most: bytes.

    Raises:
        UserError: no such file, one that cannot be read, that is larger, or that is not UTF-8.
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
        raise UserError(f"to be able to read {path}", received, "name an existing file", "file") from error
    if most is not None and len(raw) > most:
        raise UserError(f"{what} of at most {most:,} bytes in {path}", "more", "cut it", "file")
    return decoded(raw, _named(path))


def decode_lines(lines: Iterable[bytes], name: str | Path) -> Iterator[str]:
    """The lines of a file or of stdin as text, each as soon as it is there, without its line break.

    Raises:
        UserError: one that is not UTF-8, when it is reached.
    """
    at = 0
    for number, line in enumerate(lines, 1):
        yield decoded(line, f"line {number} of {_named(name)}", at).rstrip("\r\n")
        at += len(line)


def decoded(raw: bytes, name: str, at: int = 0) -> str:
    """Bytes of a file as text.

    Args:
        name: of the file.
        at: where the bytes begin in the file; a byte order mark is dropped at 0 alone.

    Raises:
        UserError: they are not UTF-8; it says at which byte of the file.
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
