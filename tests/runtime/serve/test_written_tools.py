"""200 seeded calls a format, written as its chat templates write them, are read as they were, whole and as a stream.

    T2R_ALL=1 python -m pytest tests/runtime/serve/test_written_tools.py

divides every text at every place, in minutes; otherwise every tenth one.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from typing import Any

import pytest

from t2r_runtime.serve.tools.base import Call, Functions
from t2r_runtime.serve.tools.formats import FORMATS
from t2r_runtime.serve.tools.stream import CallStream

Calls = list[tuple[str, dict[str, Any]]]
COUNT = 200
PIECES = (
    "Zürich",
    "雪",
    "👍🏽",
    "\u2028",
    "\U000e0001",
    '"',
    "'",
    "\\",
    "\\n",
    "\n",
    "\t",
    "{",
    "}]",
    "[",
    "; ",
    ", ",
    "=",
    "<",
    "true",
)
TAGS = (
    "</tool_call>",
    "<tool_call",
    "[TOOL_CALLS]",
    "[ARGS]{}",
    "<|tool_call_end|>",
    "<end_function_call>",
    "</function>",
)
TYPES = ("string", "integer", "number", "boolean", "array", "object")


def string(dice: random.Random) -> str:
    parts = [dice.choice([*PIECES, "word", " ", "7"]) for _ in range(dice.randrange(6))]
    return "".join([*parts, *([dice.choice(TAGS)] if dice.random() < 0.1 else [])])


def value(dice: random.Random, kind: str, depth: int = 0) -> Any:
    if kind == "string":
        return string(dice)
    if kind == "integer":
        return dice.choice([0, 7, -3, 10 ** dice.randrange(20)])
    if kind == "number":
        return dice.choice([0.5, -2.25, 1e-7, 3e22, dice.random()])
    if kind == "boolean":
        return dice.random() < 0.5
    kinds = TYPES[: 4 if depth > 1 else 6]
    inner = [value(dice, dice.choice(kinds), depth + 1) for _ in range(dice.randrange(4))]
    inner = [None if dice.random() < 0.1 else each for each in inner]
    return inner if kind == "array" else {f"key_{n}": each for n, each in enumerate(inner)}


def dumped(dice: random.Random, data: Any) -> str:
    """As `tojson` of a template, which may escape other letters than ASCII and have no blanks."""
    return json.dumps(data, ensure_ascii=dice.random() < 0.3, separators=dice.choice([None, (",", ":")]))


def objects(dice: random.Random, calls: Calls, arguments: str = "arguments") -> list[str]:
    return [dumped(dice, {"name": name, arguments: given}) for name, given in calls]


def tagged(dice: random.Random, calls: Calls) -> str:
    return "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in objects(dice, calls))


def python(dice: random.Random, calls: Calls) -> str:
    written = [f"{name}({', '.join(f'{key}={each!r}' for key, each in given.items())})" for name, given in calls]
    return f"<|tool_call_start|>[{', '.join(written)}]<|tool_call_end|>"


def gemma(begin: str, end: str, mark: str) -> Callable[[random.Random, Calls], str]:
    def data(each: Any) -> str:
        if isinstance(each, str):
            return mark + each + mark
        if isinstance(each, dict):
            return "{" + ",".join(f"{key}:{data(inner)}" for key, inner in each.items()) + "}"
        return "[" + ",".join(map(data, each)) + "]" if isinstance(each, list) else json.dumps(each)

    return lambda dice, calls: "".join(f"{begin}call:{name}{data(given)}{end}" for name, given in calls)


def xml(dice: random.Random, calls: Calls) -> str:
    def parameter(key: str, each: Any) -> str:
        text = dumped(dice, each) if isinstance(each, dict | list) else str(each)
        return f"<parameter={key}>\n{text}\n</parameter>\n"

    written = ["".join(parameter(key, each) for key, each in given.items()) for _, given in calls]
    return "\n".join(
        f"<tool_call>\n<function={name}>\n{text}</function>\n</tool_call>"
        for (name, _), text in zip(calls, written, strict=True)
    )


WRITERS: dict[str, Callable[[random.Random, Calls], str]] = {
    "hermes": tagged,
    "llama3": lambda dice, calls: "; ".join(objects(dice, calls, "parameters")),
    "mistral": lambda dice, calls: f"[TOOL_CALLS] [{', '.join(objects(dice, calls))}]",
    "mistral-args": lambda dice, calls: "".join(f"[TOOL_CALLS]{n}[ARGS]{dumped(dice, given)}" for n, given in calls),
    "granite": lambda dice, calls: f"<|tool_call|>[{', '.join(objects(dice, calls))}]",
    "lfm2": python,
    "functiongemma": gemma("<start_function_call>", "<end_function_call>", "<escape>"),
    "gemma4": gemma("<|tool_call>", "<tool_call|>", '<|"|>'),
    "qwen-xml": xml,
}


def made(dice: random.Random) -> tuple[Calls, Functions]:
    """Calls of one to three functions, and the functions with the types of their parameters."""
    calls, functions = Calls(), dict[str, Any]()
    for number in range(dice.choice([1, 1, 2, 3])):
        name = f"{dice.choice(['find', 'get_x', 'set-y.z'])}{number}"
        kinds = {f"arg{n}": dice.choice(TYPES) for n in range(dice.randrange(5))}
        functions[name] = {"type": "object", "properties": {key: {"type": kind} for key, kind in kinds.items()}}
        calls.append((name, {key: value(dice, kind) for key, kind in kinds.items()}))
    return calls, functions


def read(name: str, functions: Functions, pieces: list[str]) -> tuple[str, list[Call]]:
    stream = CallStream(FORMATS[name], functions, None)
    found = [*map(stream.feed, pieces), stream.end()]
    return "".join(text for text, _ in found), [call for _, calls in found for call in calls]


def test_every_format_has_a_writer() -> None:
    assert WRITERS.keys() == FORMATS.keys()


@pytest.mark.parametrize("name", WRITERS)
def test_calls_are_read_as_they_were(name: str) -> None:
    for number in range(COUNT):
        dice = random.Random(f"{name} {number}")
        calls, functions = made(dice)
        before = "" if name == "llama3" else dice.choice(["", "I look.", "a < b [1]\n\nYes: "])
        after = dice.choice(["", " Done."])
        text = before + WRITERS[name](dice, calls) + after
        whole = read(name, functions, [text])
        received = [(call.name, json.loads(call.arguments)) for call in whole[1]]
        assert (whole[0], received) == (before.rstrip() + after, calls), text
        assert_cuts_agree(name, functions, text, dice, number)


@pytest.mark.parametrize("name", WRITERS)
def test_damaged_calls_are_read_alike(name: str) -> None:
    """Another, a missing or a further character: the stream says what the whole text does."""
    for number in range(COUNT):
        dice = random.Random(f"damaged {name} {number}")
        calls, functions = made(dice)
        text = WRITERS[name](dice, calls)
        place, other = dice.randrange(len(text)), dice.choice(["", "x", '"', "}", "<", "\\"])
        text = text[:place] + other + text[place + dice.randrange(2) :]
        assert all(call.name in functions for call in read(name, functions, [text])[1])
        assert_cuts_agree(name, functions, text, dice, number)


def assert_cuts_agree(name: str, functions: Functions, text: str, dice: random.Random, number: int) -> None:
    """A letter at a time, and in two pieces divided at some places or at every one."""
    whole = read(name, functions, [text])
    assert read(name, functions, [*text]) == whole, text
    every = os.environ.get("T2R_ALL") or number % 10 == 0
    for place in range(len(text)) if every else dice.sample(range(len(text)), 2):
        assert read(name, functions, [text[:place], text[place:]]) == whole, (text, place)
