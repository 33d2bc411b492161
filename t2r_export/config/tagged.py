"""Configs of several kinds, and the tables that list the kinds."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar


@dataclass(frozen=True)
class Kind:
    """Base of configs with kinds; the fields are the options."""

    kind: ClassVar[str]
    TABLE: ClassVar[str] = ""  # "module:NAME" of the table of kinds; set by abstract bases

    def summary(self) -> str:
        """The options as text for reports, without the kind."""
        return ""


K_co = TypeVar("K_co", bound=Kind, covariant=True)


@dataclass(frozen=True)
class Entry(Generic[K_co]):
    """A table line: the config class, and `module:Class` of the module that is built from it."""

    config: type[K_co]
    model: str | None


class HasConfig(Protocol):
    """A line of any table of kinds."""

    @property
    def config(self) -> type[Any]: ...


def resolve(path: str | None) -> Any:
    """Import the object at "module:NAME", so that tables of plain data can name modules that need torch."""
    assert path is not None
    return pkgutil.resolve_name(path)
