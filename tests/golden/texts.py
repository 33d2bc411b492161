"""Texts through the three tokenizers: encoded, decoded, and streamed piece by piece."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from golden import vocabularies
from golden.models import seeded
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.export import export
from t2r_runtime import Decoder, Tokenizer

Case = tuple[str, str, dict[str, Any]]  # name, which is also the file's, kind and content
TEXTS, STREAMS = 300, 12
UNFINISHED = "\N{REPLACEMENT CHARACTER}"
WAITING = 16  # that many at the end of a text may still become a character
SPECIAL, MANY = 0, 40  # a special token of all three, and more than a stream decodes again
# tokenizer and start token
TOKENIZERS = {
    "bytes": (vocabularies.byte_level, 0),
    "pieces": (vocabularies.pieces, 1),
    "unigram": (vocabularies.unigram, None),
}
FIXED = (
    "a",
    " ",
    "  ",
    "\n",
    "the",
    " the",
    "the end",
    "The  end \n\n of it.\t",
    "I'm sure they'll say she'd've 'tis",
    "a\r\nb\rc",
    "x" * 40,
    "12345 6 1,000.00",
    "<|end|>the<|end|>",
    "<s>the</s> <unk>",
    "the <mask> end<mask>",
    "▁the▁",
    "e\u0301te\u0301 \u00e9t\u00e9",
    "\ufeffthe\u00ad end\u200b",
    "👩‍👩‍👧 🏳️‍🌈 👍🏽 🇩🇪🇫🇷",
    "ｆｕｌｌ ｗｉｄｔｈ ﬁne ½ ㌔ ﷺ",
    "ﾊﾞﾟ が か\u3099",
    "𝔘𝔫𝔦 𐍈 𠮷野家",
    "שָׁלוֹם العَرَبِيَّة",
    "हिन्दी ไทย 한국어",
    "Ωμέγα Σίσυφος ΣΑΣ",
    UNFINISHED,
)
WORDS = " ".join(vocabularies.SENTENCES).split()
LETTERS = (
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "0123456789.,;:!?'\"()-_/@#$%&*+=<>[]{}|~^`\\",
    " \t\n\r\u00a0\u2003\u3000\u200b",
    "äöüßéèêñçøåæœÄÖÜ",
    "a\u0301e\u0308o\u0302u\u0300\u0323",
    "αβγδΩЖяпрстשלוםابتثहिन्दीไทย",
    "日本語の本漢字東京한국어조선",
    "🙂🎉👍🏽👩‍👧🇩🇪❤️",
    "𝔘𐍈𠮷½²①ﬁ㌔…™ﾊﾞ",
)


def cases(folder: Path) -> Iterator[Case]:
    """A graph with each tokenizer in it, and its cases."""
    for name, (make, bos) in TOKENIZERS.items():
        tokenizer = make()
        size = max(Tokenizer(tokenizer)._library.tokenizer.get_vocab().values()) + 1
        config = UniformConfig(
            vocab_size=size,
            width=4,
            ffn_size=3,
            layers=(LinearConfig(feature_size=3),),
            position="none",
            bos_token=bos,
            eos_tokens=(1,),
            attention=HeadsConfig(heads=2, kv_heads=1, head_size=2),
        )
        export(seeded(name, dataclasses.replace(config), tokenizer), folder / f"{name}.onnx")
        opened = Tokenizer.of(Decoder(folder / f"{name}.onnx", threads=1).signature)
        graph = {"graph": f"{name}.onnx"}
        texts = [[text, ids := opened.encode(text), opened.decode(ids)] for text in strings(name)]
        yield f"text-{name}", "tokenizer", {**graph, "texts": texts}
        yield f"stream-{name}", "stream", {**graph, "texts": list(_streams(name, opened, size))}


def strings(name: str) -> list[str]:
    """`TEXTS` different texts: those that are fixed, and random ones of words and letters of all scripts."""
    random = np.random.default_rng(list(f"{name} texts".encode()))
    found = dict.fromkeys(FIXED)
    while len(found) < TEXTS:
        parts = []
        for _ in range(random.integers(1, 6)):
            if random.random() < 0.5:
                parts.append(WORDS[random.integers(len(WORDS))])
            else:
                letters = LETTERS[random.integers(len(LETTERS))]
                parts.append("".join(letters[i] for i in random.integers(0, len(letters), random.integers(1, 6))))
        found[" ".join(parts) if random.random() < 0.7 else "".join(parts)] = None
    return list(found)


def _streams(name: str, tokenizer: Tokenizer, size: int) -> Iterator[dict[str, Any]]:
    """Texts after prompts, one with runs of special tokens; of the bytes also random tokens, in any order."""
    random = np.random.default_rng(list(f"{name} streams".encode()))
    texts = strings(name)
    for place in range(STREAMS + 1):
        prompt = tokenizer.encode(texts[place]) if place % 3 == 1 else []
        tokens = tokenizer.encode("".join(texts[len(FIXED) + 3 * place + i] for i in range(3)))
        if name == "bytes" and place % 3 == 2:
            tokens = random.integers(0, size, 40).tolist()
        if place == STREAMS:
            tokens = [each for token in tokenizer.encode("die 日🙂 end") for each in (token, *[SPECIAL] * MANY)]
        pieces, end = streamed(tokenizer, prompt, tokens)
        yield {"prompt": prompt, "tokens": tokens, "pieces": pieces, "end": end}


def streamed(tokenizer: Tokenizer, prompt: Sequence[int], tokens: Sequence[int]) -> tuple[list[str], str]:
    """The contract's rule, literally: unlike t2r_runtime.StreamingDetokenizer, decodes all tokens each time."""
    pieces, cut, given, new = [], 0, 0, ""
    for count in range(1, len(tokens) + 1):
        before, both = (tokenizer.decode([*prompt, *tokens[:n]]) for n in (cut, count))
        new = both.removeprefix(before) if both.startswith(before) else tokenizer.decode(tokens[cut:count])
        whole = new.rstrip(UNFINISHED)
        whole = new if len(new) - len(whole) > WAITING else whole
        pieces.append(whole[given:])
        given = max(given, len(whole))
        if new and whole == new:
            cut, given, new = count, 0, ""
    return pieces, new[given:]
