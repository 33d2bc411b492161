"""Configs of several kinds, and the tables that list the kinds."""

from __future__ import annotations

import dataclasses
import pkgutil
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from t2r_export.config.options import changed, written


@dataclass(frozen=True)
class Kind:
    """Base of configs with kinds; the fields are the options."""

    kind: ClassVar[str]
    TABLE: ClassVar[str] = ""  # "module:NAME" of the table of kinds; set by abstract bases

    def summary(self) -> str:
        """The options that differ from their defaults, as on the command line: `name=value,…`."""
        base = next(cls for cls in type(self).__mro__ if "TABLE" in vars(cls))
        hidden = {"folded", *(field.name for field in dataclasses.fields(base))}
        shown = [f for f in dataclasses.fields(self) if f.name not in hidden and changed(self, f)]
        values = {field.name: getattr(self, field.name) for field in shown}
        return written({name: vars(v) if dataclasses.is_dataclass(v) else v for name, v in values.items()})


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
