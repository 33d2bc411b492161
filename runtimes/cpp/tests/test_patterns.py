"""Regular expressions of tokenizers, compared with the tokenizers library: published ones, and any of the grammar."""

from __future__ import annotations

import json
import sys
from functools import cache

import pytest
import tokenizers
from cpp_build import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from t2r_library import Failed, Library, Tokenizer

sys.path.insert(0, str(ROOT / "tests"))

from golden import families
from t2r_runtime.text.patterns import CATEGORIES, linear

ODD = (
    "aAbzKſKſsS'’019²½٣ⅣǅʰªÉéx\u0301\u0903\u20dd日かア각🙂👍🏽\u200d,.-/\\[]^&_(€+=$`…。"
    " \t\r\n\v\f\u0085\u00a0\u180e\u2028\u3000\ufeff\x00\U000e0061"
)
TEXTS = st.text(st.sampled_from(ODD) | st.characters(codec="utf-8"), max_size=24)
BEHAVIORS = ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous")


def compare(library: Library, source: str, texts: list[str]) -> None:
    theirs, ours = tokenizers.Tokenizer.from_str(source), Tokenizer(library, source, bos_token=0)
    for text in texts:
        assert ours.encode(text) == (theirs.encode(text).ids or [0]), text
    ours.close()


@cache
def family(name: str) -> str:
    return json.dumps(families.tokenizer(name))


@pytest.mark.parametrize("name", families.FAMILIES)
@settings(max_examples=20)
@given(texts=st.lists(TEXTS, min_size=8, max_size=8))
def test_published(library: Library, name: str, texts: list[str]) -> None:
    compare(library, family(name), [*texts, *families.texts(name, 60)])


CLASSES = st.sampled_from(
    [r"\s", r"\S", r"\d", r"\D", *(rf"\{p}{{{name}}}" for name in CATEGORIES for p in ("p", "P", "p"))]
)
CHARACTERS = st.sampled_from([*"aAks1'é日🙂 _&", r"\r", r"\n", r"\t", r"\-", r"\\", r"\[", r"\^", r"\.", r"\/"])
RANGES = st.sampled_from(["a-z", "0-9", "!-/", r"\[-\^", "À-ž", "一-龥", "[a-c1]", "&"])
SETS = (
    CLASSES
    | CHARACTERS
    | st.builds(
        "[{}{}]".format,
        st.sampled_from(["", "^"]),
        st.lists(CLASSES | CHARACTERS | RANGES, min_size=1, max_size=4).map("".join),
    )
)
COUNTS = st.sampled_from(["", "", "?", "*", "+", "?+", "*+", "++", "{2}", "{1,3}", "{0,2}", "{2,}"])
ASCII = st.lists(st.sampled_from(["s", "T", "k", "'", "[dM]", r"\."]), min_size=1, max_size=3).map("".join)
WORDS = st.builds(
    "(?{}:{}){}".format, st.just("i"), st.lists(ASCII, min_size=1, max_size=3).map("|".join), st.sampled_from(["", "?"])
)
PLACES = st.builds("(?{}{})".format, st.sampled_from("=!"), SETS) | st.sampled_from("^$")
STEPS = st.builds("{}{}".format, SETS, COUNTS) | WORDS | PLACES
PATTERNS = st.lists(st.lists(STEPS, min_size=1, max_size=3).map("".join), min_size=1, max_size=4).map("|".join)
RUNS = st.builds("{0}*{1}+|{0}+(?!{2})|{1}".format, SETS, SETS, SETS) | st.builds("^{0}+|{0}+$".format, SETS)


@settings(max_examples=300)
@given(
    pattern=PATTERNS | RUNS,
    behavior=st.sampled_from(BEHAVIORS),
    invert=st.booleans(),
    texts=st.lists(TEXTS, min_size=6, max_size=6),
)
def test_any_pattern(library: Library, pattern: str, behavior: str, invert: bool, texts: list[str]) -> None:
    """Equal tokens for what the grammar accepts; and Python refuses what C++ does."""
    cut = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}
    made = families.tokenizer("qwen35")
    made["pre_tokenizer"]["pretokenizers"][0] = cut
    try:
        linear(pattern)
    except ValueError:
        with pytest.raises(Failed, match="^tokenizer: expected a tokenizer of parts"):
            Tokenizer(library, json.dumps(made))
    else:
        compare(library, json.dumps(made), texts)
