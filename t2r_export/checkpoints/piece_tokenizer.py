"""Convert a SentencePiece model and a vocabulary, as in Marian folders, to a tokenizer.json.

The vocabulary has the pieces of both languages. Pieces missing in the model of one language get a prefix that no text
contains, so they are never matched; decoding removes it. Marian looks up texts in the vocabulary after the model
divided them, so a run of characters that the model lacks may have a token, and a piece may have none: `surfaces`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from t2r_export.checkpoints.piece_file import BYTE, NORMAL, USER_DEFINED, PieceModel
from t2r_runtime.errors import UserError, printable

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
HIDDEN = "\uffff "  # the pre-tokenizer leaves no space in a text
UNKNOWN, END, PADDING = "<unk>", "</s>", "<pad>"
LANGUAGE = re.compile(r">>[^<>]+<<")  # target language token
MAX_MERGES = 1 << 25  # characters, as in a tokenizer.json; those of 262,144 pieces have some 3 million
DO = "use the vocab.json that the model came with"


def piece_tokenizer(model: PieceModel, vocabulary: Mapping[str, Any], where: str) -> str:
    """Contents of a tokenizer.json that splits as `model`, uses the ids of `vocabulary` and ends texts with `</s>`.

    Args:
        vocabulary: piece → token id; ids are 0 to N - 1, each once.
        where: name of the vocabulary file in error messages.

    Raises:
        UserError: invalid ids, or no `<unk>` or `</s>` among the pieces.
    """
    tokens = _ordered(vocabulary, where)
    found = _scores(model)
    others = [text for text in found if text not in vocabulary]  # found in texts, and then unknown
    whole = [p.text for p in model.pieces if p.kind == USER_DEFINED and p.text in vocabulary and p.text not in found]
    shown = [text if text in found else HIDDEN + text for text in tokens] + others
    special = [t for t in tokens if t in (UNKNOWN, END, PADDING) or LANGUAGE.fullmatch(t)]
    unknown = dict.fromkeys(others, vocabulary[UNKNOWN])
    runs = {t: vocabulary[t] for t in tokens if t in vocabulary and found.keys().isdisjoint({t, *t})}
    if model.kind == "bpe" or model.byte_fallback:  # the library does not return the text of a BPE's unknown token
        runs = {}
    for text in (*special, *whole):  # matched before splitting
        shown[vocabulary[text]] = text
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(vocabulary[t], t, True) for t in special]
        + [_added(vocabulary[t], t, False) for t in whole],
        "normalizer": normalizer_of(model),
        "pre_tokenizer": metaspace(model.dummy_prefix and model.strip),
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [_sequence("A"), {"SpecialToken": {"id": END, "type_id": 0}}],
            "pair": [_sequence("A"), _sequence("B"), {"SpecialToken": {"id": END, "type_id": 0}}],
            "special_tokens": {END: {"id": END, "ids": [vocabulary[END]], "tokens": [END]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": HIDDEN}, "content": ""},
                *([{"type": "ByteFallback"}] if model.byte_fallback else []),
                metaspace(model.dummy_prefix),
            ],
        },
        "model": (_unigram if model.kind == "unigram" else _merges)(model, shown, found, vocabulary[UNKNOWN])
        | {"surfaces": runs | unknown},
    }
    return json.dumps(data, ensure_ascii=False)


def _ordered(vocabulary: Mapping[str, Any], where: str) -> list[str]:
    """The pieces ordered by id."""
    tokens: list[str] = [""] * len(vocabulary)
    for text, number in vocabulary.items():
        if type(number) is not int or not 0 <= number < len(tokens) or tokens[number]:
            expected = f"pieces with the numbers 0 to {len(tokens) - 1} in {where}, each once"
            raise UserError(expected, f"{printable(text, 40)}: {printable(repr(number), 40)}", DO)
        tokens[number] = text or HIDDEN
    for text in (UNKNOWN, END):
        if text not in vocabulary:
            raise UserError(f"the piece {text} in {where}", "none", DO)
    return tokens


def _scores(model: PieceModel) -> dict[str, float]:
    """The pieces that the model finds in texts, with their scores."""
    scores = {piece.text: piece.score for piece in model.pieces if piece.kind in (NORMAL, BYTE)}
    if model.kind == "unigram":  # sentencepiece's scores of user-defined pieces
        most = max([0.0, *(piece.score for piece in model.pieces if piece.kind == NORMAL)])
        whole = [piece.text for piece in model.pieces if piece.kind == USER_DEFINED]
        scores |= {text: most * len(text.encode()) - 0.1 for text in whole}
    return scores


def _added(number: int, text: str, special: bool) -> dict[str, Any]:
    whole = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": number, "content": text, **whole, "special": special}


def _sequence(name: str) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": 0}}


def normalizer_of(model: PieceModel) -> dict[str, Any]:
    """The normalizer of a tokenizer.json."""
    parts: list[dict[str, Any]] = []
    if model.charsmap:
        parts.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.charsmap).decode()})
    if model.strip:
        parts.append({"type": "Replace", "pattern": {"Regex": "^ +| +$"}, "content": ""})
        parts.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    elif model.dummy_prefix:  # a Metaspace would not put another space before a text that begins with one
        parts.append({"type": "Prepend", "prepend": " "})
    return {"type": "Sequence", "normalizers": parts}


def metaspace(prefix: bool) -> dict[str, Any]:
    """Spaces as SPACE. Args: prefix: a text begins with one."""
    scheme = "always" if prefix else "never"
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": False}


def _unigram(model: PieceModel, shown: list[str], scores: dict[str, float], unknown: int) -> dict[str, Any]:
    least = min(scores.values(), default=0.0)
    vocab = [[text, scores.get(text, least)] for text in shown]
    return {"type": "Unigram", "unk_id": unknown, "vocab": vocab, "byte_fallback": model.byte_fallback}


def divisions(pieces: Iterable[str], known: Container[str], where: str) -> Iterator[tuple[str, str]]:
    """All divisions of each piece into two known ones. Raises UserError above MAX_MERGES."""
    room = MAX_MERGES
    for piece in pieces:
        cuts = [cut for cut in range(1, len(piece)) if piece[:cut] in known and piece[cut:] in known]
        room -= len(cuts) * len(piece)
        if room < 0:
            expected = f"pieces in {where} whose divisions into others have at most {MAX_MERGES:,} characters"
            raise UserError(expected, "more", "use the file that the model came with")
        yield from ((piece[:cut], piece[cut:]) for cut in cuts)


def _merges(model: PieceModel, shown: list[str], scores: dict[str, float], unknown: int) -> dict[str, Any]:
    """Merges of a BPE, best pieces first."""
    order = sorted((text for text in shown if text in scores), key=lambda text: -scores[text])
    merges = [list(pair) for pair in divisions(order, scores, "a sentencepiece model")]
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": shown[unknown],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": model.byte_fallback,
        "ignore_merges": False,
        "vocab": {text: number for number, text in enumerate(shown)},
        "merges": merges,
    }
