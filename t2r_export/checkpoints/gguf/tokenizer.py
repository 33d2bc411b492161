"""The tokenizer of a GGUF file as tokenizer.json: byte-level BPE, or sentencepiece's BPE or unigrams with scores.

sentencepiece merges the pair whose piece has the best score; a tokenizer.json lists those pairs in that order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from t2r_export.checkpoints.gguf.cuts import CUTS
from t2r_export.checkpoints.gguf.header import DOWNLOAD
from t2r_export.checkpoints.gguf.metadata import Metadata
from t2r_export.checkpoints.importers.special import CONFIG, DECODER
from t2r_export.checkpoints.importers.tokenizers import TOKENIZER
from t2r_export.checkpoints.piece_file import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, PieceModel
from t2r_export.checkpoints.piece_tokenizer import HIDDEN, SPACE, divisions, metaspace, normalizer_of
from t2r_runtime.errors import UserError, printable

MAX_TOKEN = 1 << 10  # characters
GGML, TEMPLATE = "tokenizer.ggml", "tokenizer.chat_template"
KIND = f"{GGML}.model"
NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
# ends of a turn, which some files mark only by their texts
ENDS = {"<|eot_id|>", "<|im_end|>", "<|end|>", "<|end_of_turn|>", "<end_of_turn>", "<|eom_id|>", "<|return|>"}
Part = dict[str, Any]
BPE: Part = {"type": "BPE", "dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None}


def tokenizer_files(data: Metadata) -> tuple[dict[str, Part], Part]:
    """Contents of tokenizer.json and tokenizer_config.json by name, and the tokens of generation_config.json.

    A file without a tokenizer gives neither, and one of UNREAD only the latter.

    Raises:
        UserError: another tokenizer that is not read, or tokens and merges that do not fit each other.
    """
    kind = data.general(KIND, str)
    if kind in (None, "none", "no_vocab"):
        return {}, {}
    if kind not in BUILDERS and kind not in UNREAD:
        raise data.wrong(KIND, f"one of {', '.join(BUILDERS)}", kind, "use a model with one of those")
    vocabulary = _Vocabulary(data)
    named = {name: vocabulary.number(key) for name, key in NAMED.items()}
    config = {name: vocabulary.tokens[number] for name, number in named.items() if number is not None}
    templates = _templates(data)
    config |= {DECODER: {}} | ({"chat_template": templates} if templates else {})
    generation = {
        key: value
        for key, value in (("bos_token_id", named["bos_token"]), ("eos_token_id", vocabulary.ends()))
        if value not in (None, [])
    }
    return {} if kind in UNREAD else {TOKENIZER: BUILDERS[kind](vocabulary), CONFIG: config}, generation


class _Vocabulary:
    """Tokens with their kinds and scores."""

    def __init__(self, data: Metadata) -> None:
        self.data = data
        self.tokens = self._list("tokens", str)
        self.kinds = self._list("token_type", int, len(self.tokens)) or [NORMAL] * len(self.tokens)
        self.scores = self._list("scores", float, len(self.tokens))
        self.merges = self._list("merges", str)
        long = next((token for token in self.tokens if len(token) > MAX_TOKEN), None)
        if long is not None:
            raise data.wrong(f"{GGML}.tokens", f"tokens of at most {MAX_TOKEN} characters", long)
        if len(set(self.tokens)) != len(self.tokens):
            raise data.wrong(f"{GGML}.tokens", "different tokens", f"{len(set(self.tokens))} of {len(self.tokens)}")

    def _list(self, key: str, kind: type, length: int | None = None) -> list[Any]:
        found: list[Any] = self.data.general(f"{GGML}.{key}", list, [])
        if not all(isinstance(one, kind) for one in found) or (found and length not in (None, len(found))):
            many = "" if length is None else f" of {length}"
            raise self.data.wrong(f"{GGML}.{key}", f"a list{many} of type {kind.__name__}", f"{len(found)} values")
        return found

    def number(self, name: str) -> int | None:
        """The number of a special token, if the file names one."""
        found: int | None = self.data.general(f"{GGML}.{name}_token_id", int)
        if found is not None and not 0 <= found < len(self.tokens):
            raise self.data.wrong(f"{GGML}.{name}_token_id", f"a token below {len(self.tokens)}", found)
        return found

    def flag(self, name: str, default: bool) -> bool:
        return bool(self.data.general(f"{GGML}.{name}", bool, default))

    def ends(self) -> list[int]:
        """Tokens that end a text or a turn."""
        named = [self.number(name) for name in ("eos", "eot", "eom")]
        marked = [n for n, token in enumerate(self.tokens) if token in ENDS and self.kinds[n] == CONTROL]
        return list(dict.fromkeys(n for n in (*named, *marked) if n is not None))

    def added(self) -> list[Part]:
        """Tokens that are found in a text before it is cut."""
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        return [
            {"id": number, "content": token, **flags, "special": kind != USER_DEFINED}
            for number, (token, kind) in enumerate(zip(self.tokens, self.kinds, strict=True))
            if kind in (UNKNOWN, CONTROL, USER_DEFINED) and token
        ]

    def whole(self, begins: bool, model: Part, ends: bool = False, **parts: Part | None) -> Part:
        """A tokenizer.json. Args: begins, ends: whether texts begin with bos and end with eos if the file is silent."""
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": self.added(),
            "post_processor": self._template(begins, ends),
            "model": model,
            **parts,
        }

    def _template(self, begins: bool, ends: bool) -> Part | None:
        first = self.number("bos") if self.flag("add_bos_token", begins) else None
        last = self.number("eos") if self.flag("add_eos_token", ends) else None
        around = [self.tokens[number] for number in (first, last) if number is not None]
        if not around:
            return None
        start, end = ([] if number is None else [_special(self.tokens[number])] for number in (first, last))
        texts = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
        return {
            "type": "TemplateProcessing",
            "single": [*start, texts[0], *end],
            "pair": [*start, texts[0], *end, *start, texts[1], *end],
            "special_tokens": {
                token: {"id": token, "ids": [self.tokens.index(token)], "tokens": [token]} for token in around
            },
        }


def _special(token: str) -> Part:
    return {"SpecialToken": {"id": token, "type_id": 0}}


def _bytes(vocabulary: _Vocabulary) -> Part:
    """Byte-level BPE, as GPT-2's."""
    data, key = vocabulary.data, f"{GGML}.pre"
    pre = data.general(key, str)
    if pre not in CUTS:
        raise data.wrong(key, f"one of {', '.join(sorted(CUTS))}", pre, "use a model with one of those")
    cut = CUTS[pre]
    broken = next((merge for merge in vocabulary.merges if merge.count(" ") != 1), None)
    if broken is not None:
        raise data.wrong(f"{GGML}.merges", "two tokens with a space between them, each", broken)
    model = {
        **BPE,
        "unk_token": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": cut.whole,
        "vocab": {token: number for number, token in enumerate(vocabulary.tokens)},
        "merges": vocabulary.merges,
    }
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return vocabulary.whole(cut.whole, model, normalizer=cut.normalizer, pre_tokenizer=cut.pre_tokenizer, decoder=level)


def _pieces(vocabulary: _Vocabulary) -> Part:
    """sentencepiece's BPE with bytes for unknown characters, as Llama's.

    As in sentencepiece and llama.cpp, a space precedes every text, also one that begins with a space, and what follows
    a special token; transformers puts one only before a text's first word.
    """
    data, prefix = vocabulary.data, vocabulary.flag("add_space_prefix", True)
    gemma = data.architecture.startswith("gemma")
    if not vocabulary.scores and not gemma:
        raise data.wrong(f"{GGML}.scores", "a score of each token", None)
    tokens = [_spelled(token) if gemma else token for token in vocabulary.tokens]
    # the scores of Gemma's pieces do not order its merges; their places do
    scores = {
        token: float(-number) if gemma else vocabulary.scores[number]
        for number, (token, kind) in enumerate(zip(tokens, vocabulary.kinds, strict=True))
        if kind in (NORMAL, USER_DEFINED)
    }
    unknown = vocabulary.number("unknown")
    model = {
        **BPE,
        "unk_token": None if unknown is None else tokens[unknown],
        "fuse_unk": True,
        "byte_fallback": BYTE in vocabulary.kinds,
        "ignore_merges": False,
        "vocab": {token: number for number, token in enumerate(tokens) if vocabulary.kinds[number] != UNUSED},
        "merges": _merges(scores, str(data.path)),
    }
    spaces: list[Part] = [
        *([{"type": "Prepend", "prepend": SPACE}] if prefix else []),
        {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
    ]
    decoders: list[Part] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []),
    ]
    built = vocabulary.whole(
        True,
        model,
        normalizer={"type": "Sequence", "normalizers": spaces},
        pre_tokenizer=None,
        decoder={"type": "Sequence", "decoders": decoders},
    )
    blank = {token for token in vocabulary.tokens if gemma and not token.strip(" ")}  # merged from spaces
    return {**built, "added_tokens": [token for token in built["added_tokens"] if token["content"] not in blank]}


def _unigrams(vocabulary: _Vocabulary) -> Part:
    """sentencepiece's unigrams, as T5's."""
    data, unknown = vocabulary.data, vocabulary.number("unknown")
    if not vocabulary.scores or unknown is None:
        raise data.wrong(f"{GGML}.scores", "a score of each token, and an unknown token", None)
    charsmap = data.general(f"{GGML}.precompiled_charsmap", list, [])
    if not all(type(byte) is int and -128 <= byte < 256 for byte in charsmap):
        raise data.wrong(f"{GGML}.precompiled_charsmap", "bytes", charsmap)
    prefix, strip = vocabulary.flag("add_space_prefix", False), vocabulary.flag("remove_extra_whitespaces", False)
    bytes_known = BYTE in vocabulary.kinds
    pieces = PieceModel("unigram", (), bytes(byte & 255 for byte in charsmap), prefix, strip, bytes_known)
    shown = [
        HIDDEN + token if kind == UNUSED else token
        for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True)
    ]
    model = {
        "type": "Unigram",
        "unk_id": unknown,
        "vocab": [[token, score] for token, score in zip(shown, vocabulary.scores, strict=True)],
        "byte_fallback": bytes_known,
    }
    decoders = [*([{"type": "ByteFallback"}] if bytes_known else []), metaspace(prefix)]
    return vocabulary.whole(
        False,
        model,
        ends=True,
        normalizer=normalizer_of(pieces),
        pre_tokenizer=metaspace(prefix and strip),
        decoder={"type": "Sequence", "decoders": decoders},
    )


def _spelled(token: str) -> str:
    """Gemma's tokens of several spaces, which files have as spaces."""
    return token if token.strip(" ") else SPACE * len(token)


def _merges(scores: Mapping[str, float], where: str) -> list[list[str]]:
    """All divisions of a piece into two others, best pieces first."""
    found = [(scores[left + right], left, right) for left, right in divisions(scores, scores, where)]
    found.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [[left, right] for _, left, right in found]


def _templates(data: Metadata) -> list[Part]:
    """Chat templates by name."""
    found = {"default": data.general(TEMPLATE, str)}
    for name in data.general(f"{TEMPLATE}s", list, []):
        if not isinstance(name, str):
            raise UserError(f"names as {TEMPLATE}s in {data.path}", printable(repr(name), 80), DOWNLOAD)
        found[name] = data.general(f"{TEMPLATE}.{name}", str)
    return [{"name": name, "template": text} for name, text in found.items() if text is not None]


UNREAD = ("rwkv",)  # tokenizers that no tokenizer.json expresses: their models run with token numbers
BUILDERS = {"gpt2": _bytes, "llama": _pieces, "t5": _unigrams}
