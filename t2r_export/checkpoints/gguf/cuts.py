"""How byte-level tokenizers cut a text, by the names of `tokenizer.ggml.pre`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*")
_CASED_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
LLAMA3 = rf"{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
QWEN2 = rf"{_WORD}|\p{{N}}|{_SIGNS}|{_SPACES}"
QWEN35 = rf"{_ENDINGS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
TEKKEN = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_CASED_SIGNS}|{_SPACES}"
GPT4O = rf"{_CASED[0]}{_ENDINGS}?|{_CASED[1]}{_ENDINGS}?|\p{{N}}{{1,3}}|{_CASED_SIGNS}|{_SPACES}"
BLOOM = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
SEED = rf"{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+|{_SPACES}"
Part = dict[str, Any]


def _level(words: bool) -> Part:
    """Bytes as characters. Args: words: cut as GPT-2 does first."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": words}


def _split(*regexes: str) -> tuple[Part, ...]:
    """Cuts in turn; what a regex finds is a part of its own."""
    return tuple({"type": "Split", "pattern": {"Regex": x}, "behavior": "Isolated", "invert": False} for x in regexes)


_EACH_DIGIT: Part = {"type": "Digits", "individual_digits": True}
_EACH_RUN: Part = {"type": "Digits", "individual_digits": False}
DEEPSEEK_CODER = (
    *_split("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"),
    _EACH_DIGIT,
    _level(False),
)
HUNYUAN = (
    *_split(
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
    ),
    _level(False),
)
FALCON = ({"type": "Punctuation", "behavior": "Contiguous"}, _level(True), _EACH_RUN, *_split("[0-9][0-9][0-9]"))


@dataclass(frozen=True)
class Cut:
    """A way to cut texts.

    Attributes:
        regex: None: GPT-2's, which ByteLevel contains.
        digits: single digits are cut first.
        parts: in place of these two: the pre-tokenizers.
        nfc: texts are composed first, as by the tokenizers of these models.
        whole: a word that is a token is not divided, and bos is added unless the file denies it; both as in llama.cpp.
    """

    regex: str | None = None
    digits: bool = False
    nfc: bool = False
    whole: bool = False
    parts: tuple[Part, ...] = ()

    @property
    def normalizer(self) -> dict[str, Any] | None:
        return {"type": "NFC"} if self.nfc else None

    @property
    def pre_tokenizer(self) -> dict[str, Any]:
        """As in tokenizer.json."""
        first = (_EACH_DIGIT,) if self.digits else ()
        parts = self.parts or (*first, *_split(*filter(None, [self.regex])), _level(self.regex is None))
        return {"type": "Sequence", "pretokenizers": [*parts]}


_NAMES = {
    "gpt-2 phi-2 mpt olmo jais roberta-bpe exaone4 jina-es jina-de mellum trillion granite-docling": Cut(),
    "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2": Cut(digits=True),
    "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2": Cut(LLAMA3, whole=True),
    "dbrx smaug-bpe chatglm-bpe glm4": Cut(LLAMA3),
    "qwen2 deepseek-r1-qwen kormo megrez": Cut(QWEN2, nfc=True),
    "stablelm2": Cut(QWEN2),
    "qwen35": Cut(QWEN35, nfc=True),
    "tekken": Cut(TEKKEN, whole=True),
    "bloom": Cut(BLOOM),
    "hunyuan-dense": Cut(parts=HUNYUAN),
    "seed-coder": Cut(SEED),
    "deepseek-coder": Cut(parts=DEEPSEEK_CODER),
    "falcon": Cut(parts=FALCON),
    "gpt-4o llama4 kanana2": Cut(GPT4O),
}
CUTS: dict[str, Cut] = {name: cut for names, cut in _NAMES.items() for name in names.split()}
