"""Configs of which there are several kinds, each with options of its own: to plain data and back."""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from t2r_export.config.validation import choice, fields, need


@dataclass(frozen=True)
class Kind:
    """Base of such configs; their fields are the options."""

    kind: ClassVar[str]

    def summary(self) -> str:
        """The options for a person, after the kind."""
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data with the kind, from which `of_kind` reads an equal config."""
        return {"kind": self.kind, **dataclasses.asdict(self)}


K = TypeVar("K", bound=Kind)
K_co = TypeVar("K_co", bound=Kind, covariant=True)


@dataclass(frozen=True)
class Entry(Generic[K_co]):
    """A line of a table of kinds: the config, and `module:Class` of what is built from it, resolved on use."""

    config: type[K_co]
    model: str | None


def resolve(path: str | None) -> Any:
    """The class at "module:Class". It is imported here, so that a table of plain data can name what needs torch."""
    assert path is not None
    return pkgutil.resolve_name(path)


def of_kind(table: Mapping[str, Entry[K]], data: Mapping[str, Any], what: str) -> tuple[type[K], dict[str, Any]]:
    """The config that `data` is of, by its `kind`, and the values for its fields.

    Args:
        what: of what the config is, for a person: "mixer", say.

    Raises:
        UserError: a missing or unknown kind or field.
    """
    need(isinstance(data, Mapping), f"a {what}'s config to be a JSON object", type(data).__name__, "correct the config")
    values = dict(data)
    kind = values.pop("kind", None)
    choice(f"{what} kind", kind, tuple(table))
    cls = table[str(kind)].config
    return cls, fields(cls, values, f"a {kind} {what}'s config")
