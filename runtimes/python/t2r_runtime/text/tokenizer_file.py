"""Loads a tokenizer.json with the tokenizers library.

A tokenizer.json may be untrusted. Memory is limited by `tokenizer_bounds`, truncation and padding are disabled, panics
of the library become UserError, and a regular expression that takes quadratic time is replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from t2r_runtime.errors import UserError, printable
from t2r_runtime.text.patterns import linear
from t2r_runtime.text.surfaces import Surfaces
from t2r_runtime.text.tokenizer_bounds import Bounded, bounded, require_added_size
from t2r_runtime.text.tokenizer_parts import DO, FORM, LISTS, parts_of, regex_of, require_known, unsupported

MAX_TEXT = 1 << 26  # bytes of decoded text, if tokens may be long
FREE_TOKEN = 1 << 12  # bytes per token up to which MAX_TEXT does not apply
MAX_WORK = 1 << 10  # per byte of a text, see Bounded.work
FREE_WORK = 1 << 24  # allowed for any short text
MANY = 1 << 12  # tokens that are decoded without Python's lock, for other threads
LESS = "pass less at once"
_stderr = threading.Lock()  # one thread may redirect stderr


class Library:
    """A tokenizers.Tokenizer within the limits, without truncation and padding.

    Args:
        text: text of a tokenizer.json.
        any_parts: False rejects components that runtimes/contract/text.md does not list.

    Attributes:
        decoders: types of its decoders, in order.

    Raises:
        UserError: the library rejects the file, a limit is exceeded, or the package tokenizers is not installed.
    """

    def __init__(self, text: str, any_parts: bool = True) -> None:
        try:
            import tokenizers
        except ImportError as error:
            do = "pip install tokenizers"
            raise UserError("the package tokenizers", "a Python without it", do, "tokenizer") from error
        if not isinstance(text, str):
            raise UserError(FORM, type(text).__name__, DO, "tokenizer")
        with no_panic(FORM):
            file = bounded(text)
        if not any_parts:
            require_known(file.data)
        self._work, self._looks, self._token_bytes = file.work, file.looks, file.token_bytes
        self.decoders = [part["type"] for part in parts_of(file.data, "decoder")]
        added = file.data.get("added_tokens") or ()
        # the library decodes special tokens whose content is normalized
        self._omitted = {entry["id"] for entry in added if entry.get("special") and entry.get("normalized")}
        with _quiet(), no_panic(FORM):
            self.tokenizer: Any = tokenizers.Tokenizer.from_str(_linear(text, file))
            self.tokenizer.no_truncation()
            self.tokenizer.no_padding()
            for content in file.large:
                require_added_size(content, self.tokenizer.normalizer.normalize_str(content))
            self.tokenizer.decode(self.tokenizer.encode("a").ids)  # some components panic on use
        # of a model that the library has checked
        self._surfaces = Surfaces(file.data["model"], {entry["content"] for entry in added})

    def encode(self, text: str, special_tokens: bool) -> list[int]:
        """Encode a text to token ids. Raises UserError if the library rejects it or it grows too much."""
        with no_panic("a text that this tokenizer accepts"):
            self._require_text(text)
            # other threads run meanwhile, unlike in `tokenizer.encode`, which also computes offsets
            [found] = self.tokenizer.encode_batch_fast([text], add_special_tokens=special_tokens)
            ids: list[int] = self._looked_up(found, text, special_tokens).ids
            return ids

    def encode_batch(self, texts: Sequence[str], special_tokens: bool, places: bool = False) -> list[Any]:
        """Encodings of texts; `places` adds offsets, which takes up to half as much time again.

        Raises UserError as `encode` does.
        """
        with no_panic("texts that this tokenizer accepts"):
            for text in texts:
                self._require_text(text)
            encode = self.tokenizer.encode_batch if places else self.tokenizer.encode_batch_fast
            found = encode(list(texts), add_special_tokens=special_tokens)
            return [self._looked_up(each, text, special_tokens) for each, text in zip(found, texts, strict=True)]

    def _looked_up(self, found: Any, text: str, special_tokens: bool) -> Any:
        """An Encoding of a text, with tokens of its `surfaces` replaced."""
        if self._surfaces.replaces(found.ids):  # only this call returns the texts of unknown tokens
            return self._surfaces.encoded(self.tokenizer.encode(text, add_special_tokens=special_tokens))
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """Decode tokens, without special ones. Raises UserError if they are invalid or too many."""
        with no_panic("tokens that this tokenizer accepts"):
            if self._token_bytes > FREE_TOKEN and len(ids) * self._token_bytes > MAX_TEXT:
                most = int(MAX_TEXT // self._token_bytes)
                raise UserError(f"at most {most:,} tokens, some of which are long", f"{len(ids):,}", LESS, "tokenizer")
            kept = [token for token in ids if token not in self._omitted] if self._omitted else list(ids)
            if len(kept) > MANY:
                return str(self.tokenizer.decode_batch([kept], skip_special_tokens=True)[0])
            return str(self.tokenizer.decode(kept, skip_special_tokens=True))

    def _require_text(self, text: str) -> None:
        """Raise UserError if a text takes too much work; it is tested in slices to limit memory."""
        step = max(1, int(FREE_WORK // (4 * self._work)))  # characters, of at most 4 bytes
        if self._work <= MAX_WORK or len(text) <= step:
            return
        size, made = len(text.encode()), 0
        most = max(FREE_WORK, MAX_WORK * size) // self._looks
        for at in range(0, len(text), step):
            made += len(self._cut(text[at : at + step]).encode())
            if made > most:
                expected = f"a text of which this tokenizer makes at most {most:,} bytes"
                raise UserError(expected, f"{made:,} or more of {size:,}", LESS, "tokenizer")

    def _cut(self, text: str) -> str:
        """The output of normalizer and pre-tokenizer."""
        made, cutter = self.tokenizer.normalizer, self.tokenizer.pre_tokenizer
        text = text if made is None else made.normalize_str(text)
        return text if cutter is None else "".join(piece for piece, _ in cutter.pre_tokenize_str(text))


@contextlib.contextmanager
def no_panic(expected: str) -> Iterator[None]:
    """Convert the library's exceptions and panics, which are BaseExceptions, to UserError.

    Args:
        expected: the expected input, for the message.
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
    """Suppress the report of a panic on stderr; other output is passed on."""
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


def _linear(text: str, file: Bounded) -> str:
    """Replace regular expressions that take quadratic time by others that match the same."""
    changed = False
    for part in (part for component in LISTS for part in parts_of(file.data, component)):
        regex = regex_of(part)
        if regex is not None and not unsupported(regex) and linear(regex) != regex:
            part["pattern"]["Regex"] = linear(regex)
            changed = True
    return json.dumps(file.data) if changed else text
