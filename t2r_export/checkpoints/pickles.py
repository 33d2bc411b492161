"""Check the instructions of a pickle before it is loaded.

torch refuses unknown functions, but allowed instructions can still exhaust time or memory: a tuple of two references to
a tuple of two references, forty levels deep, is hashed 2^40 times as a dictionary key, and torch allows creating a
`bytearray` of a terabyte. Only instructions that `torch.save` writes for tensors and plain data are accepted; their
cost is proportional to their length.
"""

from __future__ import annotations

import pickletools
import re
from typing import Any

MAX_INSTRUCTIONS = 1 << 22  # a tensor takes 25
MAX_BYTES = 1 << 29
DICTIONARY = "collections OrderedDict"
REBUILD = {"torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_parameter"}
STORAGE = re.compile(r"torch [A-Z]\w*Storage")
# kind of value that an instruction pushes
LEFT = {
    "BINUNICODE": "text",
    "EMPTY_TUPLE": "empty",
    **dict.fromkeys(("EMPTY_DICT", "EMPTY_LIST"), "container"),
    **dict.fromkeys(("BININT", "BININT1", "BININT2"), "integer"),  # of 32 bits
    **dict.fromkeys(("NONE", "NEWTRUE", "NEWFALSE", "LONG1", "BINFLOAT"), "value"),
}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
TAKEN = {"APPEND": 1, "SETITEM": 2}  # values added to the container below


class Refused(Exception):
    """A pickle with an instruction that checkpoints do not need; the message names it."""


class Reference(Refused):
    """A reference to a function or class that checkpoints do not need."""


def check_pickle(data: bytes) -> None:
    """Check that loading the pickle `data` runs no code and needs time and memory proportional to its length.

    Raises:
        Refused: an unsafe instruction.
        Exception: of any type, for bytes that are no pickle.
    """
    if len(data) > MAX_BYTES:
        raise Refused(f"{len(data)} bytes of instructions")
    stack: list[str] = []
    outer: list[list[str]] = []  # stacks below the marks
    memo: dict[Any, str] = {}
    for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if count > MAX_INSTRUCTIONS:
            raise Refused(f"more than {MAX_INSTRUCTIONS} instructions")
        name = opcode.name
        if name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[argument])
        elif name == "MARK":
            outer.append(stack)
            stack = []
        elif name in ("TUPLE", "APPENDS", "SETITEMS"):
            items, stack = stack, outer.pop()
            _take(name, items, stack)
        elif name in TUPLES or name in TAKEN:
            items = [stack.pop() for _ in range(TUPLES.get(name) or TAKEN[name])]
            _take(name, items[::-1], stack)
        elif name not in ("PROTO", "STOP"):
            _change(name, argument, stack)


def _take(name: str, items: list[str], stack: list[str]) -> None:
    """Apply an instruction that takes several values: a tuple, or items of a container."""
    if name.startswith("TUPLE"):
        stack.append("tuple" if {"tuple", "flat", "empty"} & set(items) else "flat")
    elif name.startswith("SETITEM") and set(items[::2]) - {"text", "integer"}:
        raise Refused("an object with keys that are no texts or integers")  # other keys may be exponential to hash


def _change(name: str, argument: Any, stack: list[str]) -> None:
    """Apply an instruction that pushes or replaces a value."""
    if name in LEFT:
        stack.append(LEFT[name])
    elif name == "GLOBAL":
        if argument != DICTIONARY and argument not in REBUILD and not STORAGE.fullmatch(argument):
            raise Reference(f"a reference to {argument.replace(' ', '.')}")
        stack.append(argument)
    elif name == "REDUCE":
        given, function = stack.pop(), stack.pop()
        if function not in REBUILD and (function, given) != (DICTIONARY, "empty"):
            raise Refused(f"a call of {function.replace(' ', '.')}")
        stack.append("container" if function == DICTIONARY else "tensor")
    elif name == "BINPERSID":
        if stack.pop() != "flat":
            raise Refused("a tensor's data under no plain name")
        stack.append("storage")
    else:
        raise Refused(f"the instruction {name}")
