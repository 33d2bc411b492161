"""`--jsonl IN OUT`: a JSON object per line of IN, answered by one per line of OUT, in the same order.

A line of OUT has the keys of its line of IN and those of the answer. A line that cannot be answered becomes
`{"line": 3, "error": "…"}`; the others continue.

Answers are written to a hidden file beside OUT, which is renamed at the end. Its name depends on IN, the graph and the
options, so the same command resumes an interrupted run.
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
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click
from click.core import ParameterSource

from t2r_runtime.cli.output import F, note, plain
from t2r_runtime.cli.paths import Named
from t2r_runtime.cli.progress import progress
from t2r_runtime.errors import UserError, no_json, shown
from t2r_runtime.files import existing_file, locked, unwritable
from t2r_runtime.outputs import Kind, check_output
from t2r_runtime.text.texts import STDIN, decoded

if TYPE_CHECKING:
    from t2r_runtime.decode.pool import Pool
    from t2r_runtime.decode.text import Text

MAX_LINE = 1 << 24  # bytes
DIGITS = 8
NAMED = 10  # line numbers in an error message
Given = dict[str, Any]


def option(keys: str, rows: str = "--jsonl lines side by side, each a row of the batch") -> Callable[[F], F]:
    """Add the options `--jsonl` and `--rows`; `keys` describes a line of IN, `rows` what the number counts."""
    path = Named(path_type=Path)
    text = f"Answer each line of IN, a JSON object with {keys}, by a line of OUT. Resumes an interrupted run."
    jsonl = click.option("--jsonl", type=(path, path), metavar="IN OUT", help=text)
    number = click.option("--rows", type=click.IntRange(min=1), default=1, show_default=True, help=f"Number of {rows}.")
    return lambda function: number(jsonl(function))


def refuse_rows() -> None:
    """Raise UserError if --rows is given, for a command without --jsonl."""
    if click.get_current_context().get_parameter_source("rows") is ParameterSource.COMMANDLINE:
        raise UserError("--jsonl with --rows", "none", "leave --rows out")


class Bulk:
    """Reads the lines of a file and writes their answers.

    Args:
        paths: IN and OUT.
        graph: the graph that answers; its bytes and the command's options identify a run to resume.

    Raises:
        UserError: IN does not exist, OUT cannot be written or is not a JSON lines file, or another program writes it.
    """

    def __init__(self, paths: tuple[Path, Path], graph: Path) -> None:
        self._source, self._out = paths
        if STDIN in map(str, paths):
            raise UserError("two file names for --jsonl", f"{STDIN} for stdin or stdout", "name files", "file")
        existing_file(self._source, "a file of JSON lines")
        if check_output("file of JSON lines", self._out, Kind(), [self._source, graph]):
            with self._out.open("rb") as file:
                if file.read(1) != b"{":
                    expected = f"a file of JSON lines or nothing at {self._out}"
                    raise UserError(expected, "another file", "name another file", "file")
        self._name = f".{self._out.name}.{_digest([self._source, graph])}.lines"
        self._stack = contextlib.ExitStack()
        self._given: dict[int, Given] = {}  # lines without an answer
        self._answers: dict[int, bytes] = {}  # waiting for earlier lines
        self._done = 0
        self._advance: Callable[[], None] = lambda: None
        self.bad: list[int] = []

    def __enter__(self) -> Bulk:
        with contextlib.ExitStack() as stack:
            stack.enter_context(locked(self._out, wait=False))
            for other in self._out.parent.glob(f".{glob.escape(self._out.name)}.{'[0-9a-f]' * DIGITS}.lines"):
                if other.name != self._name:  # of a run with another input, graph or options
                    other.unlink(missing_ok=True)
            with self._writing():
                self._file = stack.enter_context(self._out.with_name(self._name).open("a+b"))
                self._resume()
            left = _lines(self._source) - self._done
            advance, before = stack.enter_context(progress("lines answered", left)), self._done
            self._advance = lambda: advance(self._done - before)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack, self._writing():
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
        """Yield the unanswered lines, with their numbers from 1; a line that is not a JSON object gets an error."""
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
        """Answer a line; it is written after all lines before it."""
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
        self._file.flush()  # an OSError ends the run; a UserError would become an answer
        self._advance()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise unwritable(self._out, error) from error

    def texts(self, key: str) -> Iterator[tuple[int, str]]:
        """Yield the texts of the lines, with their numbers."""
        for number, given in self:
            with self.answering(number):
                yield number, text_of(given, key)

    @contextlib.contextmanager
    def answering(self, number: int) -> Iterator[None]:
        """Answer a line with the UserError that the body raises."""
        try:
            yield
        except UserError as error:
            self.put(number, error)

    def _resume(self) -> None:
        """Count the lines answered by an earlier run; a partial line at the end is removed."""
        self._file.seek(0)
        whole = 0
        for raw in self._file:
            if raw.endswith(b"\n"):
                whole, self._done = whole + len(raw), self._done + 1
                if raw.startswith(b'{"line": %d, "error": ' % self._done):
                    self.bad.append(self._done)
        self._file.truncate(whole)
        if self._done:
            note(f"resuming after {self._done} answered lines")


class Line(Protocol):
    """A line of IN that a row of a pool answers."""

    @property
    def number(self) -> int: ...

    def token(self, token: int) -> bool:
        """Add a generated token; returns whether the text continues."""

    def answer(self) -> Given: ...


L = TypeVar("L", bound=Line)


def side_by_side(lines: Bulk, waiting: Iterator[L], pool: Pool, rows: int, add: Callable[[L], Text]) -> None:
    """Answer the `waiting` lines, `rows` of them side by side; `add` puts one into the pool."""
    from t2r_runtime.decode.text import FAILED

    going: dict[Text, L] = {}
    while True:
        while len(going) < rows and (new := next(waiting, None)) is not None:
            with lines.answering(new.number):
                going[add(new)] = new
        if not going:
            return
        for text, chosen in pool.step():
            line = going[text]
            if text.ended != FAILED and chosen is not None and not line.token(chosen):
                pool.remove(text)
            if text.ended is not None:
                del going[text]
                lines.put(line.number, line.answer() if text.error is None else text.error)


def text_of(given: Given, key: str) -> str:
    """The text of a line. Raises UserError if it has none."""
    value = given.get(key)
    if not isinstance(value, str):
        raise UserError(f'a text as "{key}"', shown(value) if key in given else "none", "correct the line")
    return value


def _object(raw: bytes, number: int, whole: bool) -> Given:
    try:
        if not raw.strip():
            raise UserError("a JSON object", "an empty line", "correct the line or remove it")
        if not whole:
            raise ValueError(f"more than {MAX_LINE:,} bytes")
        value = json.loads(decoded(raw, f"line {number}"))
        json.dumps(plain(value), ensure_ascii=False).encode()  # raises for a lone surrogate
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError("a JSON object", no_json("a line", error), "correct the line") from error
    if not isinstance(value, dict):
        raise UserError("a JSON object", shown(value), "correct the line")
    return value


def _lines(path: Path) -> int:
    """Number of lines of a file."""
    count, last = 0, b"\n"
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            count, last = count + part.count(b"\n"), part[-1:]
    return count + (last != b"\n")


def _digest(files: list[Path]) -> str:
    """Hash of the files and of the options of the current command, `DIGITS` hex digits."""
    options = click.get_current_context().params
    found = hashlib.sha256(json.dumps(options, default=str, sort_keys=True).encode())
    for path in files:
        with path.open("rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()[:DIGITS]
