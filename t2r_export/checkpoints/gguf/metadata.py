"""The keys of a GGUF file's architecture: read with their types checked, each at most once refused or forgotten.

A key that no table reads is refused unless its value switches something off, since every key of an architecture
describes its computation.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from t2r_export.checkpoints.gguf.header import DOWNLOAD, Place
from t2r_export.checkpoints.weights import listed
from t2r_export.config.validation import MAX_LAYERS
from t2r_runtime.errors import UserError, printable

ARCHITECTURE = "general.architecture"
NEUTRAL: tuple[Any, ...] = (0, False, "", "none", [])
# of the file's origin, or of what tensors say too; suffixes of keys
HARMLESS = frozenset(
    ["tensor_data_layout", "rope.scaling.finetuned", "attention.value_length", "vocab_size", "context_length"]
    # some files have the epsilon of norms under both names
    + ["attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon"]
)


class Metadata:
    """Metadata and tensors of all parts of a file."""

    def __init__(self, path: Path, values: Mapping[str, Any], tensors: Mapping[str, Place]) -> None:
        """Raises UserError if the file is no model: an adapter, or a vision encoder."""
        self.path, self.values, self.tensors = path, values, tensors
        self.architecture = self._whole(ARCHITECTURE, str, None)
        if (kind := values.get("general.type", "model")) != "model":
            raise self.wrong("general.type", "model", kind, "pass the file of the model")
        self.read: set[str] = set()

    def has(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self.values

    def get(self, key: str, kind: type | tuple[type, ...] = int, default: Any = None) -> Any:
        """A value of the architecture, of that type; `default` if it is absent, and an error if that is None."""
        self.read.add(key)
        return self._whole(f"{self.architecture}.{key}", kind, default)

    @property
    def drafts(self) -> int:
        """The number of layers at the end that draft tokens."""
        found: int = self.get("nextn_predict_layers", int, 0)
        return found

    @property
    def layers(self) -> int:
        """The number of the other layers. Raises UserError above MAX_LAYERS, before anything is made for each."""
        count, drafts = self.get("block_count"), self.drafts
        if not 0 <= drafts < count <= MAX_LAYERS:
            expected = f"at most {MAX_LAYERS}, and more than nextn_predict_layers={drafts}"
            raise self.wrong(f"{self.architecture}.block_count", expected, count)
        return int(count - drafts)

    def by_layer(self, key: str, kind: type, default: Any) -> list[Any]:
        """A value of each of `layers`, from one for each of all layers, or from one for all."""
        found, layers = self.get(key, (list, kind), default), self.layers
        found = found if isinstance(found, list) else [found] * layers
        if len(found) not in (layers, layers + self.drafts) or not all(type(each) is kind for each in found):
            what = f"a value of type {kind.__name__} for each of {layers + self.drafts} layers"
            raise self.wrong(f"{self.architecture}.{key}", what, found)
        return found[:layers]

    def only(self, key: str, value: int) -> None:
        """Read a key that must have this value, or be absent or 0."""
        if (found := self.get(key, int, value)) not in (0, value):
            raise self.wrong(f"{self.architecture}.{key}", f"{value}", found, "use another model")

    def general(self, key: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        """A value outside of the architecture; None if it is absent without a default."""
        return self._whole(key, kind, default) if key in self.values else default

    def same(self, key: str, default: Any = None) -> int:
        """An integer, or the one that an array repeats for every layer."""
        found = self.get(key, (int, list), default)
        if isinstance(found, list):
            if len(set(map(repr, found))) != 1 or not isinstance(found[0], int):
                raise self.wrong(f"{self.architecture}.{key}", "one integer for all layers", found)
            found = found[0]
        return int(found)

    def rows(self, tensor: str) -> int:
        """The first axis of a tensor."""
        if tensor not in self.tensors or not self.tensors[tensor].shape:
            raise UserError(f"a tensor {tensor} in {self.path}", "none", DOWNLOAD)
        return self.tensors[tensor].shape[0]

    def require_read(self) -> None:
        """Raise UserError if a key was not read, and its value has an effect."""
        prefix = f"{self.architecture}."
        unread = [
            key
            for key, value in self.values.items()
            if key.startswith(prefix) and key.removeprefix(prefix) not in self.read | HARMLESS and value not in NEUTRAL
        ]
        if unread:
            expected = f"keys that are read for {self.architecture} in {self.path}"
            raise UserError(expected, listed(f"{key}={self.values[key]!r}"[:80] for key in unread), "use another model")

    def wrong(self, key: str, expected: str, received: Any, do: str = DOWNLOAD) -> UserError:
        shown = "no value" if received is None else printable(repr(received), 80)
        return UserError(f"{printable(key, 80)} in {self.path} to be {expected}", shown, do)

    def _whole(self, key: str, kind: type | tuple[type, ...], default: Any) -> Any:
        value = self.values.get(key, default)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.wrong(key, " or ".join(one.__name__ for one in kinds), value)
        return value
