"""Write src/unicode_tables.cpp: properties of characters for tokenizers and graphemes.

    python runtimes/cpp/tools/unicode_tables.py > runtimes/cpp/src/unicode_tables.cpp

General categories, white space, word characters and punctuation are read from the tokenizers library's output, so that
both agree in any version of Unicode; grapheme properties are those of the package regex.
"""

from __future__ import annotations

import regex
from tokenizers import Regex, pre_tokenizers

CHARACTERS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
TEXT = "".join(CHARACTERS)
CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp".split()  # noqa: SIM905
BREAKS = ("CR", "LF", "Control", "Extend", "ZWJ", "Regional_Indicator", "Prepend", "SpacingMark", "L", "V", "T")


def removed(cut: pre_tokenizers.PreTokenizer) -> set[str]:
    """The characters that `cut` removes."""
    return set(TEXT).difference(*(piece for piece, _ in cut.pre_tokenize_str(TEXT)))


def digits() -> set[str]:
    """The digits: runs of digits and other runs alternate, and the first has no digits."""
    return set().union(*(piece for piece, _ in pre_tokenizers.Digits().pre_tokenize_str(TEXT)[1::2]))


def words() -> set[str]:
    """The characters that are not split from a letter before them."""
    text = " ".join(f"a{c}" for c in CHARACTERS)
    return {
        piece[1]
        for piece, _ in pre_tokenizers.Whitespace().pre_tokenize_str(text)
        if len(piece) == 2 and piece[0] == "a"
    }


def matched(pattern: str) -> set[str]:
    return set(regex.findall(pattern, TEXT))


def flags() -> dict[str, int]:
    """Each character's flags, as in src/unicode.hpp."""
    sets = [removed(pre_tokenizers.Split(Regex(r"\s"), "removed")), words()]
    sets += [removed(pre_tokenizers.Punctuation("removed")), digits(), matched(r"\p{Extended_Pictographic}")]
    sets += [matched(rf"\p{{InCB={name}}}") for name in ("Linker", "Consonant", "Extend")]
    found = dict.fromkeys(CHARACTERS, 0)
    for bit, members in enumerate(sets):
        for character in members:
            found[character] |= 1 << bit
    for number, name in enumerate(BREAKS, 1):
        for character in matched(rf"\p{{GCB={name}}}"):
            found[character] |= number << 12
    return found


def categories() -> dict[str, int]:
    """Each character's category number in src/character_set.cpp; 0 for control and unassigned characters."""
    found = dict.fromkeys(CHARACTERS, 0)
    for number, name in enumerate(CATEGORIES, 1):
        found |= dict.fromkeys(removed(pre_tokenizers.Split(Regex(rf"\p{{{name}}}"), "removed")), number)
    return found


def main() -> None:
    print("// Written by tools/unicode_tables.py; change that.")
    print(
        '#include "unicode.hpp"\n\nnamespace t2r {\n\n// clang-format off\nconst CharacterRange character_ranges[] = {'
    )
    before, line, count, category = None, "   ", 0, categories()
    for character, flag in flags().items():
        value = (flag, category[character])
        if value == before:
            continue
        entry = f" {{0x{ord(character):X}, 0x{flag:X}, {value[1]}}},"
        if len(line + entry) > 120:
            print(line)
            line = "   "
        line, before, count = line + entry, value, count + 1
    print(
        f"{line}\n}};\n// clang-format on\n\nconst std::size_t character_range_count = {count};\n\n}}  // namespace t2r"
    )


if __name__ == "__main__":
    main()
