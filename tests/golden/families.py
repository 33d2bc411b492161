"""The pre-tokenizers that families of docs/families.md publish, and texts that distinguish them.

Each is the `pretokenizers` of a tokenizer.json, in a Sequence; the patterns of parts.py are not repeated.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import pre_tokenizers

from golden import parts, vocabularies
from golden.texts import Case, strings

Part = dict[str, Any]
TEXTS = 40
ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LEADING, DIGITS = r"[^\r\n\p{L}\p{N}]?", r"\p{N}{1,3}"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
LINES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
SIGNS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{LINES}"
O200K = rf"{LEADING}{UPPER}*{LOWER}+{ENDINGS}?|{LEADING}{UPPER}+{LOWER}*{ENDINGS}?|{DIGITS}|{SIGNS}"
TEKKEN = rf"{LEADING}{UPPER}*{LOWER}+|{LEADING}{UPPER}+{LOWER}*|\p{{N}}|{SIGNS}"
QWEN = rf"{ENDINGS}|{LEADING}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{LINES}"
SEED = (
    rf"{ENDINGS}|[^"
    "\r\n"
    r"\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}"
    "\r\n"
    r"]+|\s*["
    "\r\n"
    r"]+|\s+(?!\S)|\s+"
)
NANOCHAT = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
HUNYUAN = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^"
    "\r\n"
    r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["
    "\r\n"
    r"]*|\s*["
    "\r\n"
    r"]+|\s+(?!\S)|\s+"
)
BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"


def _split(*regexes: str) -> list[Part]:
    return [parts.split(regex) for regex in regexes]


LETTERS: Part = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
WORDS: Part = {**LETTERS, "use_regex": True}
EACH: Part = {"type": "Digits", "individual_digits": True}
RUNS: Part = {"type": "Digits", "individual_digits": False}
SIGN_RUNS: Part = {"type": "Punctuation", "behavior": "Contiguous"}
MARK: Part = {"type": "Metaspace", "replacement": "|", "prepend_scheme": "always", "split": False}
FAMILIES: dict[str, list[Part]] = {
    "qwen35": [*_split(QWEN), LETTERS],
    "o200k": [*_split(O200K), LETTERS],
    "tekken": [*_split(TEKKEN), LETTERS],
    "hunyuan": [*_split(DIGITS, "[一-龥\u3040-ゟ゠-ヿ]+", HUNYUAN), LETTERS],
    "deepseek-llm": [  # its list of letters is longer
        *_split("[\r\n]", "\\s?[A-Za-zµÀ-ÖØ-öø-ƺᏸ-ᏽﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏]+", "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+"),
        *_split("\\s+$", "[一-龥ࠀ-一가-\ud7ff]+"),
        EACH,
        LETTERS,
    ],
    "seed-oss": [*_split(SEED), LETTERS],
    "nanochat": [*_split(NANOCHAT), LETTERS],
    "cl100k": [*_split(CL100K), LETTERS],
    "bloom": [*_split(BLOOM), LETTERS],
    "falcon": [SIGN_RUNS, WORDS, RUNS, *_split("[0-9][0-9][0-9]")],
    "smollm": [EACH, WORDS],
}
PIECES = (
    *("a", "Ab", "HTML", "camelCase", "x\u0301", "É", "ǅ", "ʰ", "ª", "ſ", "日本", "かな", "ア", "हि", "각", "ａ"),
    *("12", "1234567", "²", "½", "٣", "Ⅳ", "'s", "'S", "'ll", "'VE", "'ſ", "’s", "don't", "IT'D"),
    *(".", "!!", "/", "-x", "(a", "$", "+=", "…", "。", "、", "€", "\u200d", "\u0301", "👍🏽"),
    *(" ", "  ", "   ", "\n", "\r\n", "\n\n", " \n", "\n ", "\t", "\u00a0", "\u3000", "\u2028", "\u0085"),
)


def tokenizer(name: str) -> Part:
    """A byte-level BPE with these pre-tokenizers. What they cut begins with a mark, so that each cut changes tokens."""
    found = FAMILIES[name]
    marked = {**LETTERS, "add_prefix_space": True}
    cuts = [*found[:-1], marked] if found[-1] == LETTERS else [*found, MARK]
    return {
        **dict.fromkeys(("truncation", "padding", "normalizer", "post_processor")),
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": cuts},
        "decoder": LETTERS,
        "model": vocabularies.merging(["<s>", *sorted(pre_tokenizers.ByteLevel.alphabet())], []),
    }


def cases(folder: Path) -> Iterator[Case]:
    """A graph with each tokenizer in it, and its texts."""
    for name in FAMILIES:
        yield parts.case(folder, name, tokenizer(name), texts(name, TEXTS))


def texts(name: str, count: int) -> list[str]:
    """Random texts of the pieces, and some of all scripts."""
    random = np.random.default_rng(list(f"{name} families".encode()))
    found = dict.fromkeys(["\u0301\t\t", *strings(name)[: count // 4]])
    while len(found) < count:
        found["".join(PIECES[i] for i in random.integers(0, len(PIECES), random.integers(2, 12)))] = None
    return list(found)
