"""Three tokenizers of a few hundred tokens: byte-level BPE, SentencePiece's BPE with bytes, and Unigram.

The pieces are learned from a few sentences here, by counting, so that they are the same on every machine.
"""

from __future__ import annotations

import base64
import json
import math
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import pre_tokenizers

from golden.charsmap import charsmap

Words = dict[tuple[str, ...], int]  # pieces of a word -> count
Merge = tuple[str, str]
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
SENTENCES = (
    "the little fox and the old bear sat there and then they thought that the other ones were there too.",
    "she said that she'd seen the sea, and they're seeing these ships: there they are, thirteen of them.",
    "in the thinnest thing there is nothing, and in nothing there is everything; the end is the beginning.",
    "Der Fuchs läuft über die Brücke, überall grüßen schöne Mädchen. Größe ist nicht alles, aber überall schön.",
    "日本語の日本と日の本。 日本の本は日本語です。 мама мыла раму, мама мыла маму.",
    "été, été, déjà là: où es-tu? 1234 12 345 2025 2024 12. 🙂🙂 🎉🎉 🙂 🎉",
)
MERGES = 90


def byte_level() -> str:
    """GPT-2's form: byte-level, cut by its regular expression; one special token, 0, before a text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = Counter(tuple(word) for sentence in SENTENCES for word, _ in spell.pre_tokenize_str(sentence))
    merges = _learned(words)
    tokens = ["<|end|>", *letters, *(a + b for a, b in merges)]
    return _json(
        merging(tokens, merges),
        [("<|end|>", True)],
        tokens,
        pre_tokenizer=_byte_level(),
        decoder=_byte_level(),
        post_processor=_template(tokens, ["<|end|>"], []),
    )


def pieces() -> str:
    """SentencePiece's BPE, as Llama's: spaces are characters, bytes are the fallback; <s> before a text."""
    words = Counter(tuple(f"{SPACE}{word}") for sentence in SENTENCES for word in sentence.split())
    merges = _learned(words)
    letters = sorted({letter for word in words for letter in word if letter != "🎉"})
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *(a + b for a, b in merges)]
    tokens = [*tokens, *(letter for letter in letters if letter not in tokens)]
    there = set(tokens)
    merges = [(a, b) for a, b in merges if a in there and b in there]
    replaced: dict[str, Any] = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    back: dict[str, Any] = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    decoders = [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
    return _json(
        merging(tokens, merges) | {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True},
        [("<unk>", True), ("<s>", True), ("</s>", True)],
        tokens,
        normalizer=_sequence("normalizers", [{"type": "Prepend", "prepend": SPACE}, replaced]),
        decoder=_sequence("decoders", [*decoders, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]),
        post_processor=_template(tokens, ["<s>"], []),
    )


def unigram() -> str:
    """SentencePiece's Unigram, as T5's: a text is normalized, and ends with </s>; <mask> is not special."""
    counts: Counter[str] = Counter()
    for sentence in SENTENCES:
        for word in unicodedata.normalize("NFKC", sentence).split():
            spaced = SPACE + word
            cuts = ((i, j) for i in range(len(spaced)) for j in range(i + 1, min(i + 7, len(spaced)) + 1))
            counts.update(spaced[i:j] for i, j in cuts)
    letters = sorted(text for text in counts if len(text) == 1 and text != "🎉")
    longer = sorted(
        (text for text in counts if len(text) > 1 and counts[text] > 1), key=lambda t: (-counts[t] * len(t), t)
    )
    tokens = ["<pad>", "</s>", "<unk>", *letters, *longer[:150], "<mask>"]
    total = sum(counts.values())
    # multiples of 2^-10, so that a sum of them is the same in any order
    scores = {text: round(1024 * math.log(counts[text] / total)) / 1024 for text in (*letters, *longer)}
    metaspace = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
    model: dict[str, Any] = {"type": "Unigram", "unk_id": 2, "byte_fallback": False}
    special = [("<pad>", True), ("</s>", True), ("<unk>", True), ("<mask>", False)]
    compiled = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap(_rules())).decode()}
    doubled = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
    return _json(
        model | {"vocab": [[text, scores.get(text, 0.0)] for text in tokens]},
        special,
        tokens,
        normalizer=_sequence("normalizers", [compiled, doubled]),
        pre_tokenizer=metaspace,
        decoder=metaspace,
        post_processor=_template(tokens, [], ["</s>"]),
    )


def _rules() -> dict[str, str]:
    """Replacements of some characters, and of some with combining accents, from old versions of Unicode."""
    single = [chr(c) for c in range(0xFF01, 0xFF5F)] + list("ﬁﬂﬀ½¼²³①②③㌔…™ﷺ\u00a0\u3000ﾊﾞﾟ｡ℌ㎏ª")
    rules = {c: unicodedata.normalize("NFKC", c) for c in single}
    joined = [base + accent for base in "aeiouAEIOU" for accent in "\u0300\u0301\u0308"] + ["ﾊﾞ", "ﾊﾟ", "が"]
    rules |= {text: unicodedata.normalize("NFKC", text) for text in joined}
    return rules | dict.fromkeys("\t\n\r\u2028", " ") | dict.fromkeys("\u200b\u00ad\ufeff\u0007", "")


def _learned(words: Mapping[tuple[str, ...], int]) -> list[Merge]:
    """The most frequent pairs (Sennrich et al. 2016); among equals, the first in order."""
    merges: list[Merge] = []
    while len(merges) < MERGES:
        pairs: Counter[Merge] = Counter()
        for word, count in words.items():
            for pair in zip(word, word[1:], strict=False):
                pairs[pair] += count
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        merged: Counter[tuple[str, ...]] = Counter()
        for word, count in words.items():
            merged[_joined(word, best)] += count
        words = merged
    return merges


def _joined(word: Sequence[str], pair: Merge) -> tuple[str, ...]:
    made: list[str] = []
    for piece in word:
        if made and (made[-1], piece) == pair:
            made[-1] += piece
        else:
            made.append(piece)
    return tuple(made)


def merging(tokens: Sequence[str], merges: Sequence[Sequence[str]]) -> dict[str, Any]:
    return {
        "type": "BPE",
        **dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")),
        **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False),
        "vocab": {token: number for number, token in enumerate(tokens)},
        "merges": [list(merge) for merge in merges],
    }


def _byte_level() -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def _sequence(name: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", name: parts}


def _template(tokens: Sequence[str], before: Sequence[str], behind: Sequence[str]) -> dict[str, Any]:
    def special(name: str) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": 0}}

    form = [*map(special, before), {"Sequence": {"id": "A", "type_id": 0}}, *map(special, behind)]
    used = {name: {"id": name, "ids": [tokens.index(name)], "tokens": [name]} for name in (*before, *behind)}
    pair = [*form, {"Sequence": {"id": "B", "type_id": 0}}]
    return {"type": "TemplateProcessing", "single": form, "pair": pair, "special_tokens": used}


def _json(model: dict[str, Any], added: Sequence[tuple[str, bool]], tokens: Sequence[str], **parts: Any) -> str:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": tokens.index(t), "content": t, **flags, "special": special} for t, special in added],
        **dict.fromkeys(("normalizer", "pre_tokenizer", "post_processor", "decoder")),
        **parts,
        "model": model,
    }
    return json.dumps(data, ensure_ascii=False)
