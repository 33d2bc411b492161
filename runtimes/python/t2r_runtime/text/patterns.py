"""The regular expressions that all runtimes support: the grammar and the rules of runtimes/contract/text.md.

The tokenizers library matches by backtracking. The rules bound its work by a constant per byte of the text.
"""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

MAX_BYTES, MAX_BRANCHES, MAX_STEPS, MAX_COUNT, MAX_WAYS = 4096, 32, 16, 64, 64
CATEGORIES = tuple(
    "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp".split()  # noqa: SIM905
)
LIGATURES = {"ss", "st", "ff", "fi", "fl"}  # regardless of case, each equals one other character of Unicode
IN_VAIN = "a run that may be read in vain"

_CLASS = rf"\\[sSdD]|\\[pP]\{{\^?(?:{'|'.join(CATEGORIES)})\}}"
_ESCAPE = rf"\\[rnt{re.escape(string.punctuation.replace('_', ''))}]"
_LISTED = rf"(?:{_ESCAPE}|[^\\\[\]&-]|&(?!&))"
_ITEM = rf"{_CLASS}|{_LISTED}(?:-{_LISTED})?"
_INNER = rf"\[(?!\^|:)(?:-|-?(?:{_ITEM})+-?)\]"
_SET = rf"(?:{_CLASS}|{_ESCAPE}|\[(?:\^|(?!\^))(?:-|-?(?:{_ITEM}|{_INNER})+-?)\]|[^\\|()\[\]{{}}^$.*+?])"
_WORDS = re.compile(rf"\(\?(i?):({_SET}+(?:\|{_SET}+)*)\)(\??)")
_PLACE = re.compile(rf"\(\?(=|!)({_SET})\)|[\^$]")
_COUNTED = re.compile(rf"({_SET})(?:([?*+])(\+?)|\{{([0-9]{{1,2}})(?:(,)([0-9]{{1,2}})?)?\}})?")
_SETS, _ITEMS = re.compile(_SET), re.compile(rf"{_ITEM}|[\[\]-]")
_ESCAPED = {r"\r": "\r", r"\n": "\n", r"\t": "\t"}


@dataclass(frozen=True)
class Step:
    """A step of a branch.

    Attributes:
        kind: "set" or "words", or "ahead", "not ahead", "^" or "$", which match a place and no character.
        source: the set or the words as written, without a count.
        text: the whole step as written.
        most: None for a run, which is unbounded.
        ways: in how many ways it matches, at most; 1 for a run.
    """

    kind: str
    source: str
    text: str = field(compare=False)
    least: int = 1
    most: int | None = 1
    possessive: bool = False
    ways: int = 1

    @property
    def can_fail(self) -> bool:
        return self.least > 0


Branch = list[Step]


def linear(pattern: str) -> str:
    """An expression that matches the same, in linear time, in the tokenizers library.

    Raises:
        ValueError: the pattern is not one of the contract's; the text of the error says why.
    """
    branches = parse(pattern)
    for number, branch in enumerate(branches):
        run = _scanned(branch)
        if run is None or _closes_itself(branch, run):
            continue
        if number + 1 == len(branches):
            if not _is_edge(branches, run):
                raise ValueError(IN_VAIN)
            own = "".join(step.text for step in branch)
            return f"{pattern.removesuffix(own)}(?<!{branch[0].source}){own}"
        after = branches[number + 1]
        same = [step.source for step in after[run : run + 1] if step.most is None] == [branch[run].source]
        if not same or after[:run] != branch[:run]:
            raise ValueError(IN_VAIN)
    return pattern


def parse(pattern: str) -> list[Branch]:
    """The branches of an expression. Raises ValueError if it is not of the grammar."""
    if len(pattern.encode()) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES:,} bytes")
    branches: list[Branch] = [[]]
    place = 0
    while place < len(pattern):
        if pattern[place] == "|":
            branches.append([])
            place += 1
        else:
            step, place = _step(pattern, place)
            branches[-1].append(step)
        if len(branches) > MAX_BRANCHES or len(branches[-1]) > MAX_STEPS:
            raise ValueError("too many branches or steps")
    return branches


def _step(pattern: str, place: int) -> tuple[Step, int]:
    if found := _WORDS.match(pattern, place):
        words = list(_words(found[2], bool(found[1])))
        if len(words) > MAX_BRANCHES or max(words) > MAX_STEPS:
            raise ValueError("too many words")
        least = 0 if found[3] else 1
        return Step("words", found[0], found[0], least, ways=len(words) + 1 - least), found.end()
    if found := _PLACE.match(pattern, place):
        kind = {"=": "ahead", "!": "not ahead", None: found[0]}[found[1]]
        _require_ordered(found[2] or "")
        return Step(kind, found[2] or "", found[0]), found.end()
    found = _COUNTED.match(pattern, place)
    if not found:
        raise ValueError(f'"{pattern[place : place + 4]}"')
    source, sign, possessive, least_text, comma, most_text = found.groups()
    _require_ordered(source)
    least = int(least_text) if least_text else 0 if sign and sign in "?*" else 1
    most = least if least_text else 1
    run = most_text is None if comma else bool(sign) and sign in "*+"
    most = int(most_text) if most_text else most
    if max(least, most) > MAX_COUNT or (not run and most < max(least, 1)):
        raise ValueError(f'"{found[0][-6:]}"')
    ways = 1 if run else most - least + 1
    return Step("set", source, found[0], least, None if run else most, bool(possessive), ways), found.end()


def _words(inside: str, any_case: bool) -> Iterator[int]:
    """The length of each word in sets."""
    sets, place, before = 0, 0, set[str]()
    while place < len(inside):
        if inside[place] == "|":
            yield sets
            sets, place, before = 0, place + 1, set()
            continue
        found = _SETS.match(inside, place)
        assert found
        _require_ordered(found[0])
        if any_case:
            letters = _letters(found[0])
            if LIGATURES.intersection(map("".join, itertools.product(before, letters))):
                raise ValueError('"(?i:" of a ligature')
            before = letters
        sets, place = sets + 1, found.end()
    yield sets


def _letters(source: str) -> set[str]:
    """The characters of a set, which must be ASCII's, in lower case."""
    items = _ITEMS.findall(source) if source[0] == "[" else [source]
    found = [_character(item) for item in items if not (source[0] == "[" and item in "[]")]
    if source.startswith("[^") or not all(len(item) == 1 and item.isascii() for item in found):
        raise ValueError('"(?i:" of other characters than ASCII\'s')
    return {item.lower() for item in found}


def _character(item: str) -> str:
    """The character that an item of a set is; more than one character for another item."""
    if item in _ESCAPED:
        return _ESCAPED[item]
    return item[1] if len(item) == 2 and item[0] == "\\" and not item[1].isalpha() else item


def _require_ordered(source: str) -> None:
    """Raise ValueError if a range of a set ends before it begins."""
    if source.startswith("["):
        for item in _ITEMS.findall(source):
            ends = re.fullmatch(rf"({_LISTED})-({_LISTED})", item)
            if ends and _character(ends[1]) > _character(ends[2]):
                raise ValueError(f'"{item}"')


def _scanned(branch: Branch) -> int | None:
    """The run that a branch may read and then fail."""
    runs = [
        number
        for number, step in enumerate(branch)
        if step.most is None and any(later.can_fail for later in branch[number + 1 :])
    ]
    if len(runs) > 1:
        raise ValueError("two runs that may be read in vain")
    ways = 1
    for step in branch:
        ways *= step.ways
        if ways > MAX_WAYS:
            raise ValueError(f"more than {MAX_WAYS} ways through a branch")
    if not any(step.least for step in branch if step.kind in ("set", "words")):
        raise ValueError("a branch that matches no character")
    return runs[0] if runs else None


def _closes_itself(branch: Branch, run: int) -> bool:
    """Whether all of a run but one character is matched: after it, any of its own characters may follow."""
    rest = branch[run + 1 :]
    return rest == [Step("not ahead", _negated(branch[run].source), "")] and not branch[run].possessive


def _is_edge(branches: Sequence[Branch], run: int) -> bool:
    """Whether the last branch is a run to the end of a line, and all others runs of its set from the beginning."""
    last = branches[-1]
    others = all(
        len(branch) == 2 and branch[0].kind == "^" and branch[1].most is None and branch[1].source == last[0].source
        for branch in branches[:-1]
    )
    return run == 0 and [step.kind for step in last] == ["set", "$"] and others


def _negated(source: str) -> str:
    if source.startswith("["):
        return f"[{source[2:]}" if source[1] == "^" else f"[^{source[1:]}"
    if source[0] == "\\" and source[1] in "sSdDpP":
        return f"\\{source[1].swapcase()}{source[2:]}"
    return f"[^{source}]"
