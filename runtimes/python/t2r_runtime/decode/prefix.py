"""Prefix caching: keeps the states after blocks of tokens for other texts with the same prefix.

cache = PrefixCache(Decoder("model.onnx"), max_bytes=1 << 28)
cache.generate(system + question, 200)  # reads all tokens
cache.generate(system + another, 200)  # reads the tokens after the common blocks
cache.rewind(50)  # removes the last 50 tokens

The state of a prefix has constant size, so many prefixes can be kept; but it cannot be truncated, so it serves only
texts that contain the whole prefix.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from t2r_runtime.checks import require_kind, require_value
from t2r_runtime.contract.sampling import Sampling
from t2r_runtime.decode.decoder import Decoder
from t2r_runtime.decode.history import RECENT
from t2r_runtime.errors import UserError, printable
from t2r_runtime.files import require_path, writable_folder
from t2r_runtime.session.stepper import require_room, token_ids
from t2r_runtime.session.threads import InUse, alone

States = Mapping[str, NDArray[Any]]
SUFFIX = ".state"  # of the files in `folder`


class PrefixCache:
    """Caches decoder states of shared prompt prefixes.

    Args:
        decoder: used by the cache exclusively; it must have a batch of 1.
        max_bytes: memory limit of the states. The least recently used are evicted first, and of one text those of its
            longest prefixes.
        block: number of tokens between cached states. Smaller blocks find longer prefixes but keep more states.
        folder: folder to store states in, for other processes. It must be trusted, as states do not prove which text
            they belong to. Keys include a hash of the step graph's file, its providers, the decoder's adapter and
            whether a prefill graph reads blocks. The file is hashed here; it is small if the graph has companions, as
            its weights are then in a file whose name contains their hash.
        max_disk_bytes: size limit of the files in `folder`.

    Raises:
        UserError: a value out of range, a translator's decoder, or a batch other than 1.

    Cached states equal recomputed ones bit for bit, since texts are always read in the same blocks.
    """

    def __init__(
        self,
        decoder: Decoder,
        max_bytes: int = 1 << 28,
        block: int = 256,
        folder: str | Path | None = None,
        max_disk_bytes: int = 1 << 30,
    ) -> None:
        require_kind(decoder, Decoder, "a Decoder as decoder", "graph")
        for name, value, least in (
            ("max_bytes", max_bytes, 0),
            ("block", block, 1),
            ("max_disk_bytes", max_disk_bytes, 0),
        ):
            require_value(type(value) is int and value >= least, f"{name} of at least {least}", value, "snapshot")
        if folder is not None:
            require_path(folder)
        if decoder.signature.source is not None:
            do = "use the decoder of a language model"
            raise UserError("a decoder without a source", "a translator's", do, "graph")
        decoder.reset(batch=1)
        self.in_use = InUse("prefix cache", "give each thread its own")
        self.decoder, self.block, self.max_bytes = decoder, block, max_bytes
        self.reused = 0  # tokens of the last text found in the cache
        self._kept: OrderedDict[bytes, States] = OrderedDict()  # by digest, least recently used first
        self._files = None if folder is None else _Files(Path(folder), decoder, max_disk_bytes)
        self._start = b"" if folder is None else _digest_of_reader(decoder, block)

    @property
    def kept_bytes(self) -> int:
        """Size of the cached states in memory."""
        return sum(map(_size, self._kept.values()))

    @alone
    def read(self, ids: ArrayLike) -> NDArray[np.float32]:
        """Read a text from its start, using the longest cached prefix.

        Args:
            ids: the text, integers (T,), T of at least 1.

        Returns:
            Logits after its last token, float32 (1, vocabulary).

        Raises:
            UserError: as for Decoder.prefill. The decoder is reset then.
        """
        self.decoder.reset()
        text = token_ids(ids, self.decoder.signature, 1).array[0]
        require_room(self.decoder, text.size)
        digests = self._digests(text[: (text.size - 1) // self.block * self.block])
        for digest in digests:  # evicted last
            if digest in self._kept:
                self._kept.move_to_end(digest)
        self.reused = self._found(text, digests)
        for place in range(self.reused // self.block, len(digests)):
            self.decoder.prefill(text[place * self.block : (place + 1) * self.block])
            states = self.decoder.state()
            if self._files is not None:
                self._files.write(digests[place], states, self.decoder.position)
            self._keep(digests[place], states, digests)
        for digest in reversed(digests):  # the shortest is the most recently used
            if digest in self._kept:
                self._kept.move_to_end(digest)
        return self.decoder.prefill(text[len(digests) * self.block :])

    @alone
    def generate(
        self,
        ids: ArrayLike,
        max_tokens: int,
        sampling: Sampling = Sampling(),
        callback: Callable[[int], object] | None = None,
    ) -> list[int]:
        """`read` a text from its start and generate, as Decoder.generate does.

        Raises:
            UserError: as for `read` and Decoder.generate.
        """
        self.decoder.reset()
        text = token_ids(ids, self.decoder.signature, 1).array[0]
        if text.size > 1:
            self.read(text[:-1])
        return self.decoder.generate(text[-1:], max_tokens, sampling, callback)

    @alone
    def rewind(self, count: int) -> None:
        """Remove the last `count` tokens, by reading the remaining text from the nearest cached state.

        Raises:
            UserError: more tokens than were read, or a text of more than 65,536 tokens.
        """
        text = self.decoder.history()
        require_value(type(count) is int and 0 <= count <= text.size, f"a count in 0 … {text.size}", count, "position")
        if self.decoder.position != text.size:
            received = f"{self.decoder.position} tokens"
            raise UserError(
                f"a text of at most {RECENT} tokens, read by this cache", received, "read it again", "token"
            )
        if count == text.size:
            self.decoder.reset()
        elif count:
            self.read(text[: text.size - count])

    def _digests(self, text: NDArray[np.int64]) -> list[bytes]:
        """Digests of the text up to the end of each block."""
        digest, found = self._start, []
        for block in text.reshape(-1, self.block):
            digest = _digest(digest + block.astype("<i8").tobytes())
            found.append(digest)
        return found

    def _found(self, text: NDArray[np.int64], digests: list[bytes]) -> int:
        """Set the states of the longest cached prefix; returns its length."""
        for blocks in range(len(digests), 0, -1):
            digest, tokens = digests[blocks - 1], blocks * self.block
            states = self._kept.get(digest)
            if states is None and self._files is not None:
                states = self._files.read(digest, tokens)
                if states is not None:
                    self._keep(digest, states, digests)
            if states is not None:
                self.decoder.set_state(states, tokens, text[:tokens])
                return tokens
        return 0

    def _keep(self, digest: bytes, states: States, text: list[bytes]) -> None:
        """Cache states of the text with the digests `text`, if they fit."""
        if _size(states) > self.max_bytes:
            return  # would evict all others and still not fit
        self._kept[digest] = states
        left = self.kept_bytes
        while left > self.max_bytes:
            oldest = next(iter(self._kept))
            # if only shorter prefixes of this text are left, drop the new one
            left -= _size(self._kept.pop(digest if oldest in text else oldest))


class _Files:
    """Snapshots in a folder (t2r_runtime.session.snapshot), named by the digest of their text."""

    def __init__(self, folder: Path, decoder: Decoder, max_bytes: int) -> None:
        self._folder, self._signature, self._max_bytes = folder, decoder.signature, max_bytes
        writable_folder(folder, printable(folder))

    def read(self, digest: bytes, tokens: int) -> States | None:
        """Load the states after `tokens` tokens; a damaged file or one of another model is deleted."""
        import t2r_runtime.session.snapshot as snapshot

        path = self._path(digest)
        if not path.is_file():
            return None
        with contextlib.suppress(UserError):
            states, position, _ = snapshot.load(path, self._signature)
            if position == tokens:
                with contextlib.suppress(OSError):  # another process deleted it
                    os.utime(path)  # mark as recently used
                return states
        path.unlink(missing_ok=True)
        return None

    def write(self, digest: bytes, states: States, position: int) -> None:
        import t2r_runtime.session.snapshot as snapshot

        path = self._path(digest)
        if _size(states) > self._max_bytes:
            return
        snapshot.save(path, self._signature, states, position)
        files = []
        for file in self._folder.glob(f"*{SUFFIX}"):
            with contextlib.suppress(OSError):  # another process deleted it
                files.append((file, file.stat()))
        left = sum(about.st_size for _, about in files)
        for file, about in sorted(files, key=lambda pair: pair[1].st_mtime_ns):
            if left <= self._max_bytes:
                return
            if file != path:
                with contextlib.suppress(OSError):
                    file.unlink()
                left -= about.st_size

    def _path(self, digest: bytes) -> Path:
        return self._folder / (digest.hex() + SUFFIX)


def _digest_of_reader(decoder: Decoder, block: int) -> bytes:
    """Hash of the graph, its providers, and whether blocks are prefilled; states depend on these and the text."""
    import hashlib

    try:
        with open(decoder.path, "rb") as file:
            graph = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"the graph {decoder.path}", printable(error), "open it where it lies", "file") from error
    at_once = decoder.prefill_from is not None and block >= decoder.prefill_from
    adapter = [] if decoder.adapter is None else [decoder.adapter]
    return _digest(json.dumps([graph, sorted(decoder.placement), at_once, *adapter]).encode())


def _digest(data: bytes) -> bytes:
    import hashlib  # imported on use: the first token does not need it

    return hashlib.sha256(data).digest()


def _size(states: States) -> int:
    return sum(array.nbytes for array in states.values())
