"""Command line options generated from the fields of a config: name, type, default and help.

A field whose `within` is, for example, `loss.hidden` is part of another option: `--loss hidden=5,kl_top=32`.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from t2r_export.cli.spelled import Fields, Inside, Spelled
from t2r_export.config import options as declared
from t2r_export.config.finetune import FIELD, SEPARATOR, Shares

F = TypeVar("F", bound=Callable[..., Any])


def fields(cls: type, *names: str) -> Callable[[F], F]:
    """Add options for these fields of a config, or for all fields if no names are given.

    Fields within another option are passed to the command as a mapping, under the name of that option; see `flat`.
    """
    found = declared.options(cls)
    hints = typing.get_type_hints(cls)

    def add(function: F) -> F:
        groups: dict[str, Fields] = {}
        for field in found.values():
            group, _, inner = field.metadata.get("within", "").partition(".")
            if group:
                groups[group] = {**groups.get(group, {}), inner: field}
        made: dict[str, Any] = {}
        for name, field in found.items():
            key = field.metadata.get("within", name).partition(".")[0]
            if key not in made and (not names or key in names):
                made[key] = _inside(key, groups[key], found) if key in groups else _option(name, field, hints[name])
        for option in reversed(made.values()):
            function = option(function)
        return function

    return add


def flat(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the arguments of a command to the fields of a config: fields within an option get their own names."""
    result = dict(values)
    for name, field in declared.options(cls).items():
        group, _, inner = field.metadata.get("within", "").partition(".")
        said = values.get(group)
        if isinstance(said, tuple):  # a kind and its options
            result[group], said = said
        elif group:
            result.pop(group, None)
        if group and said and inner in said:
            result[name] = said[inner]
    return result


def reading(split: Mapping[str, Any] | None) -> tuple[Shares, str, str]:
    """Shares, separator and field of a value of `--split`, as t2r_export.data.corpus.read_corpus takes them.

    Without `pack`, which applies to training windows only.
    """
    said = {name: value for name, value in (split or {}).items() if name != "pack"}
    separator, field = said.pop("separator", SEPARATOR), said.pop("field", FIELD)
    return Shares(**said), separator, field


def _option(name: str, field: dataclasses.Field[Any], hint: Any) -> Any:
    usual, default, more = field.metadata["usual"], field.default, dict[str, Any]()
    kinds = [kind for kind in typing.get_args(hint) if kind is not types.NoneType] or [hint]
    kind = kinds[0]
    if kind is bool:
        more = {"is_flag": True}
    elif field.metadata["choices"]:
        more = {"type": click.Choice(field.metadata["choices"])}
    else:
        more = {"type": click.Path(path_type=Path) if kind is Path else kind, "multiple": default == ()}
    if check := field.metadata.get("check"):
        more["callback"] = lambda context, parameter, value: (value is None or check(value), value)[1]
    if default is not None and default != () and kind is not bool:
        more["show_default"] = True
    said = f"  [default: {usual}]" if default is None and usual is not None else ""
    more["metavar"] = field.metadata.get("metavar")
    return click.option(f"--{name.replace('_', '-')}", default=default, help=field.metadata["help"] + said, **more)


def _inside(name: str, inner: Fields, found: Fields) -> Any:
    """The option that contains these fields; if a field has the option's name, it lists the kinds."""
    if name in found:
        kinds = dict.fromkeys(found[name].metadata["choices"], inner)
        form: dict[str, Any] = {"type": Spelled(f"{name}", kinds), "default": found[name].default, "show_default": True}
        return click.option(f"--{name}", is_eager=True, help=found[name].metadata["help"], **form)
    text = ", ".join(f"{key}={declared.usual(field)}" for key, field in inner.items())
    said = f"{TITLES[name]}; help explains.  [default: {text}]"
    return click.option(f"--{name}", type=Inside(name, inner), is_eager=True, help=said)


TITLES = {
    "split": "Split into documents and into training, validation and test parts; pairs are split by groups",
    "loss": "Weights and options of the losses",
    "lora": "Train low-rank adapters in the stages distill and task",
    "every": "Steps between saved states and between validations",
}
