"""What an importer offers, and how it reads a config.json: the interface written once.

An importer is a file a checkpoint family. It says what the family's config.json means as a `ModelConfig`, and which
tensor of the family's files holds which of our weights. It never touches a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from t2r_export.config.model import ModelConfig
from t2r_export.config.validation import LARGEST, MAX_LAYERS
from t2r_runtime.errors import UserError

# transformers' names -> ours; several names stand for one formula
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}


@dataclass(frozen=True)
class Source:
    """One tensor of a checkpoint: our weights that it holds, one below the other, and whether it is transposed."""

    parts: tuple[str, ...]
    transposed: bool = False


@dataclass(frozen=True)
class Importer:
    """One checkpoint family.

    Attributes:
        config: config.json -> our config. Raises UserError for what is missing, wrong, or a feature that we lack.
        sources: our config -> every tensor that a checkpoint with this config has, by its full name.
        prefix: what full names begin with; a checkpoint of the bare backbone leaves it out.
        head: the full name of the output projection's weight, which has no prefix and is absent where it is tied.
        buffers: full names of tensors that are no weights (masks, frequencies) and are passed over.
    """

    config: Callable[[Fields], ModelConfig]
    sources: Callable[[ModelConfig], dict[str, Source]]
    prefix: str
    head: str
    buffers: re.Pattern[str]


class Fields:
    """A config.json (or an object in it) read key by key, each with its check. Knows which keys nobody read.

    A key that is absent or null has its default; without one it is an error that names the key.
    """

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data = data
        self.where = where
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or `default` where it is absent or null, unchecked."""
        self.read.add(key)
        value = self.data.get(key)
        return default if value is None else value

    def size(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.wrong(key, "an integer of at least 1", value)
        return value

    def layers(self, key: str) -> int:
        """A number of layers, bounded, because a tuple is made of them before anything else can check it."""
        count = self.size(key)
        if count > MAX_LAYERS:
            raise self.wrong(key, f"at most {MAX_LAYERS}", count)
        return count

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < LARGEST:
            raise self.wrong(key, "a finite positive number", value)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false", value)
        return value

    def choice(self, key: str, known: Mapping[str, str], default: str) -> str:
        """`known[value]`, where `value` is the key's."""
        value = self.get(key, default)
        if not isinstance(value, str) or value not in known:
            raise self.wrong(key, f"one of {', '.join(known)}", value, "this is the list of those that can be read")
        return known[value]

    def only(self, key: str, supported: Any) -> None:
        """Refuse a feature that we do not have: the key must be absent, null, or `supported`."""
        value = self.get(key, supported)
        supported_only = f"absent or {_json(supported)}, since nothing else is supported"
        if value != supported or isinstance(value, bool) != isinstance(supported, bool):
            raise self.wrong(key, supported_only, value, "use a model without it")

    def object(self, key: str) -> dict[str, Any]:
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, "an object", value)
        return value

    def tokens(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """A token, or a list of tokens, or none."""
        value = self.get(key, [])
        tokens = value if isinstance(value, list) else [value]
        for token in tokens:
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
                raise self.wrong(key, f"tokens from 0 to {vocab_size - 1}", value)
        return tuple(tokens)

    def unread(self) -> list[str]:
        return sorted(set(self.data) - self.read)

    def wrong(self, key: str, expected: str, value: Any, do: str = "") -> UserError:
        received = "no value" if value is None else _json(value)
        return UserError(f"{key} in {self.where} to be {expected}", received, do or f"correct {key}")


def _json(value: Any) -> str:
    """The value as the file spells it, on one line and no longer than a message can be."""
    try:
        return json.dumps(value)[:100]
    except RecursionError:
        return "a value nested too deep"
