"""Sentence segmentation for translators.

The rules are conservative: a full stop after a number, an initial or a common abbreviation does not end a sentence, nor
does one before a lowercase letter.
"""

from __future__ import annotations

import re

# end marks and closing quotes, followed by white space except in Chinese and Japanese
_END = re.compile(r"""(?:(?<![.!?…])[.!?…]+["'”’“‘»«)\]]*(?=\s)|[。！？]+[」』”’）]*)\s*""")
_OPENING = "\"'„“”‚‘’«»([¿¡-–—"
_ABBREVIATED = (
    "mr mrs ms dr prof st vs etc inc ltd co jr sr fig vol pp approx dept gen col capt sgt rev hon "
    "bzw ca evtl ggf inkl exkl nr usw vgl bd hr dipl ing jh mio mrd tel sog geb gest "
    "jan feb mar apr jun jul aug sep sept oct okt nov dec dez "
    "mme mlle mm cf av env sra srta dña ud uds"
)
ABBREVIATIONS = frozenset(_ABBREVIATED.split())


def split_sentences(line: str) -> list[str]:
    """Split a line into stripped sentences."""
    found, begin = [], 0
    for match in _END.finditer(line):
        if _ends(line, begin, match):
            found.append(line[begin : match.end()].strip())
            begin = match.end()
    found.append(line[begin:].strip())
    return [sentence for sentence in found if sentence]


def _ends(line: str, begin: int, match: re.Match[str]) -> bool:
    following = line[match.end() : match.end() + 4].lstrip(_OPENING)
    if following[:1].islower():
        return False
    if match[0].rstrip() != ".":
        return True
    word = line[max(begin, line.rfind(" ", begin, match.start()) + 1) : match.start()].lstrip(_OPENING)
    return not (word.isdigit() or len(word) == 1 or "." in word or word.lower() in ABBREVIATIONS)


def repeats(tokens: list[int]) -> bool:
    """Whether tokens end in a loop of at most 16 tokens, repeated at least four times and over at least 12 tokens."""
    for period in range(1, 17):
        same = 0
        while same + period < len(tokens) and tokens[-1 - same] == tokens[-1 - same - period]:
            same += 1
        if same >= max(3 * period, 12 - period):
            return True
    return False
