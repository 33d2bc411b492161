"""What a translation should have copied from its source, and has not: numbers, and names that it cannot know.

A number may be written otherwise: with other separators (1.500 and 1,500), as a word up to twelve, as the name of a
month, or by the twelve-hour clock. German capitalises every noun, and a tokenizer of pieces does not know which are
names: taken for one is a capitalised word that is no piece and follows another capitalised one (Frau Müller), no other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_NUMBER = re.compile(r"\d+(?:[.,:/]\d+)*")
_DIGITS = re.compile(r"\d+")
_WORD = re.compile(r"[^\W\d_]+")
_PAIR = re.compile(rf"({_WORD.pattern}) (?=({_WORD.pattern}))")
_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_MONTHS = ["january", "february", "march", "april", "may", "june", "july"]
_MONTHS += ["august", "september", "october", "november", "december"]
_LEAST = 3  # letters of a name


def missing_numbers(source: str, translation: str) -> list[str]:
    """The numbers of a source that its translation has not, each once and in their order."""
    there = set(_WORD.findall(translation.lower()))
    for number in _NUMBER.findall(translation):
        there |= {_joined(number), *map(_plain, _DIGITS.findall(number))}
    return [number for number in dict.fromkeys(_NUMBER.findall(source)) if not _is_there(number, there)]


def missing_names(source: str, translation: str, pieces: Callable[[str], int]) -> list[str]:
    """The names of a source that its translation has not, each once and in their order.

    Args:
        pieces: of how many pieces a tokenizer makes a word.
    """
    there = {_stem(word) for word in _WORD.findall(translation)}
    return [name for name in dict.fromkeys(_names(source, pieces)) if _stem(name) not in there]


def same_words(one: str, other: str) -> list[str]:
    """The words of a text that another has alike, each once and in the first one's order; names have a few letters."""
    there = set(_WORD.findall(other))
    return [word for word in dict.fromkeys(_WORD.findall(one)) if word in there and len(word) >= _LEAST]


def _names(text: str, pieces: Callable[[str], int]) -> Iterator[str]:
    for before, name in _PAIR.findall(text):
        capital = before[0].isupper() and pieces(before.lower()) > pieces(before)  # not that of a sentence's beginning
        if capital and name[0].isupper() and len(name) >= _LEAST and pieces(name) > 1:
            yield name


def _is_there(number: str, there: set[str]) -> bool:
    """Whether digits of a translation, or words, say this number: as a whole, or each run of its digits."""
    hour, *rest = _DIGITS.findall(number)
    minutes = [run for run in rest if ":" not in number or int(run)]  # none of a whole hour
    first = _forms(hour) | ({str(int(hour) - 12)} if 12 < int(hour) < 24 and (":" in number or not rest) else set())
    return _joined(number) in there or bool(first & there) and all(_forms(run) & there for run in minutes)


def _forms(run: str) -> set[str]:
    """What may stand for a run of digits."""
    value = int(run)
    month = _MONTHS[value - 1 : value] if value else []
    return {_plain(run), *_WORDS[value : value + 1], *month}


def _joined(number: str) -> str:
    return _plain("".join(_DIGITS.findall(number)))


def _plain(run: str) -> str:
    return run.lstrip("0") or "0"


def _stem(word: str) -> str:
    """A word without its case: an s behind it may be a genitive's, and an umlaut may be gone in another language."""
    return word.casefold().translate(str.maketrans("äöü", "aou")).removesuffix("s")
