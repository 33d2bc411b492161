"""libt2r through ctypes: the C API as a program of another language sees it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from bindings.declarations import HEADER, Type, parse
from numpy.typing import NDArray

DECLARED = parse(HEADER.read_text("utf-8"))


def _ctype(kind: Type) -> Any:
    """A handle is an address."""
    pointers = len(kind.const)
    if pointers and kind.base in ("char", "void", *DECLARED.opaque):
        made, pointers = c_char_p if kind.base == "char" else c_void_p, pointers - 1
    else:
        made = c_size_t if kind.base == "size_t" else getattr(ctypes, "c_" + kind.base.removesuffix("_t"))
    for _ in range(pointers):
        made = POINTER(made)
    return made


def _structure(name: str) -> Any:
    fields = [(field, _ctype(kind)) for field, kind in DECLARED.structures[name].items()]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


def _callback(name: str) -> Any:
    function = DECLARED.callbacks[name]
    return ctypes.CFUNCTYPE(function.returns and _ctype(function.returns), *map(_ctype, function.takes.values()))


Info, Options, Sampling, Beam, File, Tensor = (
    _structure(f"t2r_{name}") for name in ("info", "options", "sampling", "beam", "file", "tensor")
)
CALLBACK, LOG = _callback("t2r_callback"), _callback("t2r_log")


class Failed(Exception):
    """The kind and the line of a failed call."""

    def __init__(self, kind: str, line: str) -> None:
        super().__init__(f"{kind}: {line}")
        self.kind, self.line = kind, line


class Library:
    """The functions of one libt2r, which raise Failed."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.t2r_error.restype = self._library.t2r_kind_name.restype = c_char_p

    def call(self, name: str, *arguments: object) -> None:
        if kind := getattr(self._library, name)(*arguments):
            line = self._library.t2r_error().decode()
            assert line.startswith("expected ") and "\n" not in line and line.count("; ") >= 2, line
            raise Failed(self._library.t2r_kind_name(kind).decode(), line)

    def log(self, level: int, hook: Callable[[int, str], None] | None) -> None:
        self._hook = LOG(lambda said, message, _: hook(said, message.decode())) if hook else LOG(0)
        self.call("t2r_set_log", self._hook, None, c_int32(level))

    def version(self) -> int:
        return int(self._library.t2r_version())

    def options(self, config: Sequence[str] = (), provider: Sequence[str] = (), **values: int) -> ctypes.Structure:
        made = Options()
        self.call("t2r_defaults", byref(made), c_size_t(ctypes.sizeof(made)))
        for name, value in values.items():
            setattr(made, name, value)
        for name, strings in ("config", config), ("provider", provider):
            if strings:
                setattr(made, name, (c_char_p * len(strings))(*map(str.encode, strings)))
                setattr(made, f"{name}_count", len(strings))
        return made

    def sampling(
        self, decoder: c_void_p | None = None, stop_tokens: Sequence[int] | None = None, **values: float
    ) -> ctypes.Structure:
        """The graph's options, or the contract's without a decoder, changed by the arguments."""
        made = Sampling()
        self.call("t2r_sampling_defaults", decoder, byref(made), c_size_t(ctypes.sizeof(made)))
        for name, value in values.items():
            setattr(made, name, value)
        if stop_tokens is not None:
            made.stop_tokens, made.stop_count = (c_int64 * (len(stop_tokens) + 1))(*stop_tokens), len(stop_tokens)
        return made


def numbers(tokens: Sequence[int]) -> Any:
    return (c_int64 * max(len(tokens), 1))(*tokens)


class Decoder:
    def __init__(self, library: Library, path: Path | None, handle: c_void_p | None = None, **options: Any) -> None:
        self.library = library
        self.handle = handle or c_void_p()
        if path is not None:
            library.call("t2r_open", str(path).encode(), byref(library.options(**options)), byref(self.handle))

    @classmethod
    def in_memory(cls, library: Library, *files: tuple[str, bytes], **options: int) -> Decoder:
        """Open files in memory, the step graph first. Their bytes are freed after opening."""
        handle = c_void_p()
        copies = [ctypes.create_string_buffer(content, len(content)) for _, content in files]
        given = (File * len(files))()
        for file, (name, _), copy in zip(given, files, copies, strict=True):
            file.name, file.data, file.bytes = name.encode(), ctypes.addressof(copy), len(copy)
        called = byref(library.options(**options)), byref(handle)
        library.call("t2r_open_memory", given, c_size_t(len(files)), *called)
        for copy in copies:
            ctypes.memset(copy, 0xA5, len(copy))
        return cls(library, None, handle)

    def close(self) -> None:
        self.library.call("t2r_close", self.handle)

    def fork(self) -> Decoder:
        return self._other("t2r_fork")

    def copy(self) -> Decoder:
        return self._other("t2r_copy")

    def _other(self, name: str) -> Decoder:
        other = c_void_p()
        self.library.call(name, self.handle, byref(other))
        return Decoder(self.library, None, other)

    def cancel(self) -> None:
        self.library.call("t2r_cancel", self.handle)

    def metadata(self, key: str) -> str | None:
        value, size = c_char_p(), c_size_t()
        self.library.call("t2r_metadata", self.handle, key.encode(), byref(value), byref(size))
        assert (value.value is None) == (size.value == 0)
        return ctypes.string_at(value, size.value).decode() if value.value is not None else None

    @property
    def info(self) -> ctypes.Structure:
        found = Info()
        self.library.call("t2r_get_info", self.handle, byref(found), c_size_t(ctypes.sizeof(found)))
        return found

    def reset(self, batch: int = 0) -> None:
        self.library.call("t2r_reset", self.handle, c_size_t(batch))

    def adapt(self, *names: str | None) -> None:
        given = (c_char_p * len(names))(*(name if name is None else name.encode() for name in names))
        self.library.call("t2r_adapt", self.handle, given, c_size_t(len(names)))

    def step(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        logits = POINTER(c_float)()
        self.library.call("t2r_step", self.handle, numbers(tokens), c_size_t(len(tokens)), byref(logits))
        return np.ctypeslib.as_array(logits, (len(tokens), self.info.vocab_size)).copy()

    def prefill(self, tokens: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        logits, flat = POINTER(c_float)(), numbers([token for row in tokens for token in row])
        sizes = c_size_t(len(tokens)), c_size_t(len(tokens[0]))
        self.library.call("t2r_prefill", self.handle, flat, *sizes, byref(logits))
        return np.ctypeslib.as_array(logits, (len(tokens), self.info.vocab_size)).copy()

    def read_vectors(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Vectors (batch, length, size)."""
        logits, given = POINTER(c_float)(), np.ascontiguousarray(vectors, np.float32)
        flat = given.ctypes.data_as(POINTER(c_float))
        self.library.call("t2r_read_vectors", self.handle, flat, *map(c_size_t, given.shape), byref(logits))
        return np.ctypeslib.as_array(logits, (len(given), self.info.vocab_size)).copy()

    def reorder(self, rows: Sequence[int]) -> None:
        self.library.call("t2r_reorder", self.handle, numbers(rows), c_size_t(len(rows)))

    def take(self, rows: Sequence[tuple[Decoder, int]]) -> None:
        decoders = (ctypes.c_void_p * len(rows))(*(other.handle for other, _ in rows))
        self.library.call("t2r_take", self.handle, decoders, numbers([row for _, row in rows]), c_size_t(len(rows)))

    def choose(self, logits: NDArray[np.float32], row: int, draw: int, **options: Any) -> int:
        given, token = np.ascontiguousarray(logits).ctypes.data_as(POINTER(c_float)), c_int64()
        sampling = byref(self.library.sampling(self.handle, **options))
        self.library.call("t2r_choose", self.handle, given, c_size_t(row), sampling, c_int64(draw), byref(token))
        return token.value

    def generate(
        self, prompt: Sequence[int], most: int, callback: Callable[[int], int] | None = None, **options: Any
    ) -> list[int]:
        return self.generate_with(prompt, most, self.library.sampling(self.handle, **options), callback)

    def generate_with(
        self,
        prompt: Sequence[int],
        most: int,
        sampling: ctypes.Structure | None,
        callback: Callable[[int], int] | None = None,
    ) -> list[int]:
        tokens, count = POINTER(c_int64)(), c_size_t()
        called = CALLBACK(lambda token, _: callback(token)) if callback else CALLBACK(0)
        out = byref(tokens), byref(count)
        self.written = list[int]()
        arguments = numbers(prompt), c_size_t(len(prompt)), c_int64(most), sampling and byref(sampling), called, None
        try:
            self.library.call("t2r_generate", self.handle, *arguments, *out)
        finally:
            self.written = tokens[: count.value]  # on failure, the tokens chosen before
        return self.written

    def translate(self, source: Sequence[int], **options: float) -> list[tuple[list[int], float]]:
        beam, found, translations = Beam(), c_size_t(), []
        self.library.call("t2r_beam_defaults", self.handle, byref(beam), c_size_t(ctypes.sizeof(beam)))
        for name, value in options.items():
            setattr(beam, name, value)
        source_size = numbers(source), c_size_t(len(source))
        self.library.call("t2r_translate", self.handle, *source_size, byref(beam), byref(found))
        for index in range(found.value):
            tokens, count, score = POINTER(c_int64)(), c_size_t(), c_double()
            out = byref(tokens), byref(count), byref(score)
            self.library.call("t2r_translation", self.handle, c_size_t(index), *out)
            translations.append((tokens[: count.value], score.value))
        return translations

    def states(self) -> dict[str, NDArray[Any]]:
        found = {}
        for index in range(self.info.states):
            tensor = Tensor()
            self.library.call("t2r_state", self.handle, c_size_t(index), byref(tensor))
            content = ctypes.string_at(tensor.data, tensor.bytes)
            shape = tensor.shape[: tensor.rank]
            found[tensor.name.decode()] = np.frombuffer(content, tensor.dtype.decode()).reshape(shape)
        return found

    def save(self, path: Path, token: int = -1) -> None:
        self.library.call("t2r_save", self.handle, str(path).encode(), c_int64(token))

    def load(self, path: Path) -> int:
        token = c_int64()
        self.library.call("t2r_load", self.handle, str(path).encode(), byref(token))
        return token.value

    def save_memory(self, token: int = -1) -> bytes:
        data, size = c_void_p(), c_size_t()
        self.library.call("t2r_save_memory", self.handle, c_int64(token), byref(data), byref(size))
        return ctypes.string_at(data, size.value)

    def load_memory(self, content: bytes) -> int:
        token, copy = c_int64(), ctypes.create_string_buffer(content, max(len(content), 1))
        self.library.call("t2r_load_memory", self.handle, copy, c_size_t(len(content)), byref(token))
        return token.value


class Tokenizer:
    def __init__(self, library: Library, json: str | bytes | Decoder, bos_token: int = -1) -> None:
        self.library, self.handle = library, c_void_p()
        if isinstance(json, Decoder):
            library.call("t2r_open_tokenizer", json.handle, byref(self.handle))
        else:
            text = json.encode() if isinstance(json, str) else json
            library.call("t2r_make_tokenizer", text, c_size_t(len(text)), c_int64(bos_token), byref(self.handle))

    def close(self) -> None:
        self.library.call("t2r_close_tokenizer", self.handle)

    def encode(self, text: str | bytes, special: bool = True) -> list[int]:
        content = text.encode() if isinstance(text, str) else text
        tokens, count = POINTER(c_int64)(), c_size_t()
        arguments = content, c_size_t(len(content)), c_int(special), byref(tokens), byref(count)
        self.library.call("t2r_encode", self.handle, *arguments)
        return tokens[: count.value]

    def decode(self, tokens: Sequence[int]) -> str:
        text, size = c_char_p(), c_size_t()
        self.library.call("t2r_decode", self.handle, numbers(tokens), c_size_t(len(tokens)), byref(text), byref(size))
        return ctypes.string_at(text, size.value).decode()

    def stream(
        self,
        prompt: Sequence[int],
        tokens: Sequence[int],
        stops: Sequence[str] | None = None,
        at: int = 0,
        then: Mapping[int, Sequence[str]] | None = None,
    ) -> list[str]:
        """The text pieces, one per token, and the rest; stop texts apply from token `at` on, then others."""
        given = ({} if stops is None else {at: stops}) | dict(then or {})
        handle, text, size, pieces = c_void_p(), c_char_p(), c_size_t(), []
        self.library.call("t2r_open_stream", self.handle, numbers(prompt), c_size_t(len(prompt)), byref(handle))
        for place, token in enumerate(tokens):
            if place in given:
                texts = [stop.encode() for stop in given[place]]
                self.library.call("t2r_stop_at", handle, (c_char_p * max(len(texts), 1))(*texts), c_size_t(len(texts)))
            self.library.call("t2r_feed", handle, c_int64(token), byref(text), byref(size))
            pieces.append(ctypes.string_at(text, size.value).decode())
        self.library.call("t2r_end_stream", handle, byref(text), byref(size))
        pieces.append(ctypes.string_at(text, size.value).decode())
        stopped = c_int()
        self.library.call("t2r_stopped", handle, byref(stopped))
        self.stopped = bool(stopped.value)
        self.library.call("t2r_close_stream", handle)
        return pieces
