"""The grammar of regular expressions, and the rules that make them linear: what each refuses."""

from __future__ import annotations

import pytest

from t2r_runtime.text.patterns import linear

RUN = "a run that may be read in vain"
REFUSED = {
    "": "a branch that matches no character",
    "a|": "a branch that matches no character",
    "a*": "a branch that matches no character",
    "a*b": RUN,
    "a*b|a": RUN,
    "a+b|a{2}": RUN,
    r"\s*[\r\n]+|\s|\s+": RUN,
    r"x?a*b|a+": RUN,
    r"\s++(?!\S)|\s": RUN,
    r"\s+(?!a)|\s": RUN,
    r"\s+$|a$": RUN,
    "a*b*c|a+": "two runs that may be read in vain",
    "(a+)+": '"(a+)"',
    "(?:a+)": '"(?:a"',
    "(?:a)+": '"+"',
    r"\w+": r'"\w+"',
    r"\p{Han}": r'"\p{H"',
    "a.": '"."',
    "a+?": '"?"',
    "a{2}+": '"+"',
    "a{,3}": '"{,3}"',
    "a{3,2}": '"a{3,2}"',
    "a{65}": '"a{65}"',
    "[b-a]": '"b-a"',
    "[a&&b]": '"[a&&"',
    "[[:alpha:]]": '"[[:a"',
    "[^a[^b]]": '"[^a["',
    "[]": '"[]"',
    "a]": '"]"',
    "(?i:st)": '"(?i:" of a ligature',
    "(?i:[xs]S)": '"(?i:" of a ligature',
    "(?i:é)": '"(?i:" of other characters than ASCII\'s',
    r"(?i:\s)": '"(?i:" of other characters than ASCII\'s',
    "(?:a|b)" * 7: "more than 64 ways through a branch",
    "a{0,63}b?": "more than 64 ways through a branch",
    "a" * 17: "too many branches or steps",
    "|".join("a" * 33): "too many branches or steps",
    f"[{'a' * 4096}]": "more than 4,096 bytes",
}


@pytest.mark.parametrize("pattern", REFUSED)
def test_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=".") as caught:
        linear(pattern)
    assert str(caught.value) == REFUSED[pattern]


@pytest.mark.parametrize(
    "pattern",
    [
        r"\s*[\r\n]|\s+(?!\S)|\s",
        r"x?a*b|x?a+",
        "a*+b|a+c?",
        "a{1}b*c|ab+",
        r"[^a]+(?![a])|b",
        r"\P{L}+(?!\p{L})|[-a[b-d]\]&]{2,5}",
        r"(?=a)[ab]{1,64}|(?i:'[sk]|ok)?!",
        "a{1,32}b?|[^^-]",
    ],
)
def test_accepted(pattern: str) -> None:
    assert linear(pattern) == pattern
