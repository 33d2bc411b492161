"""Checks a translation for numbers and names of its source that are missing.

A number matches with other separators (1.500 and 1,500), as a word up to twelve, as the name of a month, or on a
12-hour clock. German capitalizes every noun, so only some names can be recognized: a capitalized word of several
tokens that follows another capitalized word (Frau Müller).
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
    """Numbers of a source that are missing in its translation, in order, without duplicates."""
    there = set(_WORD.findall(translation.lower()))
    for number in _NUMBER.findall(translation):
        there |= {_joined(number), *map(_plain, _DIGITS.findall(number))}
    return [number for number in dict.fromkeys(_NUMBER.findall(source)) if not _is_there(number, there)]


def missing_names(source: str, translation: str, pieces: Callable[[str], int]) -> list[str]:
    """Names of a source that are missing in its translation, in order, without duplicates.

    Args:
        pieces: the number of tokens of a word.
    """
    there = {_stem(word) for word in _WORD.findall(translation)}
    return [name for name in dict.fromkeys(_names(source, pieces)) if _stem(name) not in there]


def same_words(one: str, other: str) -> list[str]:
    """Words of at least three letters that both texts contain, in the order of the first, without duplicates."""
    there = set(_WORD.findall(other))
    return [word for word in dict.fromkeys(_WORD.findall(one)) if word in there and len(word) >= _LEAST]


def _names(text: str, pieces: Callable[[str], int]) -> Iterator[str]:
    for before, name in _PAIR.findall(text):
        capital = before[0].isupper() and pieces(before.lower()) > pieces(before)  # not by position
        if capital and name[0].isupper() and len(name) >= _LEAST and pieces(name) > 1:
            yield name


def _is_there(number: str, there: set[str]) -> bool:
    """Whether a translation has this number, as a whole or each run of its digits."""
    hour, *rest = _DIGITS.findall(number)
    minutes = [run for run in rest if ":" not in number or _value(run)]  # full hours need no minutes
    value = _value(hour)
    first = _forms(hour) | ({str(value - 12)} if 12 < value < 24 and (":" in number or not rest) else set())
    return _joined(number) in there or bool(first & there) and all(_forms(run) & there for run in minutes)


def _forms(run: str) -> set[str]:
    """Spellings of a run of digits."""
    value = _value(run)
    month = _MONTHS[value - 1 : value] if value else []
    return {_plain(run), *_WORDS[value : value + 1], *month}


def _value(run: str) -> int:
    """A run of digits as a number, large if it is long: only small ones are spelled, and int refuses thousands."""
    return int(_plain(run)[:9])


def _joined(number: str) -> str:
    return _plain("".join(_DIGITS.findall(number)))


def _plain(run: str) -> str:
    return run.lstrip("0") or "0"


def _stem(word: str) -> str:
    """Fold case, umlauts and a genitive s."""
    return word.casefold().translate(str.maketrans("äöü", "aou")).removesuffix("s")
