"""Plain data of untrusted files: bounds checks before it is printed or compared, configs in it, and differences.

Nested lists that share elements are small in a file but exponential when printed, so values are counted as a tree, with
repetition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from t2r_export.config.model import ModelConfig
from t2r_runtime.errors import UserError, printable

MAX_NODES = 1 << 20
MAX_BYTES = 1 << 27  # of texts, including a tokenizer's
MAX_DEPTH = 64


def saved_config(data: Any, where: object, do: str) -> ModelConfig:
    """The config that `to_dict` gave, in a file of unknown origin.

    Raises:
        UserError: values that make no config; `where` names the file.
    """
    try:
        return ModelConfig.from_dict(data)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"a model's config in {where}", printable(error), do) from error


def check_plain(data: Any, what: str) -> None:
    """Check that `data` is JSON data within MAX_NODES values, MAX_BYTES of text and MAX_DEPTH levels.

    Raises:
        UserError: other types, or too much data; the message begins with `what`.
    """
    nodes = size = 0
    levels: list[Iterator[Any]] = [iter((data,))]
    while levels:
        for value in levels[-1]:
            nodes += 1
            if isinstance(value, str):
                size += len(value)
            elif isinstance(value, dict):
                if not all(type(key) is str for key in value):
                    raise _refused(what, "an object with keys that are no texts")
                size += sum(map(len, value))
                levels.append(iter(value.values()))
            elif isinstance(value, list):
                levels.append(iter(value))
            elif isinstance(value, int):
                size += value.bit_length() // 8
            elif value is not None and not isinstance(value, float):
                raise _refused(what, f"a {type(value).__name__}")
            if nodes > MAX_NODES or size > MAX_BYTES or len(levels) > MAX_DEPTH:
                limits = f"{MAX_NODES} values, {MAX_BYTES} bytes of text, {MAX_DEPTH} levels"
                raise _refused(what, f"more than {limits}")
            if isinstance(value, dict | list):
                break
        else:
            levels.pop()


def differences(one: Any, other: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield name and both values of each difference, inside of objects and lists, such as stages.1.steps."""
    if isinstance(one, list) and isinstance(other, list):
        one, other = dict(enumerate(one)), dict(enumerate(other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in sorted({*one, *other}, key=str):
            yield from differences(one.get(key), other.get(key), f"{name}.{key}" if name else f"{key}")
    elif one != other:
        yield name, one, other


def _refused(what: str, received: str) -> UserError:
    return UserError(f"plain data as {what}: numbers, texts, lists and objects", received, "do not trust this file")
