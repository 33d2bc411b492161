"""Tokenizers for the tests: the storyteller's, GPT-2's, and some that are created here."""

from __future__ import annotations

import functools
import io
import json
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers
from cpp_build import ROOT

WORDS = ["once", " upon", "time", "é", "日本", "😀", "naïve", "12", "don't", " the"]
TEXT = (ROOT / "docs" / "mixers.md").read_text("utf-8") + " ".join(WORDS * 20) + "ﬁ ① Ａ é ½ " * 20


@functools.cache
def storyteller() -> str:
    from t2r_export.checkpoints.checkpoint import load

    tokenizer = load(ROOT / "models" / "storyteller" / "model.pt").tokenizer
    assert tokenizer is not None
    return tokenizer


def gpt2(data: Path) -> str:
    folder = data / "tokenizers" / "gpt2"
    lines = (folder / "vocab.bpe").read_text("utf-8").split("\n")[1:]
    merges = [(left, right) for left, right in (line.split(" ") for line in lines if line)]
    made = tokenizers.Tokenizer(tokenizers.models.BPE(json.loads((folder / "encoder.json").read_text("utf-8")), merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<|endoftext|>"])
    return str(made.to_str())


@functools.cache
def unigram(byte_fallback: bool) -> str:
    """The tokenizer imported from a SentencePiece model, trained on a page, with its own normalizer."""
    from t2r_export.checkpoints.piece_file import read_pieces
    from t2r_export.checkpoints.piece_tokenizer import piece_tokenizer

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.split("\n")),
        model_writer=model,
        vocab_size=1500 if byte_fallback else 1000,
        model_type="unigram",
        byte_fallback=byte_fallback,
        normalization_rule_name="nmt_nfkc",
        hard_vocab_limit=False,
        minloglevel=3,
    )
    pieces = read_pieces(model.getvalue(), "here")
    return piece_tokenizer(pieces, {piece.text: number for number, piece in enumerate(pieces.pieces)}, "here")


@functools.cache
def _trained() -> str:
    """Byte-pair encoding of characters, trained on a page."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False
    )
    made.train_from_iterator(TEXT.split("\n"), trainer)
    return str(made.to_str())


def bpe() -> dict[str, Any]:
    """The same tokenizer as parsed JSON, without its pre-tokenizer."""
    made: dict[str, Any] = json.loads(_trained())
    return made | {"pre_tokenizer": None}


def fallback() -> str:
    """Byte-pair encoding with byte fallback, as in Llama."""
    made = bpe()
    model = made["model"]
    for byte in range(256):
        model["vocab"][f"<0x{byte:02X}>"] = len(model["vocab"])
    model |= {"byte_fallback": True, "fuse_unk": True}
    space = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    back = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    made["normalizer"] = {"type": "Sequence", "normalizers": space}
    made["decoder"] = {
        "type": "Sequence",
        "decoders": [*back, {"type": "Strip", "content": " ", "start": 1, "stop": 0}],
    }
    return json.dumps(made)


def added_token(content: str, number: int, **flags: bool) -> dict[str, Any]:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": number, "content": content, **plain, **flags}


@functools.cache
def parts() -> dict[str, dict[str, Any]]:
    """Every part of the contract's table, by name: the changes that it makes to `bpe`."""
    found: dict[str, dict[str, Any]] = {"nothing": {}}
    model = bpe()["model"]
    for options in ({"fuse_unk": True}, {"unk_token": None}, {"ignore_merges": True}):
        found[f"model {options}"] = {"model": model | options}
    for normalizer in (
        *({"type": form} for form in ("NFC", "NFD", "NFKC", "NFKD")),
        {"type": "Strip", "strip_left": True, "strip_right": False},
        {"type": "Strip", "strip_left": False, "strip_right": True},
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": "e"}, "content": "ee"},
        {"type": "Replace", "pattern": {"Regex": "^ +| +$"}, "content": ""},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"},
        {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "a"},
                {"type": "Strip", "strip_left": True, "strip_right": True},
            ],
        },
    ):
        found[f"normalizer {normalizer}"] = {"normalizer": normalizer}
    cuts: list[dict[str, Any]] = [
        {"type": "ByteLevel", "add_prefix_space": p, "trim_offsets": True, "use_regex": r}
        for p in (True, False)
        for r in (True, False)
    ]
    for scheme in ("always", "first", "never"):
        cuts += [{"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": s} for s in (True, False)]
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        cuts += [
            {"type": "Split", "pattern": {"String": " "}, "behavior": behavior, "invert": i} for i in (True, False)
        ]
        cuts.append({"type": "Punctuation", "behavior": behavior})
    cuts += [{"type": "Digits", "individual_digits": alone} for alone in (True, False)]
    cuts += [{"type": "Whitespace"}, {"type": "WhitespaceSplit"}]
    cuts.append(
        {
            "type": "Sequence",
            "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "Digits", "individual_digits": True}],
        }
    )
    for cut in cuts:
        found[f"pre_tokenizer {cut}"] = {"pre_tokenizer": cut}
    for decoder in (
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True},
        {"type": "Replace", "pattern": {"String": "e"}, "content": "E!"},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": "▁", "start": 2, "stop": 0}]},
    ):
        found[f"decoder {decoder}"] = {"decoder": decoder}
    roberta = {
        "type": "RobertaProcessing",
        "sep": ["</s>", 2],
        "cls": ["<s>", 1],
        "trim_offsets": True,
        "add_prefix_space": True,
    }
    found["post_processor"] = {"post_processor": roberta}
    found["post_processor ByteLevel"] = {"post_processor": {"type": "Sequence", "processors": [cuts[0], roberta]}}
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    for flag in flags:
        words = ["once", " upon", "don", "<x>"]
        size = len(model["vocab"])
        added = [added_token(word, model["vocab"].get(word, size + i), **{flag: True}) for i, word in enumerate(words)]
        found[f"added_tokens {flag}"] = {
            "added_tokens": added,
            "normalizer": {"type": "Replace", "pattern": {"String": "d"}, "content": "D"},
        }
    return found
