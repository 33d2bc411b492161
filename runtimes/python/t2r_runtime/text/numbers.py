"""Numbers of a text, their spellings, and those in which a translation differs: runtimes/contract/copies.md."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

_GROUPS = ".,'’\u00a0\u2009\u202f"  # marks between groups of three digits
MARKS = frozenset(f"{_GROUPS}:/")  # between digits of a number
_HALF = "[ \u00a0]?(?:a\\.m|A\\.M|AM|p\\.m|P\\.M|pm|PM)|am"  # " am" is a word of German
_NUMBER = re.compile(rf"([0-9]+(?:[{_GROUPS}:/][0-9]+)*)((?:{_HALF})(?![^\W_]))?")
_RUN = re.compile("[0-9]+")
_GROUPED = re.compile(rf"([1-9][0-9]{{0,2}}([{_GROUPS}])[0-9]{{3}}(?:\2[0-9]{{3}})*)(?:[.,]([0-9]+))?")
_DECIMAL = re.compile("([0-9]+)[.,]([0-9]+)")
_TIME = re.compile("([01]?[0-9]|2[0-3])[:.]([0-5][0-9])")
_HOUR = re.compile("[01]?[0-9]|2[0-3]")
_DAY, _MONTH = "(?:0?[1-9]|[12][0-9]|3[01])", "(?:0?[1-9]|1[0-2])"
_DATE = rf"{_DAY}\.{_MONTH}\.(?:[0-9]{{4}}|[0-9]{{2}}|(?= +\w))"
_PARTS = re.compile(rf"{_DATE}|[0-9]+(?:/[0-9]+)+|[0-9]+(?::[0-9]+)+")  # a date, a fraction, a score
_CAPITALS = (*range(0x41, 0x5B), *range(0xC0, 0x180), *range(0x391, 0x3AA), *range(0x400, 0x430))
_SMALL = {code: low for code in _CAPITALS if len(low := chr(code).lower()) == 1}
_WORDS = (  # of 0, 1, …: those of English, then those of German
    "zero null", "one first eins january januar", "two second zwei february februar", "three third drei march märz",
    "four fourth vier april", "five fifth fünf may mai", "six sixth sechs june juni", "seven seventh sieben july juli",
    "eight eighth acht august", "nine ninth neun september", "ten tenth zehn october oktober",
    "eleven eleventh elf november", "twelve twelfth zwölf december dezember",
)  # fmt: skip
VALUES = {word: str(value) for value, words in enumerate(_WORDS) for word in words.split()}


class Number(NamedTuple):
    """A number of a text: its digits and marks, the half of the day ("a", "p" or "") after it, and its place."""

    text: str
    half: str
    start: int
    whole: bool = True  # False: a part of a date, a fraction or a score


def numbers(text: str) -> Iterator[Number]:
    """The numbers of a text, in order."""
    for match in _NUMBER.finditer(text):
        number, half = match.groups()
        parts = _PARTS.match(text, match.start())
        if (
            parts
            and parts.end() - match.start() in (len(number), len(number) + 1)
            and not (":" in number and _TIME.fullmatch(number))
        ):
            yield from (Number(run[0], "", match.start() + run.start(), False) for run in _RUN.finditer(number))
        else:
            yield Number(number, (half or "").strip(" \u00a0")[:1].lower(), match.start())


def spellings(number: Number) -> list[str]:
    """Texts that are this number, itself first; those with a half of the day end in " p.m" or " a.m"."""
    text, half = number.text, number.half
    found = [text]
    if grouped := _GROUPED.fullmatch(text):
        found += _with_marks("".join(_RUN.findall(grouped[1])), grouped[3])
    elif decimal := _DECIMAL.fullmatch(text):
        found += _with_marks(*decimal.groups())
    elif _RUN.fullmatch(text):
        found += _with_marks(text, None)
    if time := _TIME.fullmatch(text):
        found += _clock(int(time[1]), time[2], half)
    elif number.whole and _HOUR.fullmatch(text):
        found += _clock(int(text), "00", half)
    return list(dict.fromkeys(found))


def differing_numbers(source: str, translation: str) -> tuple[list[str], list[str]]:
    """Numbers of a source that its translation lacks, and numbers that it adds: in order, as often as they do."""
    given, added = list(numbers(source)), []
    waiting: dict[str, list[int]] = {}  # spelling → the numbers that have it, the last one first
    for place in range(len(given) - 1, -1, -1):
        for spelling in spellings(given[place]):
            waiting.setdefault(spelling, []).append(place)
    found: set[int] = set()
    for number in numbers(translation):
        forms = [number.text, f"{number.text} {number.half}.m"]
        firsts = [_first(waiting.get(form, []), found) for form in forms]
        places = [place for place in firsts if place is not None]
        if places:
            found.add(min(places))
        else:
            added.append(number)
    missing = [number for place, number in enumerate(given) if place not in found]
    return unspelled(missing, translation), unspelled(added, source)


def _first(places: list[int], found: set[int]) -> int | None:
    while places and places[-1] in found:
        places.pop()
    return places[-1] if places else None


def unspelled(left: list[Number], other: str) -> list[str]:
    """The numbers among these that are not words of the other text, each of which is one of them."""
    words = "".join(letter if letter.isalpha() else " " for letter in small(other)).split()
    values = Counter(VALUES[word] for word in words if word in VALUES)
    found = []
    for number in left:
        value = number.text.lstrip("0") or "0"
        if values[value]:
            values[value] -= 1
        else:
            found.append(number.text)
    return found


def small(text: str) -> str:
    """A text with small letters for the capitals of Latin, Greek and Cyrillic that have one."""
    return text.translate(_SMALL)


def _with_marks(whole: str, decimals: str | None) -> Iterator[str]:
    """A number with each mark of decimals and of groups; one of two digits loses its leading zero."""
    for mark, group in (".,", ",."):
        fraction = "" if decimals is None else mark + decimals
        yield whole + fraction
        if len(whole) > 3 and whole[0] != "0":
            first = len(whole) % 3 or 3
            yield group.join([whole[:first], *re.findall("...", whole[first:])]) + fraction
        if len(whole) == 2 and whole[0] == "0":
            yield whole[1] + fraction


def _clock(hour: int, minutes: str, half: str) -> Iterator[str]:
    """A time on a clock of 24 hours, and of 12 with a half of the day."""
    if half:
        hour = hour % 12 + (12 if half == "p" else 0)
    twelve = f"{hour % 12 or 12}", " p.m" if hour >= 12 else " a.m"
    for end in ["", f":{minutes}"] if minutes == "00" else [f":{minutes}"]:
        yield from (f"{hour}{end}", end.join(twelve))
        if end and hour < 10:
            yield f"0{hour}{end}"
