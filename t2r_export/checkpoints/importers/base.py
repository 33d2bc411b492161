"""The interface of importers, and checked reading of config.json.

An importer is a module per checkpoint family. It converts the family's config.json to a `ModelConfig`, and maps tensors
of the family's files to our weights. It never touches a file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from torch import Tensor

from t2r_export.checkpoints.importers.keys import NOTED, Keys
from t2r_export.checkpoints.importers.sources import HEAD, Source, Transform, named
from t2r_export.config.model import ModelConfig
from t2r_export.config.validation import MAX_LAYERS, MAX_WHOLE, finite
from t2r_runtime.errors import UserError, printable

# transformers' names -> ours; several names can mean one formula
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
        keys: the role of each key of config.json.
        config: config.json -> our config. Raises UserError for missing or wrong values, and for unsupported features.
        sources: our config and the names of its weights -> every tensor of a checkpoint with this config, by full name.
        prefix: the prefix of full names; a checkpoint of the bare backbone omits it.
        outside: full names without the prefix.
        renamed: alternative full names of tensors, with {} for the layer number -> full names.
        joined: our config -> full names, with {}, of tensors that may be stored in pieces along the first axis -> names
            of the pieces.
        copies: our config -> tied tensors that may be stored nevertheless: full name -> full name of the equal source.
        sines: the model computes positions, and its files may store a table of them (stored_positions.py).
        factors: config.json -> factors to multiply stored tensors by: full names, with {} for the layer number, -> a
            number, or a column with one number per row.
        repeated: config.json -> name prefixes of tensors that are stored only for another layer -> prefixes of that
            layer's tensors.
        sums: config.json -> full names -> names of two tensors, B and A: the weight is the stored one plus B A.
        buffers: full names of tensors that are not weights (masks, frequencies), which are ignored.
        drafts: layers after the last one draft tokens, and are ignored.
        draft_head: keys of config.json, in place of the model's, of its draft head's layers (draft_heads.py).
        nested: the key of the object in config.json that describes the decoder of a larger model.
        text: the required model_type of this object; None: any.
        wrapper: prefixes of full names in a larger model, in place of `prefix`.
        provenance: config.json -> the model's provenance, if the folder is not the origin (t2r.py).
    """

    keys: Keys
    config: Callable[[Fields], ModelConfig]
    sources: Callable[[ModelConfig, Iterable[str]], dict[str, Source]]
    prefix: str
    copies: Callable[[ModelConfig], dict[str, str]]
    buffers: re.Pattern[str] = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")
    outside: frozenset[str] = frozenset({HEAD})
    renamed: Mapping[str, str] = field(default_factory=dict)
    joined: Callable[[ModelConfig], Mapping[str, tuple[str, ...]]] = lambda _: {}
    sines: bool = False
    drafts: bool = False
    draft_head: Mapping[str, Any] | None = None
    factors: Callable[[Fields], Mapping[str, float | Tensor]] = lambda _: {}
    repeated: Callable[[Fields], Mapping[str, str]] = lambda _: {}
    sums: Callable[[Fields], Mapping[str, tuple[str, str]]] = lambda _: {}
    nested: str | None = None
    text: str | None = None
    wrapper: tuple[str, ...] = ()
    provenance: Callable[[Fields], dict[str, Any]] | None = None

    def fields(self, data: Mapping[str, Any], where: str) -> Fields:
        """The fields of a config.json of the family, with the keys of a nested config merged in.

        Raises:
            UserError: as `Fields`; or a key that is read has another value in the nested config.
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


def importer(
    keys: Keys,
    config: Callable[[Fields], ModelConfig],
    names: Mapping[str, str],
    transforms: Callable[[ModelConfig], Mapping[str, Transform]] = lambda _: {},
    constants: Mapping[str, float] = MappingProxyType({}),
    **others: Any,
) -> Importer:
    """An importer with a table of names, whose files may store a tied head beside the embedding.

    Args:
        names, transforms, constants: as in `named`; transforms may depend on the model.
        others: further fields of Importer.
    """
    embedding = names["embedding"]
    return Importer(
        keys=keys,
        config=config,
        sources=lambda model, weights: named(model, weights, names, transforms(model), constants=constants),
        prefix=f"{embedding.partition('.')[0]}.",
        copies=lambda model: {HEAD: f"{embedding}.weight"} if model.tied_head else {},
        **others,
    )


class Fields:
    """Checked access to the keys of a config.json, or of an object in it. Tracks which keys were read.

    An absent key has its family's default; null is replaced by the argument `null` of a method.
    """

    def __init__(self, data: Mapping[str, Any], where: str, keys: Keys | None = None) -> None:
        """`keys` are the family's.

        Raises:
            UserError: a key that changes the function, or contradictory spellings of one key.
        """
        self.data = dict(data)
        self.where = where
        self.keys = keys
        self.read: set[str] = set()
        if keys is not None:
            self._spell(keys)
            self._refuse(keys)

    def _spell(self, keys: Keys) -> None:
        """Replace aliases by their keys."""
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
            if neutral is None or any(_same(value, one) for one in neutral):
                continue
            name = f"{printable(key, 80)} in {self.where}"
            other, read = keys.elsewhere(key, self.data) or ("", None)
            if read is None:
                allowed = ", ".join(spelt(one) for one in neutral)
                raise UserError(
                    f"{name} to be absent or {allowed}, since nothing else is supported",
                    spelt(value),
                    "use a model without it, or take the key out if the model was trained without it",
                )
            if not _same(value, read):
                raise UserError(
                    f"{name} to be absent or {spelt(read)}, since this family reads {other}",
                    spelt(value),
                    f"take {printable(key, 80)} out, or correct {other} if the model was trained with this value",
                )

    def reads(self, key: str) -> bool:
        """Whether the family has the key."""
        return self.keys is None or key in self.keys.read

    def get(self, key: str, null: Any = None) -> Any:
        """The unchecked value; `null` if it is null."""
        assert self.reads(key), f"{key} is in no table"
        self.read.add(key)
        default = None if self.keys is None else self.keys.read[key]
        value = self.data.get(key, default)
        return null if value is None else value

    def size(self, key: str, null: int | None = None, least: int = 1) -> int:
        value = self.get(key, null)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.wrong(key, f"an integer of at least {least}", value)
        if value > MAX_WHOLE:  # before arithmetic with floats
            raise self.wrong(key, f"an integer of at most {MAX_WHOLE}", value)
        return value

    def layers(self, key: str) -> int:
        """A number of layers, bounded here because a tuple of this size is made before other checks."""
        count = self.size(key)
        if count > MAX_LAYERS:
            raise self.wrong(key, f"at most {MAX_LAYERS}", count)
        return count

    def divisor(self, key: str, of: str, null: int | None = None) -> int:
        """A size that divides the size `of`."""
        whole, value = self.size(of), self.size(key, null)
        if whole % value:
            raise self.wrong(key, f"a divisor of {of}={whole}", value)
        return value

    def kinds(self, key: str, known: Iterable[str], null: list[str] | None = None) -> list[str]:
        """A known name for each of num_hidden_layers."""
        count, names, value = self.layers("num_hidden_layers"), list(known), self.get(key, null)
        if not isinstance(value, list) or len(value) != count or not all(name in names for name in value):
            raise self.wrong(key, f"{count} names, each one of {', '.join(names)}", value)
        return value

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
        """`known[value]` for the key's value."""
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
        """A token, a list of tokens or none, as a list; not compared with the vocabulary."""
        value = self.get(key, [])
        tokens = value if isinstance(value, list) else [value]
        if not all(isinstance(token, int) and not isinstance(token, bool) for token in tokens):
            raise self.wrong(key, "a token or a list of tokens", value)
        return tokens

    def unread(self) -> list[str]:
        """Keys that were not read and are not known to be harmless."""
        known = frozenset() if self.keys is None else self.keys.harmless | self.keys.refused.keys()
        return sorted(set(self.data) - self.read - known)

    def notes(self) -> list[str]:
        """A line for each key that changes what transformers makes of the folder, but not what is made here."""
        found = []
        for key in sorted(self.keys.noted) if self.keys is not None else ():
            neutral, why = NOTED[key]
            if self.data.get(key) not in neutral:
                found.append(f"{key} in {self.where} is {spelt(self.data[key])}: {why}")
        return found

    def wrong(self, key: str, expected: str, value: Any, do: str = "") -> UserError:
        received = "no value" if value is None else spelt(value)
        return UserError(f"{key} in {self.where} to be {expected}", received, do or f"correct {key}")


def _same(one: Any, other: Any) -> bool:
    """Equality in JSON: true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other


def spelt(value: Any) -> str:
    """The value as JSON, on one line and truncated for messages."""
    try:
        return json.dumps(value)[:100]
    except RecursionError:
        return "a value nested too deep"
