"""What a text began with is read once: states after whole blocks of tokens, kept for the next text that begins so.

cache = PrefixCache(Decoder("model.onnx"), max_bytes=1 << 28)
cache.generate(system + question, 200)  # reads all of it
cache.generate(system + another, 200)  # reads what stands behind the blocks that both have
cache.rewind(50)  # the text without its last 50 tokens

A softmax decoder keeps a cache for each token of a prefix. Here a prefix of any length is one state of one size, so
that many can be kept; but a state cannot be cut, so that it serves only texts that have all of what it has read.
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
from t2r_runtime.files import require_path
from t2r_runtime.session.stepper import require_room, token_ids
from t2r_runtime.session.threads import InUse, alone

States = Mapping[str, NDArray[Any]]
SUFFIX = ".state"  # of the files of a folder


class PrefixCache:
    """None so far.

    Args:
        decoder: of one text, for the cache alone from now on: its states are set and read.
        max_bytes: the most that kept states take in memory; those that were used longest ago give way, and of one
            text those of its longest prefixes first.
        block: tokens between two states of a text. Smaller blocks find longer prefixes and keep more states.
        folder: where states are files too, which another process finds again; nobody else should write there, since a
            state says nothing of the text that it claims to have read. States are found again by the bytes of the
            step graph's file, the providers that run it and whether a prefill graph does. The file is read whole
            here; it is small where the graph has companions, since its weights then lie in a file of their own, whose
            name holds their hash.
        max_disk_bytes: the most that the files there take.

    Raises:
        UserError: a value out of range, a translator's decoder, or a batch other than 1.

    What is found is bit for bit what reading would give, since a text is read in the same blocks either way.
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
            raise UserError(
                "a decoder of texts alone", "a translator's", "its states are those of its source too", "graph"
            )
        decoder.reset(batch=1)
        self.in_use = InUse("prefix cache", "give each thread one of its own")
        self.decoder, self.block, self.max_bytes = decoder, block, max_bytes
        self.reused = 0  # tokens of the last text that were not read again
        self._kept: OrderedDict[bytes, States] = OrderedDict()  # by the digest of a text, the longest unused first
        self._files = None if folder is None else _Files(Path(folder), decoder, max_disk_bytes)
        self._start = b"" if folder is None else _digest_of_reader(decoder, block)

    @property
    def kept_bytes(self) -> int:
        """What the kept states take."""
        return sum(map(_size, self._kept.values()))

    @alone
    def read(self, ids: ArrayLike) -> NDArray[np.float32]:
        """Stand behind a text as if the decoder had just read it all.

        Args:
            ids: the whole text from its start, integers (T,), T of at least 1.

        Returns:
            The logits after its last token, float32 (1, vocabulary).

        Raises:
            UserError: as of Decoder.prefill. The decoder stands at the start of a text then.
        """
        self.decoder.reset()
        text = token_ids(ids, self.decoder.signature, 1).array[0]
        require_room(self.decoder, text.size)
        digests = self._digests(text[: (text.size - 1) // self.block * self.block])
        for digest in digests:  # these give way last
            if digest in self._kept:
                self._kept.move_to_end(digest)
        self.reused = self._found(text, digests)
        for place in range(self.reused // self.block, len(digests)):
            self.decoder.prefill(text[place * self.block : (place + 1) * self.block])
            states = self.decoder.state()
            if self._files is not None:
                self._files.write(digests[place], states, self.decoder.position)
            self._keep(digests[place], states, digests)
        for digest in reversed(digests):  # the shortest was used last
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
        """Decoder.generate behind `ids`, the whole text from its start, which is read as by `read`.

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
        """Stand where the decoder stood `count` tokens ago: from the nearest state that is kept, the rest read again.

        Raises:
            UserError: more tokens than were read, or a text whose beginning is no longer known (65,536 tokens).
        """
        text = self.decoder.history()
        require_value(type(count) is int and 0 <= count <= text.size, f"a count in 0 … {text.size}", count, "position")
        if self.decoder.position != text.size:
            received = f"{self.decoder.position} tokens"
            raise UserError(f"a text of at most {RECENT} tokens, read by this cache", received, "read it anew", "token")
        if count == text.size:
            self.decoder.reset()
        elif count:
            self.read(text[: text.size - count])

    def _digests(self, text: NDArray[np.int64]) -> list[bytes]:
        """Of the text up to the end of each block."""
        digest, found = self._start, []
        for block in text.reshape(-1, self.block):
            digest = _digest(digest + block.astype("<i8").tobytes())
            found.append(digest)
        return found

    def _found(self, text: NDArray[np.int64], digests: list[bytes]) -> int:
        """Set the states of the longest prefix that is kept; its tokens."""
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
        """Keep states of a text, whose digests are `text`, where there is room for them."""
        if _size(states) > self.max_bytes:
            return  # others would give way for nothing
        self._kept[digest] = states
        left = self.kept_bytes
        while left > self.max_bytes:
            oldest = next(iter(self._kept))
            # nothing is left but shorter prefixes of the same text
            left -= _size(self._kept.pop(digest if oldest in text else oldest))


class _Files:
    """States as the snapshots of a folder (t2r_runtime.session.snapshot), each under the digest of its text."""

    def __init__(self, folder: Path, decoder: Decoder, max_bytes: int) -> None:
        self._folder, self._signature, self._max_bytes = folder, decoder.signature, max_bytes
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:  # a ValueError of a name with a null character
            expected = f"a folder at {printable(folder)}, or room for one"
            raise UserError(expected, printable(error), "name another", "file") from error

    def read(self, digest: bytes, tokens: int) -> States | None:
        """The states after so many tokens; a file that is damaged or of another model goes, as if it had not been."""
        import t2r_runtime.session.snapshot as snapshot

        path = self._path(digest)
        if not path.is_file():
            return None
        with contextlib.suppress(UserError):
            states, position, _ = snapshot.load(path, self._signature)
            if position == tokens:
                os.utime(path)  # used just now
                return states
        path.unlink(missing_ok=True)
        return None

    def write(self, digest: bytes, states: States, position: int) -> None:
        import t2r_runtime.session.snapshot as snapshot

        path = self._path(digest)
        if _size(states) > self._max_bytes:
            return
        snapshot.save(path, self._signature, states, position)
        files = [(file, file.stat()) for file in self._folder.glob(f"*{SUFFIX}")]
        left = sum(about.st_size for _, about in files)
        for file, about in sorted(files, key=lambda pair: pair[1].st_mtime_ns):
            if left <= self._max_bytes:
                return
            if file != path:
                with contextlib.suppress(OSError):  # another process was first
                    file.unlink()
                left -= about.st_size

    def _path(self, digest: bytes) -> Path:
        return self._folder / (digest.hex() + SUFFIX)


def _digest_of_reader(decoder: Decoder, block: int) -> bytes:
    """What states depend on beside the text: every byte of the graph, which any option of a quantization changes, who
    runs it, and whether a block is read at once, which a quantized graph rounds otherwise than steps."""
    import hashlib

    try:
        with open(decoder.path, "rb") as file:
            graph = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"the graph {decoder.path}", printable(error), "open it where it lies", "file") from error
    at_once = decoder.prefill_from is not None and block >= decoder.prefill_from
    return _digest(json.dumps([graph, sorted(decoder.placement), at_once]).encode())


def _digest(data: bytes) -> bytes:
    import hashlib  # what a first token needs not waits until it is needed

    return hashlib.sha256(data).digest()


def _size(states: States) -> int:
    return sum(array.nbytes for array in states.values())
