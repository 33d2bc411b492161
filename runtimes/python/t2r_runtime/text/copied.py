"""Names that a translation should copy from its source: runtimes/contract/copies.md.

German capitalizes every noun, so only some names are certain: unknown words after another noun or name (Frau Müller).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from t2r_runtime.text.numbers import VALUES, small

_WORD = re.compile(r"[^\W\d_]+")
_ANY_WORD = re.compile(r"[^\W_]+")
_LEAST = 3  # letters of a name
_BEFORE_NAMES = "heißt heiße heißen hieß namens"
_TITLES = "frau herr herrn familie onkel tante oma opa doktor professor firma"
_BEFORE_NOUNS = (
    "der die das den dem des ein eine einen einem einer eines kein keine keinen keinem keiner mein meine meinen meinem "
    "meiner dein deine deinen deinem deiner sein seine seinen seinem seiner ihr ihre ihren ihrem ihrer unser unsere "
    "unseren unserem unserer euer eure euren eurem eurer im am zum zur beim vom ins ans dieser diese dieses diesen "
    "diesem jeder jede jedes jeden jedem alle aller allen viele vielen einige mehrere sie "
    "montag dienstag mittwoch donnerstag freitag samstag sonntag"
)
_NAMING, _TITLE, _NOUNS = (frozenset(words.split()) for words in (_BEFORE_NAMES, _TITLES, _BEFORE_NOUNS))


class Name(NamedTuple):
    """A word of a source that may be a name, and whether it certainly is one."""

    word: str
    certain: bool


def names(source: str, is_known: Callable[[str], bool]) -> Iterator[Name]:
    """Unknown capitalized words of a source, in order, but those after words that come before nouns.

    Args:
        is_known: whether the vocabulary has this word, after a blank, as one token.
    """
    previous = earlier = ""  # the two words before, as far as only a blank is between
    follows, end = False, 0  # whether the previous word is not the first of its sentence; where it ends
    for match in _ANY_WORD.finditer(source):
        word, gap = match[0], source[end : match.start()]
        first = not end or any(mark in ".!?" for mark in gap)
        if gap != " ":
            previous = earlier = ""
        low = small(word)
        known = is_known(word) or first and is_known(low)
        if len(word) >= _LEAST and _is_capitalized(word) and not known and previous not in _NOUNS:
            yield Name(word, previous in _NAMING or follows and previous != "" and not _counts(earlier))
        follows = _is_capitalized(word) and (not first or low in _TITLE)
        previous, earlier, end = low, previous, match.end()


def missing_names(source: str, translation: str, is_known: Callable[[str], bool]) -> list[str]:
    """Certain names of a source that are missing in its translation, in order, without duplicates."""
    there = {_stem(word) for word in _WORD.findall(translation)}
    certain = (name.word for name in names(source, is_known) if name.certain)
    return [name for name in dict.fromkeys(certain) if _stem(name) not in there]


def same_words(one: str, other: str) -> list[str]:
    """Words of at least three letters that both texts contain, in the order of the first, without duplicates."""
    there = set(_WORD.findall(other))
    return [word for word in dict.fromkeys(_WORD.findall(one)) if word in there and len(word) >= _LEAST]


def _is_capitalized(word: str) -> bool:
    low = small(word)
    return word[:1] != low[:1] and word[1:] == low[1:]


def _counts(word: str) -> bool:
    """Whether what follows is a unit: two Wochen Gips."""
    return word in VALUES or word.isascii() and word.isdecimal()


def _stem(word: str) -> str:
    """Fold case, umlauts and a genitive s."""
    return word.casefold().translate(str.maketrans("äöü", "aou")).removesuffix("s")
