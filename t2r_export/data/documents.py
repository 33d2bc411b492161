"""Read documents from text with separator lines, a field of JSON Lines, or a column of Parquet or an Arrow stream.

Files are read in blocks, in constant memory. Documents are stripped of surrounding white space; empty ones are skipped,
and those longer than MAX_DOCUMENT characters are split.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from t2r_export.config.finetune import FIELD, SEPARATOR, Shares
from t2r_export.data.pairs import bounded_lines
from t2r_runtime.errors import UserError, no_json, printable, shown
from t2r_runtime.files import existing_file
from t2r_runtime.text.texts import decoded

BLOCK = 1 << 16  # bytes read at once; large blocks fragment memory
FIELDED = frozenset({".jsonl", ".parquet", ".arrow"})  # endings of files with a field of text
MAX_DOCUMENT = 1 << 22  # characters
MAX_LINE = 1 << 24  # bytes of a JSON line
MAX_COLUMN = 1 << 31  # uncompressed bytes of a column in a row group
MAX_THRIFT = 1 << 24  # bytes of a string, and entries of a list, in Parquet metadata
END = b"\xff\xff\xff\xff\0\0\0\0"  # of an Arrow stream
ROWS = 256  # rows of Parquet or Arrow that are strings at once


@dataclass(frozen=True)
class Texts:
    """The documents of files in order; every iteration reads the files again."""

    files: tuple[Path, ...]
    separator: str = SEPARATOR  # of text files; "": each file is one document
    field: str = FIELD  # of JSON Lines, Parquet and Arrow

    def __iter__(self) -> Iterator[str]:
        """Raises UserError for an unreadable or empty file, or a line or row without the field."""
        for path in self.files:
            empty = True
            for text in self._read(path):
                for at in range(0, len(text), MAX_DOCUMENT):
                    if document := text[at : at + MAX_DOCUMENT].strip():
                        empty = False
                        yield document
            if empty:
                raise UserError(f"text in {path}", "an empty file", "name a file with text in it")

    def _read(self, path: Path) -> Iterator[str]:
        existing_file(path, "a text")
        try:
            match path.suffix:
                case ".jsonl":
                    yield from _json_lines(path, self.field)
                case ".parquet":
                    yield from _parquet(path, self.field)
                case ".arrow":
                    yield from _arrow(path, self.field)
                case _:
                    yield from _text(path, self.separator)
        except OSError as error:
            received = error.strerror or printable(error)
            raise UserError(f"to be able to read {path}", received, "name an existing file") from error


def _text(path: Path, separator: str) -> Iterator[str]:
    """Parts of a text between lines that contain only `separator` and blanks."""
    line = re.compile(rf"\n[ \t]*{re.escape(separator)}[ \t]*(?=\n)")
    held, searched = "\n", 0  # a match needs a line break on both sides
    for block in chain(_blocks(path), ["\n"]):
        held += block
        start = 0
        if not separator:
            searched = len(held)
        else:
            while match := line.search(held, searched):
                yield held[start : match.start()]
                start = searched = match.end()
            seen, searched = start if "\n" in separator else searched, len(held)
            for _ in range(1 + separator.count("\n")):  # line breaks at which a match may still begin
                searched = max(seen, held.rfind("\n", seen, searched))
        held, searched = held[start:], searched - start
        while len(held) > MAX_DOCUMENT:
            cut = min(searched, MAX_DOCUMENT) if searched > MAX_DOCUMENT // 2 else MAX_DOCUMENT
            yield held[:cut]
            held, searched = held[cut:], max(0, searched - cut)
    yield held


def _blocks(path: Path) -> Iterator[str]:
    """A UTF-8 text in blocks, with normalized line breaks and without a byte order mark."""
    with path.open("rb") as file:
        raw, at, block = b"", 0, b"more"
        while block:
            block = file.read(BLOCK)
            raw += block
            try:
                text, used = codecs.utf_8_decode(raw, "strict", not block)
            except UnicodeDecodeError:
                text, used = decoded(raw, str(path), at), 0  # raises, with the byte's offset in the file
            if block and text.endswith("\r"):  # a line feed may follow
                text, used = text[:-1], used - 1
            yield (text if at else text.removeprefix("\ufeff")).replace("\r\n", "\n").replace("\r", "\n")
            raw, at = raw[used:], at + used


def _json_lines(path: Path, field: str) -> Iterator[str]:
    """The field of the object in each non-blank line."""
    with path.open("rb") as file:
        for line, where in bounded_lines(file, str(path), MAX_LINE, math.inf):
            if not line or line.isspace():
                continue
            try:
                found = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"a JSON object in {where}", no_json("a line", error), "correct that line") from error
            yield _checked(found.get(field) if isinstance(found, dict) else None, field, where)


def _parquet(path: Path, field: str) -> Iterator[str]:
    """The column in each row of a Parquet file."""
    how = {"thrift_string_size_limit": MAX_THRIFT, "thrift_container_size_limit": MAX_THRIFT}
    how |= {"buffer_size": BLOCK, "pre_buffer": False}
    with _pyarrow(path, "Parquet file") as pyarrow, pyarrow.parquet.ParquetFile(path, **how) as file:
        _check_column(file.schema_arrow.names, field, path)
        groups = (file.metadata.row_group(n) for n in range(file.metadata.num_row_groups))
        columns = (group.column(n) for group in groups for n in range(group.num_columns))
        if max((c.total_uncompressed_size for c in columns if c.path_in_schema == field), default=0) > MAX_COLUMN:
            raise UserError(f"row groups of at most {MAX_COLUMN:,} bytes in {path}", "more", "write smaller ones")
        batches = file.iter_batches(ROWS, columns=[field], use_threads=False)
        yield from _rows((batch.column(0) for batch in batches), field, path)


def _arrow(path: Path, field: str) -> Iterator[str]:
    """The column in each row of an Arrow stream, such as the package datasets saves and caches."""
    # not mapped: access to mapped memory of a truncated file aborts the process
    with _pyarrow(path, "Arrow stream") as pyarrow, pyarrow.OSFile(str(path)) as file:
        file.seek(max(0, file.size() - len(END)))
        if file.read() != END:
            raise pyarrow.ArrowInvalid("its end is missing")  # pyarrow accepts any batch boundary as the end
        file.seek(0)
        with pyarrow.ipc.open_stream(file) as batches:
            _check_column(batches.schema.names, field, path)
            yield from _rows((_validated(batch.column(field)) for batch in batches), field, path)


def _validated(column: Any) -> Any:
    column.validate(full=True)  # damaged offsets point outside the file
    return column


@contextlib.contextmanager
def _pyarrow(path: Path, form: str) -> Iterator[Any]:
    """The package pyarrow, to read a file. Raises UserError if it is missing, or cannot read the file."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(
            "the package pyarrow, to read Parquet and Arrow", "a Python without it", "pip install pyarrow"
        ) from error
    try:
        yield pyarrow
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:  # UnicodeDecodeError: column names
        if getattr(error, "errno", None):
            raise  # operating system errors
        raise UserError(f"a whole {form} in {path}", printable(error), "write it again") from error


def _check_column(names: Sequence[str], field: str, path: Path) -> None:
    if names.count(field) != 1:
        raise UserError(f"a column {field!r} in {path}", f"columns {shown(names)}", "pass --split field=NAME")


def _rows(columns: Iterable[Any], field: str, path: Path) -> Iterator[str]:
    """The texts of a column given in chunks."""
    parts = (column[at : at + ROWS] for column in columns for at in range(0, len(column), ROWS))
    for row, text in enumerate((text for part in parts for text in part.to_pylist()), 1):
        yield _checked(text, field, f"row {row} of {path}")


def _checked(text: object, field: str, where: str) -> str:
    """A field's value. Raises UserError unless it is a string encodable as UTF-8."""
    try:
        if isinstance(text, str) and (text.isascii() or text.encode()):
            return text
    except UnicodeEncodeError as error:
        raise UserError(f"text in UTF-8 in {where}", printable(error), "correct it") from error
    received = "none" if text is None else shown(text)
    raise UserError(f"a text named {field!r} in {where}", received, "leave it out, or pass --split field=NAME")


def parted(documents: Iterable[str], shares: Shares | None) -> Iterator[tuple[int, str]]:
    """Documents with their part number: 0 train, 1 valid, 2 test.

    By `order`, the last documents are test and those before valid; too few documents are split at a character. By
    `hash`, the part is a function of the document, unaffected by added documents.

    Args:
        documents: iterated over up to twice.
        shares: None: everything is train.
    """
    if shares is None:
        yield from ((0, document) for document in documents)
    elif shares.by == "hash":
        for document in documents:
            place = int.from_bytes(hashlib.sha256(document.encode()).digest()[:8]) / 2**64
            yield 2 if place < shares.test else int(place < shares.test + shares.valid), document
    else:
        yield from _in_order(documents, shares)


def _in_order(documents: Iterable[str], shares: Shares) -> Iterator[tuple[int, str]]:
    count = characters = 0
    for document in documents:
        count, characters = count + 1, characters + len(document)
    first, second = borders(count, shares)
    if 0 < first < second < count:
        yield from (((n >= first) + (n >= second), document) for n, document in enumerate(documents))
        return
    first, second = borders(characters, shares)
    at = 0
    for document in documents:
        one, other = (min(max(0, place - at), len(document)) for place in (first, second))
        for part, piece in enumerate((document[:one], document[one:other], document[other:])):
            if piece:
                yield part, piece
        at += len(document)


def borders(count: int, shares: Shares) -> tuple[int, int]:
    """Start of the valid and the test part among `count` documents, characters, tokens or rows."""
    return count - round(count * (shares.valid + shares.test)), count - round(count * shares.test)
