"""Incremental decoding: the same text as all at once, and never a partial character."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from runtime import graphs
from t2r_runtime import StreamingDetokenizer, Tokenizer, UserError

WORDS = ["▁once", "▁upon", "▁", "a", "b", "▁a", "日"]


def pieces() -> str:
    """Sentence pieces with byte fallback, as in Llama's tokenizers: <s> 1, </s> 2, then 256 bytes."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {piece: number for number, piece in enumerate(["<unk>", "<s>", "</s>", *bytes_, *WORDS])}
    merges = [("▁", "a")]
    tokenizer = Library(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return str(tokenizer.to_str())


def byte_level() -> str:
    """GPT-2's byte alphabet and a few merges across character borders; <end> is special."""
    letters = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = []
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for text in ("日本", "€", "the"):
        word = spell.pre_tokenize_str(text)[0][0]
        for one, two in zip(word[1::2], word[2::2], strict=False):  # a character's last byte with the next one's first
            letters.setdefault(one + two, len(letters))
            merges.append((one, two))
    tokenizer = Library(models.BPE(letters, list(dict.fromkeys(merges))))
    tokenizer.pre_tokenizer = spell
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return str(tokenizer.to_str())


PIECES, BYTES = Tokenizer(pieces(), bos_token=1), Tokenizer(byte_level())
both = pytest.mark.parametrize("text", [PIECES, BYTES], ids=["pieces", "bytes"])
writings = st.text(
    alphabet=st.sampled_from(" abé€日本語😀\u0301onceupth\n") | st.characters(codec="utf-8"), max_size=20
)


def streamed(text: Tokenizer, ids: list[int], prompt: list[int] | tuple[()] = ()) -> list[str]:
    stream = text.stream(prompt)
    return [*(stream.feed(token) for token in ids), stream.end()]


@both
@given(written=writings)
@example(written=" once  upon a 日本 time")
@example(written="日本語日本語")
def test_stream_pieces_join_to_text(text: Tokenizer, written: str) -> None:
    ids = text.encode(written) if written or text is PIECES else []
    parts = streamed(text, ids)
    assert "".join(parts) == text.decode(ids) == written
    if "\N{REPLACEMENT CHARACTER}" not in written:
        assert not any("\N{REPLACEMENT CHARACTER}" in part for part in parts)


@both
@given(written=writings)
@example(written=" once  upon a 日本 time")
def test_bytes_of_tokens_join_to_text(text: Tokenizer, written: str) -> None:
    ids = text.encode(written, special_tokens=False) if written else []
    added = " " if text is PIECES and written else ""  # the normalizer prepends it, and `decode` strips it
    assert b"".join(map(text.token_bytes, ids)) == (added + written).encode()


def test_one_token_as_text_and_bytes() -> None:
    def shown(text: Tokenizer, token: int) -> tuple[str, bytes]:
        return text.token_text(token), text.token_bytes(token)

    once, special = 3 + 256, 2
    assert shown(PIECES, 3 + 0xDE) == ("<0xDE>", b"\xde")
    assert shown(PIECES, 3 + 0x0A) == ("\n", b"\n")
    assert shown(PIECES, once) == (" once", b" once")
    assert shown(PIECES, special) == ("</s>", b"</s>")
    byte = BYTES.encode("\u00c3")[0]
    assert shown(BYTES, byte) == (BYTES.piece(byte), b"\xc3")


@both
@given(before=writings.filter(bool), after=writings)
@example(before="once", after=" upon")  # its space must be kept
@example(before="日", after="本")
@example(before="語本" * 8, after="語本")  # more bytes than the context
def test_stream_excludes_prompt(text: Tokenizer, before: str, after: str) -> None:
    ids = text.encode(before + after)
    for cut in range(1, len(ids)):
        head = text.decode(ids[:cut])
        if "\N{REPLACEMENT CHARACTER}" not in head:  # otherwise the cut may be inside a character
            assert head + "".join(streamed(text, ids[cut:], ids[:cut])) == before + after


@both
@given(ids=st.lists(st.integers(0, 260), max_size=40))
def test_any_tokens_give_text(text: Tokenizer, ids: list[int]) -> None:
    parts = streamed(text, ids)
    if text is BYTES:  # invalid byte pieces corrupt each other when decoded together, and a stream cannot retract text
        assert "".join(parts) == text.decode(ids)
    else:
        assert len("".join(parts)) <= len(text.decode(ids)) + len(ids)


@given(ids=st.lists(st.integers(0, 260), max_size=12), written=writings)
def test_invalid_bytes_before_text(ids: list[int], written: str) -> None:
    end = [2]  # a special token separates the bytes
    assert "".join(streamed(PIECES, [*ids, *end, *PIECES.encode("a" + written)[1:]])).endswith("a" + written)


def test_endless_invalid_bytes_flushed() -> None:
    stream = BYTES.stream()
    byte = BYTES.encode("日")[0]
    out = [stream.feed(byte) for _ in range(500)]
    assert sum(map(len, out)) > 450
    assert len(stream._pending) < 20


def test_stream_holds_incomplete_character() -> None:
    parts = streamed(PIECES, [3 + byte for byte in "é😀".encode()])
    assert parts == ["", "é", "", "", "", "😀", ""]
    assert streamed(PIECES, [3 + "é".encode()[0]]) == ["", "\N{REPLACEMENT CHARACTER}"]
    assert PIECES.encode("é") == [1, 3 + 256 + 2, *(3 + byte for byte in "é".encode())]


def test_special_tokens_not_decoded() -> None:
    assert streamed(PIECES, [1, 259, 2, 260]) == ["", "once", "", " upon", ""]
    assert PIECES.decode([1, 259, 2, 260]) == "once upon"
    normalized: dict[str, Any] = json.loads(pieces())
    for token in normalized["added_tokens"]:
        token["normalized"] = True  # ▁<s>, with which the library does not recognize the special token
    assert Tokenizer(json.dumps(normalized)).decode([1, 259, 2, 260]) == "once upon"


def endless() -> str:
    """Tokens that end within 日, of which the last is 'Ĺ¥æ', one without text, and special ones."""
    tokenizer = Library(models.BPE({token: number for number, token in enumerate(["Ġa", "æ", "Ĺ¥æ", "Ĺ¥", ""])}, []))
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens(["<end>"])
    return str(tokenizer.to_str())


ENDLESS: dict[str, tuple[list[int], list[int]]] = {
    "special tokens": ([], [0, *[5] * 500, 0]),
    "special tokens after a prompt": ([0], [*[5] * 500, 0]),
    "special tokens within a character": ([0], [0, 1, *[5] * 500, 3, 0]),
    "tokens without text": ([], [*[4] * 500, 0, *[4] * 500, 0]),
    "unknown tokens": ([0], [*[6] * 500, 0]),
    "characters across tokens": ([0], [1, *[2] * 500, 3, 0]),
    "tokens without text between such tokens": ([0], [1, *[2, *[4] * 9] * 90, 3, *[5] * 90, 0]),
}


@pytest.mark.parametrize("case", ENDLESS)
def test_work_of_a_streamed_token_is_bounded(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """A model may write end tokens for ever, and a file may have tokens that never complete a character."""
    text, (prompt, tokens) = Tokenizer(endless()), ENDLESS[case]
    whole, right, decoded = text.decode(prompt + tokens), text.decode, list[int]()
    monkeypatch.setattr(text, "decode", lambda ids: decoded.append(len(ids)) or right(ids))
    stream, parts = text.stream(prompt), []
    for token in tokens:
        decoded.clear()
        parts.append(stream.feed(token))
        assert sum(decoded) <= 5 * 33
    assert right(prompt) + "".join(parts) + stream.end() == whole
    assert "\N{REPLACEMENT CHARACTER}" not in whole


def test_empty_text_encodes_to_bos() -> None:
    assert PIECES.encode("") == [1]
    assert Tokenizer(byte_level(), bos_token=5).encode("") == [5]
    with pytest.raises(
        UserError, match="expected a text; received an empty one; pass some text: this model has no BOS"
    ):
        BYTES.encode("")


def test_truncation_disabled() -> None:
    asked: dict[str, Any] = json.loads(pieces())
    asked["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    assert Tokenizer(json.dumps(asked)).encode("aaaa") == PIECES.encode("aaaa")
    assert len(PIECES.encode("aaaa")) == 5


def test_lone_surrogates() -> None:
    with pytest.raises(UserError, match="expected text in UTF-8; received .*; check how it was typed or decoded"):
        PIECES.encode("\udcff")


@pytest.mark.parametrize("tokenizer", ["", "{}", "[" * 1000, '{"version": "1.0", "model": 3}'])
def test_no_tokenizer(tokenizer: str) -> None:
    with pytest.raises(UserError, match="expected the text of a tokenizer.json; received .*; use the tokenizer"):
        Tokenizer(tokenizer)


def test_a_graph_without_tokenizer() -> None:
    with pytest.raises(UserError, match="expected a graph with a tokenizer; received one without; pass token ids"):
        Tokenizer.of(graphs.signature())
    assert isinstance(Tokenizer.of(graphs.signature(tokenizer=pieces())).stream(), StreamingDetokenizer)


def test_stream_published_tokenizer(data: Path) -> None:
    folder = data / "checkpoints" / "stories260K"
    text = Tokenizer((folder / "tokenizer.json").read_text(encoding="utf-8"), bos_token=1)
    ids = json.loads((folder / "expected_greedy_ids.json").read_text())["greedy_ids"]
    assert "".join(streamed(text, ids)) == text.decode(ids)
    assert "".join(streamed(text, ids[9:], ids[:9])) == text.decode(ids)[len(text.decode(ids[:9])) :]


def test_works_without_tokenizers(tmp_path: Path) -> None:
    graph = graphs.save(tmp_path / "g.onnx")
    program = (
        "import sys; sys.modules['tokenizers'] = None\n"
        "import t2r_runtime as t\n"
        f"print(t.Decoder({str(graph)!r}, threads=1).generate([3], 2, t.Sampling(seed=0, stop_tokens=())))\n"
        "try: t.Tokenizer('{}')\n"
        "except t.UserError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=os.environ)
    assert done.stderr == ""
    assert done.stdout.endswith(
        "expected the package tokenizers; received a Python without it; pip install tokenizers\n"
    )


@pytest.mark.parametrize("token", [-1, len(WORDS) + 259, 1 << 32, 1 << 70])
def test_piece_of_an_unknown_token_is_empty(token: int) -> None:
    assert PIECES.piece(1) == "<s>"
    assert PIECES.piece(token) == ""


@pytest.mark.parametrize("token", [1.0, "1", None, [1]])
def test_piece_takes_integers(token: object) -> None:
    with pytest.raises(UserError, match="an integer as token"):
        PIECES.piece(token)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="true or false as any_parts"):
        Tokenizer(pieces(), any_parts=token)  # type: ignore[arg-type]


@both
@given(written=writings)
@example(written="</s>once<end> upon 日本")  # special in one of the two tokenizers
def test_places_cut_the_text_into_its_tokens(text: Tokenizer, written: str) -> None:
    written = written or "a"
    places, ids = text.places(written), text.encode(written)
    assert len(places) == len(ids)
    assert places == sorted(places)
    assert places[0] == 0
    cut = [written[begin:end] for begin, end in zip(places, [*places[1:], len(written)], strict=True)]
    assert "".join(cut) == written
    for token, part in zip(ids, cut, strict=True):
        alone = text.decode([token])  # empty for a special token, without the leading space
        assert not alone or "\N{REPLACEMENT CHARACTER}" in alone or part.strip() == alone.strip()


def test_places_after_spaces_that_offsets_leave_out() -> None:
    """As in Llama 3, whose offsets begin after a token's space."""
    library = Library.from_str(byte_level())
    library.post_processor = processors.ByteLevel(trim_offsets=True)
    assert library.encode("a  a").offsets == [(0, 1), (2, 2), (3, 3), (3, 4)]
    assert Tokenizer(library.to_str()).places("a  a") == [0, 1, 2, 3]
