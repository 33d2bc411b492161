"""The text of a tokenizer.json as the library's tokenizer: the one place that makes one, to run and to train.

A tokenizer.json may come from a stranger, and can ask for more than a vocabulary. It can cut or fill up every text,
which is switched off. It can make the library panic, which is no Exception in Python. And its normalizers and decoders
can put many characters in the place of one, each again in the place of what the one before wrote: a few of them ask for
more memory than there is. So what they insert is counted before they run, then they run one by one over a short text
that has what they look for in it, and what comes out of that as tokens is counted too.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from t2r_runtime.errors import UserError, printable

MAX_PARTS = 256  # of a normalizer, a decoder, …
MAX_INSERTED = 100  # characters that one part puts in a place
MAX_GROWTH = 1 << 16  # all of them together, by what they say
MAX_TOKENS = 100  # a character, by what they do
PATTERNS = 64  # of the patterns that are looked for, in the text that is tried
SAMPLE = "".join(map(chr, range(32, 127))) + "\t\n é日本語😀\ufdfa a  b"  # U+FDFA is 18 characters under NFKC
LISTS = ("normalizers", "pretokenizers", "decoders", "processors")
INSERTED = ("content", "prepend", "replacement", "prefix", "suffix")
DO = "use the tokenizer that the model was trained with"

Part = dict[str, Any]
_stderr = threading.Lock()  # of the process: one thread may turn it aside


def library_tokenizer(text: str) -> Any:
    """A tokenizers.Tokenizer that neither cuts nor fills up, tried on a short text.

    Raises:
        UserError: not a tokenizer.json that the library takes, one whose parts multiply text, or the package
            tokenizers is not installed.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise UserError(
            "the package tokenizers", "a Python without it", "pip install tokenizers", "tokenizer"
        ) from error
    if not isinstance(text, str):
        raise UserError("the text of a tokenizer.json", type(text).__name__, DO, "tokenizer")
    with _quiet(), no_panic("the text of a tokenizer.json"):
        made = tokenizers.Tokenizer.from_str(text)
        made.no_truncation()
        made.no_padding()
        parts = {name: parts_of(getattr(made, name)) for name in ("normalizer", "pre_tokenizer", "decoder")}
        for name, found in parts.items():
            _require_bounded(name, found)
        sample = _sample(parts["normalizer"])
        _try_normalizer(sample, parts["normalizer"])
        for tried in ("a", sample):
            ids = made.encode(tried).ids
            _require_few(len(ids), len(tried), "tokens")
            made.decode(ids)
    return made


@contextlib.contextmanager
def no_panic(expected: str) -> Iterator[None]:
    """Whatever the library raises is a UserError: its own Exceptions, and its panics, which are BaseExceptions.

    Args:
        expected: what the library was to be given.
    """
    try:
        yield
    except UserError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(expected, printable(error), DO, "tokenizer") from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep a panic's own report off stderr, where what goes wrong is one line; anything else is passed on."""
    with _stderr, tempfile.TemporaryFile() as report:
        try:
            kept = os.dup(2)
        except OSError:  # closed
            yield
            return
        os.dup2(report.fileno(), 2)
        try:
            yield
        except UserError:
            report.truncate(0)
            raise
        finally:
            os.dup2(kept, 2)
            report.seek(0)
            os.write(kept, report.read())
            os.close(kept)


def parts_of(component: Any) -> list[Part]:
    """The parts of a normalizer, pre-tokenizer, decoder or post-processor in their order, as its JSON has them."""
    if component is None:
        return []
    waiting, found = [json.loads(component.__getstate__())], []
    while waiting:
        part = waiting.pop()
        inner = next((part[name] for name in LISTS if isinstance(part.get(name), list)), None)
        if inner is None:
            found.append(part)
        else:
            waiting.extend(reversed(inner))
        if len(found) > MAX_PARTS:
            raise UserError(
                f"at most {MAX_PARTS} parts of a tokenizer's {type(component).__name__}", "more", DO, "tokenizer"
            )
    return found


def _require_bounded(name: str, parts: list[Part]) -> None:
    """Refuse parts that say that they insert much."""
    texts = [str(part[key]) for part in parts for key in INSERTED if part.get(key)]
    longest = max(map(len, texts), default=0)
    if longest > MAX_INSERTED:
        raise UserError(f"at most {MAX_INSERTED} characters in one place from a {name}", f"{longest}", DO, "tokenizer")
    if math.prod(map(_growth, parts)) > MAX_GROWTH:
        raise UserError(
            f"at most {MAX_GROWTH} characters for one from a {name}", "parts that write more", DO, "tokenizer"
        )


def _growth(part: Part) -> float:
    """How many characters a part may write for one, by what it says; only a replacement can be repeated."""
    if part.get("type") != "Replace":
        return 1.0
    pattern, content = _pattern(part), len(str(part.get("content", "")))
    if pattern is None:  # a regular expression: it may match nothing, and then what it inserts comes on top
        return 1.0 + content
    return max(1.0, content / len(pattern)) if pattern else 1.0 + content


def _pattern(part: Part) -> str | None:
    """The text that a replacement looks for; None if it is a regular expression."""
    pattern = part.get("pattern")
    found = pattern.get("String") if isinstance(pattern, dict) else None
    return found if isinstance(found, str) else None


def _sample(parts: list[Part]) -> str:
    """A short text with what the parts look for in it."""
    looked_for = [str(word) for part in parts[:PATTERNS] for word in dict(part.get("pattern") or {}).values()]
    return SAMPLE + " ".join(word[:MAX_INSERTED] for word in looked_for)


def _try_normalizer(sample: str, parts: list[Part]) -> None:
    """Normalize the sample part by part, so that none gets much more than the one before it."""
    from tokenizers.normalizers import Sequence

    text = sample
    for part in parts:
        step = Sequence([])
        step.__setstate__(json.dumps(part).encode())
        text = step.normalize_str(text)
        _require_few(len(text), len(sample), "characters")


def _require_few(count: int, characters: int, what: str) -> None:
    if count > MAX_TOKENS * characters:
        raise UserError(
            f"at most {MAX_TOKENS} {what} a character from a tokenizer",
            f"{count} for {characters} characters",
            DO,
            "tokenizer",
        )
