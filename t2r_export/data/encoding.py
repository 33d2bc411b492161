"""Tokenize documents in one or several processes; the tokens do not depend on the number of processes.

Long documents are encoded in overlapping windows, joined where both have the same tokens: memory is bounded, and
context-dependent splits are those of the whole document. Run as a program, this module is a worker process: it reads
requests from stdin and answers on stdout, a line of JSON followed by bytes.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

from t2r_export.python import start
from t2r_runtime.errors import UserError
from t2r_runtime.text.tokenizer_file import Library

WINDOW = 1 << 18  # characters encoded at once
OVERLAP = 1 << 12  # characters shared by two windows
AGREEING = 16  # equal tokens required to join two windows
BATCH = 1 << 18  # characters of documents per request to a process
MAX_PROCESSES = 8


@dataclass(frozen=True)
class Encoder:
    """Tokenizes documents."""

    tokenizer: str  # contents of a tokenizer.json
    before: tuple[int, ...]  # tokens before every document
    after: tuple[int, ...]

    def open(self) -> Library:
        return Library(self.tokenizer)

    def ids(self, library: Library, documents: Sequence[str]) -> array[int]:
        """Concatenated tokens of documents. Raises UserError if the tokenizer cannot encode them."""
        found = array("I")
        short = iter(library.encode_batch([text for text in documents if len(text) <= WINDOW], False))
        for text in documents:
            found.extend(self.before)
            found.extend(next(short).ids if len(text) <= WINDOW else _long(library, text))
            found.extend(self.after)
        return found


def _long(library: Library, text: str) -> Iterator[int]:
    """Tokens of a document longer than one window."""
    step, begin = WINDOW - OVERLAP, 0
    (now,), first = library.encode_batch([text[:WINDOW]], False, places=True), 0
    while begin + WINDOW < len(text):
        begin += step
        (then,) = library.encode_batch([text[begin : begin + WINDOW]], False, places=True)
        last, after = _common(now, then, step)
        if last < 0:  # no agreement: split the document here
            (now,) = library.encode_batch([text[begin - step : begin]], False, places=True)
            first, last = min(first, len(now)), len(now)
        yield from now.ids[first:last]
        now, first = then, after
    yield from now.ids[first:]


def _common(now: Any, then: Any, step: int) -> tuple[int, int]:
    """Indices of the first agreeing token in the overlap of two encodings; -1 and 0 without agreement.

    Args:
        step: character of `now` at which `then` begins.
    """
    ids, others = now.ids, then.ids
    for place in range(OVERLAP // 4, OVERLAP):
        one, other = now.char_to_token(step + place), then.char_to_token(place)
        if one is None or other is None or len(ids) < one + AGREEING:
            continue
        begin = now.token_to_chars(one)[0] - step == then.token_to_chars(other)[0] == place
        if begin and ids[one : one + AGREEING] == others[other : other + AGREEING]:
            return one, other
    return -1, 0


def encoded(
    documents: Iterable[tuple[int, str]], encoder: Encoder, processes: int
) -> Iterator[tuple[int, memoryview | array[int], int]]:
    """Yield part number, tokens (N,) uint32, and number of documents; the documents of a part stay in order.

    Args:
        documents: documents with their part numbers.
        processes: number of processes; 1 is this process only.

    Raises:
        UserError: errors of `documents`, a text that the tokenizer cannot encode, or a process that ended.
    """
    if processes < 2:
        library = encoder.open()
        for part, batch in _batches(documents):
            yield part, encoder.ids(library, batch), len(batch)
        return
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(_worker(encoder)) for _ in range(processes)]
        waiting: deque[tuple[int, int, subprocess.Popen[bytes]]] = deque()
        for number, (part, batch) in enumerate(_batches(documents)):
            if len(waiting) == processes:
                yield _answer(*waiting.popleft())
            worker = workers[number % processes]
            texts = [text.encode() for text in batch]
            _ask(worker, [len(text) for text in texts], b"".join(texts))
            waiting.append((part, len(batch), worker))
        while waiting:
            yield _answer(*waiting.popleft())


def _batches(documents: Iterable[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    """Batches of about BATCH characters of documents of one part."""
    held: dict[int, list[str]] = {}
    sizes: dict[int, int] = {}
    for part, document in documents:
        held.setdefault(part, []).append(document)
        sizes[part] = sizes.get(part, 0) + len(document)
        if sizes[part] >= BATCH:
            yield part, held.pop(part)
            sizes[part] = 0
    yield from held.items()


@contextlib.contextmanager
def _worker(encoder: Encoder) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    # in a new session: Ctrl-C reaches only this process
    worker = start("-m", __name__, env=environment, start_new_session=True, **pipes)
    try:
        _ask(worker, asdict(encoder))
        yield worker
    finally:
        worker.kill()
        worker.communicate()


def _ask(worker: subprocess.Popen[bytes], head: Any, content: bytes = b"") -> None:
    assert worker.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # the process ended; `_answer` reports it
        _send(worker.stdin, head, content)


def _answer(part: int, count: int, worker: subprocess.Popen[bytes]) -> tuple[int, memoryview, int]:
    assert worker.stdout is not None
    head = json.loads(worker.stdout.readline() or b"null")
    if isinstance(head, list):
        raise UserError(*head)
    content = worker.stdout.read(4 * (head or 0))
    if head is None or len(content) < 4 * head:
        raise UserError("a running tokenizer process", f"its end, {worker.wait()}", "free memory, and run again")
    return part, memoryview(content).cast("I"), count


def _send(to: IO[bytes], head: Any, content: bytes | memoryview = b"") -> None:
    to.write(json.dumps(head).encode() + b"\n")
    to.write(content)
    to.flush()


def main() -> None:
    """Answer requests until stdin ends."""
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    encoder = Encoder(**json.loads(stdin.readline()))
    library: Library | None = None
    while head := stdin.readline():
        texts = [stdin.read(size).decode() for size in json.loads(head)]
        try:
            library = library or encoder.open()
            ids = encoder.ids(library, texts)
        except UserError as error:
            _send(stdout, [error.expected, error.received, error.do, error.kind])
            continue
        _send(stdout, len(ids), memoryview(ids).cast("B"))


if __name__ == "__main__":
    main()
