"""What an importer offers, and how it reads a config.json: the interface written once.

An importer is a file a checkpoint family. It says what the family's config.json means as a `ModelConfig`, and which
tensor of the family's files holds which of our weights. It never touches a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from t2r_export.checkpoints.importers.keys import Keys
from t2r_export.checkpoints.importers.sources import HEAD, Source
from t2r_export.config.model import ModelConfig
from t2r_export.config.validation import MAX_LAYERS, finite
from t2r_runtime.errors import UserError, printable

# transformers' names -> ours; several names stand for one formula
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    **{name: name for name in ("quick_gelu", "relu2", "mish", "gelu_10")},
}


@dataclass(frozen=True)
class Importer:
    """One checkpoint family.

    Attributes:
        keys: what each key of its config.json is.
        config: config.json -> our config. Raises UserError for what is missing, wrong, or a feature that we lack.
        sources: our config and the names of its weights -> every tensor that a checkpoint with this config has, by
            its full name.
        prefix: what full names begin with; a checkpoint of the bare backbone leaves it out.
        outside: full names that have no prefix.
        renamed: other full names that checkpoints have for tensors, with {} for the number of a layer -> the names.
        joined: our config -> full names, with {}, of tensors that may be stored in pieces, one below the other -> the
            pieces' names.
        copies: our config -> tensors that may be stored beside what they are tied to: full name -> the full name of the
            source that it is equal to.
        sines: it computes positions, and its files may store a table of them (stored_positions.py).
        factors: config.json -> by what tensors are multiplied that are stored without it: full names, with {} for the
            number of a layer, -> a number, or a column with one for each row.
        repeated: config.json -> what names of tensors begin with that a checkpoint does not store, since they are the
            ones of another layer -> what those begin with.
        sums: config.json -> full names -> two tensors, B and A: the weight is the stored one and B A.
        buffers: full names of tensors that are no weights (masks, frequencies) and are passed over.
        drafts: layers behind the last one draft tokens, and are passed over.
        nested: the key of the object in config.json that describes the decoder, where it is a part of a larger model.
        text: the model_type that this object has to have; None: whatever it has.
        wrapper: what full names begin with in a larger model, in place of `prefix`: one of these.
        provenance: config.json -> where its model is from, where the folder is not the origin (t2r.py).
    """

    keys: Keys
    config: Callable[[Fields], ModelConfig]
    sources: Callable[[ModelConfig, Iterable[str]], dict[str, Source]]
    prefix: str
    buffers: re.Pattern[str]
    copies: Callable[[ModelConfig], dict[str, str]]
    outside: frozenset[str] = frozenset({HEAD})
    renamed: Mapping[str, str] = field(default_factory=dict)
    joined: Callable[[ModelConfig], Mapping[str, tuple[str, ...]]] = lambda _: {}
    sines: bool = False
    drafts: bool = False
    factors: Callable[[Fields], Mapping[str, float | Tensor]] = lambda _: {}
    repeated: Callable[[Fields], Mapping[str, str]] = lambda _: {}
    sums: Callable[[Fields], Mapping[str, tuple[str, str]]] = lambda _: {}
    nested: str | None = None
    text: str | None = None
    wrapper: tuple[str, ...] = ()
    provenance: Callable[[Fields], dict[str, Any]] | None = None

    def fields(self, data: Mapping[str, Any], where: str) -> Fields:
        """A config.json of the family, keys of a nested config beside those around it.

        Raises:
            UserError: as `Fields`; or a key that is read, and has another value in the nested config.
        """
        if self.nested is None:
            return Fields(data, where, self.keys)
        outer = {key: value for key, value in data.items() if key != self.nested}
        inner = Fields(data, where).object(self.nested)
        if self.text not in (None, inner.get("model_type")):
            expected = f"{self.text}, since no other is read out of one"
            raise Fields(inner, f"{self.nested} in {where}").wrong("model_type", expected, inner.get("model_type"))
        for key in inner.keys() & outer.keys() & self.keys.read.keys() - {"model_type"}:
            if outer[key] is not None and not _same(outer[key], inner[key]):
                expected = f"{spelt(inner[key])}, as in its {self.nested}, or absent"
                raise Fields(data, where).wrong(key, expected, outer[key])
        merged = {**outer, **inner, "model_type": data.get("model_type")}
        return Fields(merged, where, self.keys)


def tied_head(embedding: str) -> Callable[[ModelConfig], dict[str, str]]:
    """`Importer.copies` of a family that stores the embedding by that name, and may store a tied head too."""
    return lambda config: {HEAD: embedding} if config.tied_head else {}


class Fields:
    """A config.json (or an object in it) read key by key, each with its check. Knows which keys nobody read.

    A key that is absent has its family's default; null is a value, which `null` of a method gives a meaning.
    """

    def __init__(self, data: Mapping[str, Any], where: str, keys: Keys | None = None) -> None:
        """`keys` are the family's.

        Raises:
            UserError: a key that changes the function, or two spellings of one that contradict each other.
        """
        self.data = dict(data)
        self.where = where
        self.keys = keys
        self.read: set[str] = set()
        if keys is not None:
            self._spell(keys)
            self._refuse(keys)

    def _spell(self, keys: Keys) -> None:
        """Every alias under the key that it stands for."""
        for alias, key in keys.aliases.items():
            if alias not in self.data:
                continue
            value = self.data.pop(alias)
            if not _same(self.data.setdefault(key, value), value):
                raise UserError(
                    f"{key} and {alias} in {self.where} to be equal, since they name one thing",
                    f"{spelt(self.data[key])} and {spelt(value)}",
                    "leave the wrong one out",
                )

    def _refuse(self, keys: Keys) -> None:
        for key, value in self.data.items():
            neutral = keys.neutral(key)
            if neutral is not None and not any(_same(value, one) for one in neutral):
                allowed = ", ".join(spelt(one) for one in neutral)
                raise UserError(
                    f"{printable(key, 80)} in {self.where} to be absent or {allowed}, since nothing else is supported",
                    spelt(value),
                    "use a model without it, or take the key out if the model was trained without it",
                )

    def reads(self, key: str) -> bool:
        """Whether the family has the key."""
        return self.keys is None or key in self.keys.read

    def get(self, key: str, null: Any = None) -> Any:
        """The value, unchecked; `null` where it is null."""
        assert self.reads(key), f"{key} is in no table"
        self.read.add(key)
        default = None if self.keys is None else self.keys.read[key]
        value = self.data.get(key, default)
        return null if value is None else value

    def size(self, key: str, null: int | None = None, least: int = 1) -> int:
        value = self.get(key, null)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.wrong(key, f"an integer of at least {least}", value)
        return value

    def layers(self, key: str) -> int:
        """A number of layers, bounded, because a tuple is made of them before anything else can check it."""
        count = self.size(key)
        if count > MAX_LAYERS:
            raise self.wrong(key, f"at most {MAX_LAYERS}", count)
        return count

    def number(self, key: str, null: float | None = None) -> float:
        value = self.get(key, null)
        if not finite(value) or value <= 0:
            raise self.wrong(key, "a finite positive number", value)
        return float(value)

    def flag(self, key: str, null: bool | None = None) -> bool:
        value = self.get(key, null)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false", value)
        return value

    def choice(self, key: str, known: Mapping[str, str], null: str | None = None) -> str:
        """`known[value]`, where `value` is the key's."""
        value = self.get(key, null)
        if not isinstance(value, str) or value not in known:
            raise self.wrong(key, f"one of {', '.join(known)}", value, "this is the list of those that can be read")
        return known[value]

    def object(self, key: str) -> dict[str, Any]:
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, "an object", value)
        return value

    def tokens(self, key: str) -> list[int]:
        """A token, or a list of tokens, or none, whatever the vocabulary."""
        value = self.get(key, [])
        tokens = value if isinstance(value, list) else [value]
        if not all(isinstance(token, int) and not isinstance(token, bool) for token in tokens):
            raise self.wrong(key, "a token or a list of tokens", value)
        return tokens

    def unread(self) -> list[str]:
        """Keys that have no effect here, and are not known to have none elsewhere."""
        known = frozenset() if self.keys is None else self.keys.harmless | self.keys.refused.keys()
        return sorted(set(self.data) - self.read - known)

    def wrong(self, key: str, expected: str, value: Any, do: str = "") -> UserError:
        received = "no value" if value is None else spelt(value)
        return UserError(f"{key} in {self.where} to be {expected}", received, do or f"correct {key}")


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON is: true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def spelt(value: Any) -> str:
    """The value as the file spells it, on one line and no longer than a message can be."""
    try:
        return json.dumps(value)[:100]
    except RecursionError:
        return "a value nested too deep"
