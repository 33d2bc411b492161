"""`--jsonl IN OUT`: a JSON object per line of IN, answered by one per line of OUT, in the same order.

A line of OUT has the keys of its line of IN and those of the answer. A line that has no answer becomes
`{"line": 3, "error": "…"}`, and the others go on.

Answers are first written to a hidden file beside OUT, which is renamed at the end. Its name depends on IN, the graph
and the options, so that the same command goes on where an earlier one stopped.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from t2r_runtime.cli.output import F, note, plain
from t2r_runtime.errors import UserError, printable, shown
from t2r_runtime.files import existing_file, locked, unwritable
from t2r_runtime.outputs import Kind, check_output
from t2r_runtime.text.texts import decoded

MAX_LINE = 1 << 24  # bytes
DIGITS = 8
NAMED = 10  # numbers of bad lines in a message
Given = dict[str, Any]


def option(keys: str) -> Callable[[F], F]:
    """The option `--jsonl`; `keys` says what a line holds."""
    path = click.Path(path_type=Path)
    text = f"Answer every line of IN, a JSON object with {keys}, by a line of OUT. An interrupted run is resumed."
    return click.option("--jsonl", type=(path, path), metavar="IN OUT", help=text)


class Bulk:
    """The lines of a file, and their answers.

    Args:
        paths: IN and OUT.
        graph: what answers them, beside the options of the current command.

    Raises:
        UserError: no IN, an OUT that cannot be written or is another file, or another program that writes it.
    """

    def __init__(self, paths: tuple[Path, Path], graph: Path) -> None:
        self._source, self._out = paths
        existing_file(self._source, "a file of JSON lines")
        if check_output("file of JSON lines", self._out, Kind(), [self._source, graph]):
            with self._out.open("rb") as file:
                if file.read(1) != b"{":
                    expected = f"a file of JSON lines or nothing at {self._out}"
                    raise UserError(expected, "another file", "name another file", "file")
        self._name = f".{self._out.name}.{_digest([self._source, graph])}.lines"
        self._stack = contextlib.ExitStack()
        self._given: dict[int, Given] = {}  # that have no answer
        self._answers: dict[int, bytes] = {}  # that wait for those of earlier lines
        self._done = 0
        self.bad: list[int] = []

    def __enter__(self) -> Bulk:
        with contextlib.ExitStack() as stack:
            stack.enter_context(locked(self._out, wait=False))
            for other in self._out.parent.glob(f".{glob.escape(self._out.name)}.{'[0-9a-f]' * DIGITS}.lines"):
                if other.name != self._name:  # of other options
                    other.unlink(missing_ok=True)
            try:
                self._file = stack.enter_context(self._out.with_name(self._name).open("a+b"))
            except OSError as error:
                raise unwritable(self._out, error) from error
            self._resume()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            os.fsync(self._file.fileno())
            self._file.close()
            part = self._out.with_name(self._name)
            if kind is None:
                part.replace(self._out)
            elif not part.stat().st_size:
                part.unlink()
        if kind is None and self.bad:
            numbers = ", ".join(map(str, self.bad[:NAMED])) + (", …" if len(self.bad) > NAMED else "")
            received = f"{len(self.bad)} without: {numbers}"
            raise UserError(f"lines of {self._source} that have an answer", received, f"see {self._out}", "file")

    def __iter__(self) -> Iterator[tuple[int, Given]]:
        """The lines that have no answer yet, with their numbers from 1; those that are no JSON object are answered."""
        with self._source.open("rb") as file:
            for number in itertools.count(1):
                raw = rest = file.readline(MAX_LINE)
                while len(rest) == MAX_LINE and not rest.endswith(b"\n"):
                    rest = file.readline(MAX_LINE)
                if not raw:
                    return
                if number > self._done:
                    try:
                        given = _object(raw, number, whole=raw is rest)
                    except UserError as error:
                        self.put(number, error)
                    else:
                        self._given[number] = given
                        yield number, given

    def put(self, number: int, answer: Given | UserError) -> None:
        """Answer a line; it is written when all before it are."""
        given = self._given.pop(number, {})
        if isinstance(answer, UserError):
            note(f"line {number}: {answer}")
            self.bad.append(number)
            line = {"line": number, "error": str(answer)}
        else:
            line = given | answer
        self._answers[number] = json.dumps(plain(line), ensure_ascii=False).encode() + b"\n"
        while (written := self._answers.pop(self._done + 1, None)) is not None:
            self._file.write(written)
            self._done += 1
        self._file.flush()

    def texts(self, key: str) -> Iterator[tuple[int, str]]:
        """The texts of the lines, with their numbers."""
        for number, given in self:
            with self.answering(number):
                yield number, text_of(given, key)

    @contextlib.contextmanager
    def answering(self, number: int) -> Iterator[None]:
        """Answer a line by the UserError that its work raises."""
        try:
            yield
        except UserError as error:
            self.put(number, error)

    def _resume(self) -> None:
        """Count the lines that an earlier run has answered; what it wrote of the next is cut off."""
        self._file.seek(0)
        whole = 0
        for raw in self._file:
            if raw.endswith(b"\n"):
                whole, self._done = whole + len(raw), self._done + 1
                if raw.startswith(b'{"line": %d, "error": ' % self._done):
                    self.bad.append(self._done)
        self._file.truncate(whole)
        if self._done:
            note(f"{self._done} lines were answered before")


def text_of(given: Given, key: str) -> str:
    """A line's text. Raises UserError: it has none."""
    value = given.get(key)
    if not isinstance(value, str):
        raise UserError(f'a text as "{key}"', shown(value) if key in given else "none", "correct the line")
    return value


def _object(raw: bytes, number: int, whole: bool) -> Given:
    try:
        if not whole:
            raise ValueError(f"more than {MAX_LINE:,} bytes")
        value = json.loads(decoded(raw, f"line {number}"))
        json.dumps(plain(value), ensure_ascii=False).encode()  # half a surrogate pair can be read, and not written
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError("a JSON object", printable(error), "correct the line") from error
    if not isinstance(value, dict):
        raise UserError("a JSON object", shown(value), "correct the line")
    return value


def _digest(files: list[Path]) -> str:
    """`DIGITS` hex digits of the files' bytes and the options of the current command."""
    options = click.get_current_context().params
    found = hashlib.sha256(json.dumps(options, default=str, sort_keys=True).encode())
    for path in files:
        with path.open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()[:DIGITS]
