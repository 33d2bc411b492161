"""Configs of which there are several kinds, each with options of its own, and the tables that name them."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar


@dataclass(frozen=True)
class Kind:
    """Base of such configs; their fields are the options."""

    kind: ClassVar[str]
    TABLE: ClassVar[str] = ""  # of a base class of several kinds: "module:NAME" of the table that lists them

    def summary(self) -> str:
        """The options for a person, after the kind."""
        return ""


K_co = TypeVar("K_co", bound=Kind, covariant=True)


@dataclass(frozen=True)
class Entry(Generic[K_co]):
    """A line of a table of kinds: the config, and `module:Class` of what is built from it, resolved on use."""

    config: type[K_co]
    model: str | None


class HasConfig(Protocol):
    """A line of any table of kinds."""

    @property
    def config(self) -> type[Any]:
        """The config's class."""


def resolve(path: str | None) -> Any:
    """The object at "module:NAME". It is imported here, so that a table of plain data can name what needs torch."""
    assert path is not None
    return pkgutil.resolve_name(path)
