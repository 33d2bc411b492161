"""Random damage of bytes, JSON and argument lists; deterministic per seed."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

# unexpected values for untrusted files
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 1 << 20, 1 << 31, 1 << 63, 10**30, 0.5, -0.0, 1e-300, 1e300, float("nan"),
    float("inf"), "", "relu", "softmax", "../../evil", "/dev/zero", "\x00", "\ud800", "a" * 300, "1e9", [], [0], [[]],
    [None, 1], {}, {"kind": "linear"}, {"": {}},
]  # fmt: skip


NUMBERS = ("-1", "0", "1e9", f"{1 << 31}", f"{1 << 63}", f"{-(1 << 63)}", f"wrap:{10**30}", f"{10**30}", "9" * 5000)


def damage_bytes(chance: random.Random, content: bytes) -> bytes:
    """Apply one to three of: flip bits, delete, duplicate, truncate, overwrite with a number."""
    data = bytearray(content)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(data) + 1)
        length = chance.choice((1, 2, 8, 100, len(data) // 3))
        match chance.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << chance.randrange(8)
            case 1:
                del data[at : at + length]
            case 2:
                data[at:at] = data[at : at + length]
            case 3:
                del data[at:]
            case 4:
                data[at : at + 8] = chance.choice((b"\xff" * 8, b"\0" * 8, (1 << 40).to_bytes(8, "little")))
            case _:
                data[at:at] = chance.randbytes(min(length, 100))
    return bytes(data)


def damage_file(chance: random.Random, path: Path) -> None:
    """Damage, empty or remove the file, or replace it by a folder or a link to itself."""
    match chance.randrange(20):
        case 0:
            path.unlink()
        case 1:
            path.write_bytes(b"")
        case 2:
            path.unlink()
            path.mkdir()
        case 3:
            path.unlink()
            path.symlink_to(path.name)
        case _:
            path.write_bytes(damage_bytes(chance, path.read_bytes()))


def damage_json(chance: random.Random, data: Any) -> Any:
    """A copy with one to three values changed, removed, moved or added."""
    made = copy.deepcopy(data)
    for _ in range(chance.randint(1, 3)):
        places = list(_places(made))
        if not places:
            return chance.choice(VALUES)
        owner, key = chance.choice(places)
        value = chance.choice(VALUES)
        match chance.randrange(6):
            case 0:
                del owner[key]
            case 1 if isinstance(owner, dict):
                owner[chance.choice([*owner, "unknown", ""])] = copy.deepcopy(value)
            case 2:
                other, name = chance.choice(places)
                if _has(other, name) and _has(owner, key):
                    owner[key] = copy.deepcopy(other[name])
            case 3 if isinstance(owner[key], int) and not isinstance(owner[key], bool):
                owner[key] = chance.choice((owner[key] + 1, owner[key] - 1, -owner[key], owner[key] * 1000))
            case _:
                owner[key] = copy.deepcopy(value)
    return made


def damage_words(chance: random.Random, words: list[str]) -> list[str]:
    """An argument list with a word changed, removed, duplicated or added."""
    made = list(words)
    for _ in range(chance.randint(1, 2)):
        at = chance.randrange(len(made))
        new = chance.choice((*NUMBERS, "nan", "", "--steps", "--batch=0", "\x00x", "é" * 260, "/", "/dev/full"))
        match chance.randrange(4):
            case 0 if len(made) > 1:
                del made[at]
            case 1:
                made.insert(at, made[at])
            case 2:
                made.insert(at, new)
            case _:
                made[at] = new
    return made


def _places(data: Any) -> Any:
    """Every value of nested lists and objects, as (container, key)."""
    if isinstance(data, dict | list):
        for key in data if isinstance(data, dict) else range(len(data)):
            yield data, key
            yield from _places(data[key])


def _has(owner: Any, key: Any) -> bool:
    return key in owner if isinstance(owner, dict) else key < len(owner)
