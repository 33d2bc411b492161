"""The tokenizer parts that every runtime supports; the others are refused by name when the tokenizer is opened."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from contract_pages import PAGES
from runtime import graphs
from runtime.test_tokenizer import byte_level, pieces
from t2r_runtime import Decoder, Signature, Tokenizer, UserError
from t2r_runtime.contract.signature import MAX_METADATA_BYTES
from t2r_runtime.text.tokenizer_parts import MAX_BYTES, NONE_OF, PARTS, unknown_parts

PAGE = PAGES["text"]
ONLY = {**dict.fromkeys("abc", 0), "a": 0, "b": 1, "c": 2}


def changed(**parts: object) -> str:
    made = Library(models.BPE(ONLY, []))
    for name, part in parts.items():
        setattr(made, name, part)
    return str(made.to_str())


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
UNKNOWN = {
    "the model WordLevel": str(Library(models.WordLevel(ONLY, "a")).to_str()),
    "a end_of_word_suffix of the model": changed(model=models.BPE(ONLY, [], end_of_word_suffix="c")),
    "a dropout of the model": changed(model=models.BPE(ONLY, [], dropout=0.1)),
    "the normalizer Lowercase": changed(normalizer=normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])),
    "the pre_tokenizer BertPreTokenizer": changed(pre_tokenizer=pre_tokenizers.BertPreTokenizer()),
    'the pre_tokenizer Split with "(a+)" in the regular expression (a+)+': changed(
        pre_tokenizer=pre_tokenizers.Split(Regex("(a+)+"), "isolated")
    ),
    "the normalizer Replace with a run that may be read in vain in the regular expression a*b|c": changed(
        normalizer=normalizers.Replace(Regex("a*b|c"), "")
    ),
    "the decoder WordPiece": changed(decoder=decoders.WordPiece()),
    "the post_processor BertProcessing": changed(
        post_processor=processors.Sequence([processors.BertProcessing(("a", 0), ("b", 1))])
    ),
}


@pytest.mark.parametrize("part", UNKNOWN)
def test_unsupported_part_named(part: str, tmp_path: Path) -> None:
    decoder = Decoder(graphs.save(tmp_path / "g.onnx", tokenizer=UNKNOWN[part]), threads=1)
    decoder.step([1])  # the graph runs without its tokenizer
    with pytest.raises(UserError, match=re.escape(f"received {part};")) as caught:
        Tokenizer.of(decoder.signature)
    assert caught.value.kind == "tokenizer"
    Tokenizer(UNKNOWN[part])  # for training: no graph yet


KNOWN: dict[str, Callable[[], str]] = {
    "pieces": pieces,
    "bytes": byte_level,
    "unigram": lambda: str(Library(models.Unigram([("a", -1.0)], 0, True)).to_str()),
    "regular expressions": lambda: changed(
        normalizer=normalizers.Sequence([normalizers.Replace(Regex(text), "") for text in ("^ +| +$", " {2,}")]),
        pre_tokenizer=pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(GPT2), "isolated"), pre_tokenizers.Split("", "isolated")]
        ),
    ),
    "all others": lambda: changed(
        normalizer=normalizers.Sequence(
            [normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD(), normalizers.Strip()]
        ),
        pre_tokenizer=pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(),
                pre_tokenizers.Punctuation(),
                pre_tokenizers.Whitespace(),
                pre_tokenizers.WhitespaceSplit(),
                pre_tokenizers.Metaspace(),
            ]
        ),
        decoder=decoders.Metaspace(),
        post_processor=processors.Sequence([processors.ByteLevel(), processors.RobertaProcessing(("a", 0), ("b", 1))]),
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_graphs_opened(name: str) -> None:
    opened = Tokenizer.of(graphs.signature(tokenizer=KNOWN[name]()))
    assert list(opened.encode("ab a")) == Library.from_str(KNOWN[name]()).encode("ab a").ids


def test_the_contract_lists_these_parts() -> None:
    table = PAGE.split("## Tokenizers\n")[1].split("## Streaming")[0]
    for component, types in PARTS.items():
        lines = [line.split(" | ")[1] for line in table.splitlines() if line.startswith(f"| `{component}` |")]
        assert set(re.findall(r"`(\w+)`", " ".join(lines))) - {"Sequence"} == set(types), component
    assert all(name in table for name in NONE_OF)


def test_byte_level_expression() -> None:
    """Both split text of all kinds at the same places."""
    text = "I'm  here, they'll\n\n 12345 tests' ünïts  \t!!end 日本"
    own = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str(text)
    split = pre_tokenizers.Split(Regex(GPT2), "isolated").pre_tokenize_str(text)
    assert [span for _, span in own] == [span for _, span in split]


def test_bounds(tmp_path: Path) -> None:
    large = graphs.signature(tokenizer=" " * (MAX_BYTES + 1))
    with pytest.raises(UserError, match="a tokenizer of at most 33,554,432 bytes") as caught:
        Tokenizer.of(Signature.from_metadata(large.to_metadata()))
    assert caught.value.kind == "tokenizer"
    with pytest.raises(UserError, match="metadata of at most 67,108,864 bytes") as caught:
        Signature.from_metadata(graphs.signature().to_metadata() | {"t2r.note": " " * MAX_METADATA_BYTES})
    assert caught.value.kind == "metadata"


def test_unknown_part_named_once() -> None:
    lower = normalizers.Sequence([normalizers.Lowercase(), normalizers.Lowercase()])
    assert unknown_parts(json.loads(changed(normalizer=lower))) == ["the normalizer Lowercase"]
