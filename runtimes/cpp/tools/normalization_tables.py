"""Write src/normalization_tables.cpp: the tables of NFC, NFD, NFKC and NFKD.

    python runtimes/cpp/tools/normalization_tables.py > runtimes/cpp/src/normalization_tables.cpp

Decompositions, combining classes and compositions are read from the tokenizers library's output, so that both agree in
any version of Unicode. Hangul is computed and is in no table.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from functools import cmp_to_key
from typing import NamedTuple

from tokenizers import normalizers

CODES = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
HANGUL = range(0xAC00, 0xD7A4)
NFC, NFD, NFKD = normalizers.NFC(), normalizers.NFD(), normalizers.NFKD()
FIRST, LAST = 0x334, 0x345  # marks of the lowest and of the highest class
WIDTH = 118


class Decomposition(NamedTuple):
    """The full decomposition of a character; `compatibility`: of NFKD only."""

    code: int
    compatibility: bool
    text: str


def decompositions() -> Iterator[Decomposition]:
    for code in CODES:
        if code in HANGUL:
            continue
        canonical, compatible = NFD.normalize_str(chr(code)), NFKD.normalize_str(chr(code))
        if canonical != chr(code):
            yield Decomposition(code, False, canonical)
        if compatible != canonical:
            yield Decomposition(code, True, compatible)


def before(first: int, second: int) -> bool:
    """Whether normalization moves `second` before a preceding `first`."""
    return NFD.normalize_str("a" + chr(first) + chr(second)) == "a" + chr(second) + chr(first)


def classes() -> list[tuple[int, int]]:
    """The marks (combining class not 0) with the rank of their class, as only the order of classes matters."""
    marks = [code for code in CODES if plain(code) and (before(LAST, code) or before(code, FIRST))]
    marks.sort(key=cmp_to_key(lambda one, other: before(one, other) - before(other, one)))
    higher = [before(after, mark) for mark, after in itertools.pairwise(marks)]  # than that of the mark before it
    return sorted(zip(marks, itertools.accumulate(higher, initial=1), strict=True))


def plain(code: int) -> bool:
    return NFD.normalize_str(chr(code)) == chr(code)


def compositions(found: Iterable[Decomposition]) -> Iterator[tuple[int, int, int]]:
    """First, second, and their composition."""
    for code, compatibility, text in found:
        if compatibility or len(text) < 2 or NFC.normalize_str(text) != chr(code):
            continue
        first = NFC.normalize_str(text[:-1])
        assert len(first) == 1 and NFC.normalize_str(first + text[-1]) == chr(code), hex(code)
        yield ord(first), ord(text[-1]), code


def ranges(found: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Beginnings of ranges of one class, with class 0 after each run."""
    last, number = -1, 0
    for code, value in found:
        if code != last + 1 and number:
            yield last + 1, 0
            number = 0
        if value != number:
            yield code, value
        last, number = code, value
    yield last + 1, 0


def array(declaration: str, entries: Iterable[str]) -> None:
    print(f"{declaration}[] = {{")
    line = "   "
    for entry in entries:
        if len(line + entry) >= WIDTH:
            print(line)
            line = "   "
        line += f" {entry},"
    print(f"{line}\n}};")


def main() -> None:
    made = list(decompositions())
    pool, places = "", {}
    for text in sorted({one.text for one in made}, key=lambda text: (-len(text), text)):
        if text not in pool:
            pool += text
        places[text] = pool.index(text)
    assert len(pool) < 1 << 16
    print("// Written by tools/normalization_tables.py; change that.")
    print('#include "normalization.hpp"\n\nnamespace t2r {\n\n// clang-format off')
    array("const char32_t decomposed", (f"0x{ord(c):X}" for c in pool))
    entries = [f"{{0x{d.code:X}, {places[d.text]}, {len(d.text)}, {int(d.compatibility)}}}" for d in made]
    array("const Decomposition decompositions", entries)
    array(
        "const ClassRange class_ranges", (f"{{0x{code:X}, {number}}}" for code, number in [(0, 0), *ranges(classes())])
    )
    pairs = sorted(compositions(made))
    array("const Composition compositions", (f"{{0x{a:X}, 0x{b:X}, 0x{c:X}}}" for a, b, c in pairs))
    print("// clang-format on\n")
    for name in ("decomposition", "class_range", "composition"):
        print(f"const std::size_t {name}_count = std::size({name}s);")
    print("\n}  // namespace t2r")


if __name__ == "__main__":
    main()
