"""Options of configs: fields with help and bounds, checks of their values, and options as text.

Each user option is declared once, by `option`: the command line, recipes, the Python API, run identities and the
documentation read it from the field. Imports without torch.
"""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from collections.abc import Container, Mapping
from typing import Any, TypeVar

from t2r_export.config.typed import with_paths
from t2r_export.config.validation import MAX_SIZE, choice, finite, flag, number, size
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
    """A field that users set.

    Args:
        help: one or two sentences for `--help` and option lists.
        default: required in files if missing; required from users too, unless `usual` is given.
        choices: allowed values; empty: any value of the type.
        usual: the value for users who set none, or a text that describes it.
        more: further metadata, for `check_values` and for the declaring config.
    """
    usual = default if usual is dataclasses.MISSING else usual
    return limited(default, help=help, choices=choices, usual=usual, **more)


def limited(default: Any = dataclasses.MISSING, **metadata: Any) -> Any:
    """A field that is not a user option, with metadata for `check_values`."""
    return dataclasses.field(default=default, metadata=metadata)


def options(cls: type) -> dict[str, dataclasses.Field[Any]]:
    """The options of a config by name; options of a nested config are `name.inner`."""
    hints, found = typing.get_type_hints(cls), {}
    for field in dataclasses.fields(cls):
        if "help" in field.metadata:
            found[field.name] = field
        elif dataclasses.is_dataclass(hint := hints[field.name]):
            found |= {f"{field.name}.{name}": inner for name, inner in options(hint).items()}  # type: ignore[arg-type]
    return found


def within(cls: type) -> dict[str, str]:
    """Command-line spellings of grouped options, by name: `--loss hidden`."""
    found = {name: field.metadata.get("within") for name, field in options(cls).items()}
    return {name: f"--{place.replace('.', ' ')}" for name, place in found.items() if place}


def changed(config: Any, field: dataclasses.Field[Any]) -> bool:
    """Whether a field differs from its default."""
    factory = field.default_factory
    default = field.default if factory is dataclasses.MISSING else factory()
    return bool(getattr(config, field.name) != default)


def check_values(config: Any) -> None:
    """Check every flag, integer, number and choice of a config. Defaults are always valid.

    Field metadata: `choices`; `bounds`, an inclusive range; `between`, an exclusive range of a number; `check`, a
    function that raises. By default an integer is a size of at least 1 (0 if that is the default) and a number is
    positive.

    Raises:
        UserError: names the first invalid field.
    """
    for field in dataclasses.fields(config):
        check_value(field.name, getattr(config, field.name), field)


def check_value(name: str, value: Any, field: dataclasses.Field[Any]) -> None:
    """Check a field's value as `check_values` does; errors call it `name`. Raises UserError."""
    if type(value) is type(field.default) and value == field.default:
        return
    meta, form = field.metadata, str(field.type).partition(" ")[0]
    low, high = meta.get("bounds", (int(field.default != 0), MAX_SIZE))
    if choices := meta.get("choices"):
        choice(name, value, choices)
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
    """Raise UserError unless the value is a number in the open range, or in the `closed` range."""
    if not finite(value) or not (low <= value <= high if closed else low < value < high):
        above = f"from {low:g}" if closed else f"above {low:g}"
        to = "" if high == math.inf else f" {'to' if closed else 'and below'} {high:g}"
        raise UserError(f"{name} to be a number {above}{to}", shown(value), f"correct {name}")


def usual(field: dataclasses.Field[Any]) -> str:
    """The text of a field's usual value for help."""
    value = field.metadata["usual"]
    if value is dataclasses.MISSING:
        return "required"
    return str(value) if isinstance(value, str) else json.dumps(value)


def read_options(text: str, form: str, texts: Container[str] = ()) -> dict[str, Any]:
    """Parse `feature_size=16,guard.eps=1e-3` into values by name; options of a nested config form a mapping.

    Args:
        form: the expected form, for messages.
        texts: names whose values are text, also `5` and `null`.

    Raises:
        UserError: invalid syntax, or a duplicate name.
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
            found = json.loads(value)
        except (ValueError, RecursionError):
            found = value
        place[key] = value if name in texts and not isinstance(found, str) else found
    return values


def read_kind(text: str) -> tuple[str, dict[str, Any]]:
    """Parse `linear:feature_size=16` into a kind and its options. Raises UserError, as `read_options`."""
    kind, _, rest = text.partition(":")
    return kind, read_options(rest, "KIND:NAME=VALUE,NAME=VALUE")


def names(values: Mapping[str, Any]) -> list[str]:
    """Names of parsed options; options of a nested config are `name.inner`."""
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
    """Parse `4096`, `64k` or `1.5M` as bytes. Raises UserError for anything else."""
    try:
        count = float(text.rstrip("kMG")) * UNITS.get(text[-1:], 1)
        if not 1 <= count < 1 << 53 or len(text) - len(text.rstrip("kMG")) > 1:
            raise ValueError
    except ValueError:
        raise UserError("a budget in bytes: 4096, 64k or 1.5M", repr(text), "correct the budget") from None
    return int(count)


def made(cls: type[C], values: Mapping[str, Any], what: str = "options") -> C:
    """Create a config from options; strings become paths where needed. Raises UserError for unknown options."""
    known = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    unknown = sorted(values.keys() - set(known))
    if unknown:
        do = did_you_mean(unknown[0], known, "correct or leave them out")
        raise UserError(f"{what} of {', '.join(known)}", ", ".join(unknown), do)
    return cls(**with_paths(cls, values))
