"""Sentences of a text, as runtimes/contract/translators.md defines them, and repetition in a translation."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # the property White_Space
# end marks and closing quotes, followed by white space except in Chinese and Japanese; else white space alone
_GAP = re.compile(
    rf"""((?<![.!?…])[.!?…]+["'”’“‘»«)\]]*(?=[{_SPACE}])|[。！？]+[」』”’）]*)[{_SPACE}]*|[{_SPACE}]+""",
)
_OPENING = "\"'„“”‚‘’«»([¿¡-–—"
_FOLLOWING = re.compile(rf"[{re.escape(_OPENING)}]*(.?)", re.DOTALL)
_ABBREVIATED = (
    "mr mrs ms dr prof st vs etc inc ltd co jr sr fig vol pp approx dept gen col capt sgt rev hon "
    "bzw ca evtl ggf inkl exkl nr usw vgl bd hr dipl ing jh mio mrd tel sog geb gest str tsd bspw zzgl abb "
    "jan feb mar apr jun jul aug sep sept oct okt nov dec dez "
    "mme mlle mm cf av env sra srta dña ud uds"
)
ABBREVIATIONS = frozenset(_ABBREVIATED.split())
_NUMBER = re.compile(r"\d+")
LEAST_REPEATED = 8  # tokens


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences, without white space around them."""
    found: list[str] = []
    begin = word = 0  # where the sentence and the word begin
    for gap in _GAP.finditer(text):
        if gap.start() == begin and not gap[1] or _ends(text, text[word : gap.start()], gap):
            found.append(text[begin : gap.start() + len(gap[1] or "")])
            begin = gap.end()
        word = gap.end()
    return [sentence for sentence in [*found, text[begin:]] if sentence]


def _ends(text: str, word: str, gap: re.Match[str]) -> bool:
    """Whether a sentence ends with this word and the gap after it."""
    if gap.end() == len(text) or gap[0].count("\n") > 1:
        return True
    following = _FOLLOWING.match(text, gap.end())
    if gap[1] is None or (following and following[1].islower()):
        return False
    word = word.lstrip(_OPENING)
    is_open = len(word) == 1 or "." in word or _NUMBER.fullmatch(word) or word.lower() in ABBREVIATIONS
    return gap[1] != "." or not is_open


def repeats(tokens: Sequence[int]) -> bool:
    """Whether tokens repeat themselves: at least 8 in a row that are two or more copies of at most 16, the last one
    possibly unfinished."""
    return any(_longest_run(tokens, period) >= max(LEAST_REPEATED, 2 * period) for period in range(1, 17))


def _longest_run(tokens: Sequence[int], period: int) -> int:
    """The most tokens in a row of which each is equal to the one `period` before it, with those that they repeat."""
    longest = same = 0
    for token, before in zip(tokens[period:], tokens, strict=False):
        same = same + 1 if token == before else 0
        longest = max(longest, same)
    return longest + period
