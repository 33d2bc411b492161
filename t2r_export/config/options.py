"""Options of configs: what a field declares of itself, and how a kind with its options is written as text.

A field that a person sets is declared once, by `option`: the command line, recipes, the Python API, the identity of a
run and the documentation read it from there. Imports without torch.
"""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from t2r_export.config.typed import with_paths
from t2r_export.config.validation import LARGEST, MAX_SIZE, flag, need, number, size
from t2r_runtime.errors import UserError, did_you_mean, shown

C = TypeVar("C")
UNITS = {"k": 10**3, "M": 10**6, "G": 10**9}


def option(
    help: str,
    default: Any = dataclasses.MISSING,
    choices: tuple[Any, ...] = (),
    usual: Any = dataclasses.MISSING,
    **more: Any,
) -> Any:
    """A field that a person sets.

    Args:
        help: one sentence or two, for `--help` and lists of options.
        default: without one, a file has to say it; and so has a person, unless there is a `usual` value.
        choices: the values that it can have; empty: any of its type.
        usual: what a person gets who does not say it, or a text that says what that depends on.
        more: what the config that declares it reads from the field's metadata.
    """
    usual = default if usual is dataclasses.MISSING else usual
    metadata = {"help": help, "choices": choices, "usual": usual, **more}
    return dataclasses.field(default=default, metadata=metadata)


def options(cls: type) -> dict[str, dataclasses.Field[Any]]:
    """The fields of a config that are declared by `option`, by name; those of a config inside it as `name.inner`."""
    hints, found = typing.get_type_hints(cls), {}
    for field in dataclasses.fields(cls):
        if "help" in field.metadata:
            found[field.name] = field
        elif dataclasses.is_dataclass(hint := hints[field.name]):
            found |= {f"{field.name}.{name}": inner for name, inner in options(hint).items()}  # type: ignore[arg-type]
    return found


def within(cls: type) -> dict[str, str]:
    """How the command line spells the options that are within others, by name: `--loss hidden`."""
    found = {name: field.metadata.get("within") for name, field in options(cls).items()}
    return {name: f"--{place.replace('.', ' ')}" for name, place in found.items() if place}


def changed(config: Any, field: dataclasses.Field[Any]) -> bool:
    """Whether a field of a config is not at its default."""
    factory = field.default_factory
    default = field.default if factory is dataclasses.MISSING else factory()
    return bool(getattr(config, field.name) != default)


def check_values(config: Any) -> None:
    """Refuse values that an option cannot have. A default is never refused.

    Of an option's metadata: `choices`; `bounds`, the least and largest value of an integer or a number; `between`, two
    numbers that a number must be between; `check`, a function that raises. Without these, an integer is a size, of 0
    too where that is its default, and a number is positive.

    Raises:
        UserError: with the first of them.
    """
    for field in dataclasses.fields(config):
        value, meta = getattr(config, field.name), field.metadata
        same = value == field.default and isinstance(value, bool) == isinstance(field.default, bool)
        if "help" in meta and not same:
            _check(field.name, value, str(field.type).partition(" ")[0], meta, field.default)


def _check(name: str, value: Any, form: str, meta: Mapping[str, Any], default: Any) -> None:
    low, high = meta.get("bounds", (int(default != 0), MAX_SIZE))
    if meta["choices"]:
        known = ", ".join(map(str, meta["choices"]))
        do = did_you_mean(value, meta["choices"], f"choose one of those for {name}")
        need(value in meta["choices"], f"{name} to be one of {known}", shown(value), do)
    elif form == "bool":
        flag(name, value)
    elif form == "int":
        size(name, value, high, least=low)
    elif "between" in meta:
        between(name, value, *meta["between"])
    elif form == "float" and "bounds" in meta:
        between(name, value, low, high, closed=True)
    elif form == "float":
        number(name, value)
    elif "check" in meta:
        meta["check"](value)


def between(name: str, value: Any, low: float, high: float, closed: bool = False) -> None:
    """Refuse what is no number in a range, whose ends belong to it where it is `closed`."""
    fine = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST
    if not fine or not (low <= value <= high if closed else low < value < high):
        above = f"from {low:g}" if closed else f"above {low:g}"
        to = "" if high == math.inf else f" {'to' if closed else 'and below'} {high:g}"
        raise UserError(f"{name} to be a number {above}{to}", shown(value), f"correct {name}")


def usual(field: dataclasses.Field[Any]) -> str:
    """What holds where nobody says otherwise, for a person."""
    value = field.metadata["usual"]
    if value is dataclasses.MISSING:
        return "required"
    return str(value) if isinstance(value, str) else json.dumps(value)


def read_options(text: str, form: str) -> dict[str, Any]:
    """`feature_size=16,guard.eps=1e-3` -> the values by name, those of a config inside as a mapping.

    Args:
        form: what the text is a part of, for messages.

    Raises:
        UserError: another form, or a name that is there twice.
    """
    values: dict[str, Any] = {}
    for part in text.split(",") if text else []:
        name, equals, value = part.partition("=")
        outer, dot, inner = name.strip().replace("-", "_").partition(".")
        place = values.setdefault(outer, {}) if dot else values
        key = inner if dot else outer
        if not (equals and outer and key) or not isinstance(place, dict) or key in place:
            raise UserError(f"{form}, each NAME once", repr(text), "correct it")
        try:
            place[key] = json.loads(value)
        except (ValueError, RecursionError):
            place[key] = value
    return values


def read_kind(text: str) -> tuple[str, dict[str, Any]]:
    """`linear:feature_size=16` -> a kind and its options; raises what `read_options` raises."""
    kind, _, rest = text.partition(":")
    return kind, read_options(rest, "KIND:NAME=VALUE,NAME=VALUE")


def names(values: Mapping[str, Any]) -> list[str]:
    """The names in what was read, `name.inner` of those inside a config."""
    return [
        f"{name}.{inner}" if inner else name
        for name, value in values.items()
        for inner in (value if isinstance(value, Mapping) else [""])
    ]


def written(values: Mapping[str, Any], inside: str = "") -> str:
    """The inverse of `read_options`."""
    return ",".join(
        written(value, f"{name}.")
        if isinstance(value, Mapping)
        else f"{inside}{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in values.items()
    )


def read_bytes(text: str) -> int:
    """`4096`, `64k`, `1.5M` -> bytes. Raises UserError for anything else."""
    try:
        count = float(text.rstrip("kMG")) * UNITS.get(text[-1:], 1)
        if not 1 <= count < 1 << 53 or len(text) - len(text.rstrip("kMG")) > 1:
            raise ValueError
    except ValueError:
        raise UserError("a budget in bytes: 4096, 64k or 1.5M", repr(text), "correct the budget") from None
    return int(count)


def made(cls: type[C], values: Mapping[str, Any], what: str = "options") -> C:
    """A config of options, texts where it has paths; or a UserError that names those that it does not have."""
    known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    unknown = sorted(values.keys() - set(known))
    if unknown:
        do = did_you_mean(unknown[0], known, "correct or leave them out")
        raise UserError(f"{what} of {', '.join(known)}", ", ".join(unknown), do)
    return cls(**with_paths(cls, values))
