"""Stop texts of a stream, compared with Python's Until; and invalid ones."""

from __future__ import annotations

import ctypes
import random

import pytest
from cpp_build import GOLDEN
from t2r_library import Decoder, Failed, Library, Tokenizer

from t2r_runtime.text.stops import Until

LETTERS = "abé€ \n"


@pytest.fixture(scope="module")
def tokenizer(library: Library) -> Tokenizer:
    """A tokenizer of bytes: a part of a character is a token."""
    return Tokenizer(library, Decoder(library, GOLDEN / "bytes.onnx"))


def text_of(chance: random.Random, most: int) -> str:
    return "".join(chance.choice(LETTERS) for _ in range(chance.randint(1, most)))


@pytest.mark.parametrize("seed", range(5))
def test_pieces_are_pythons(tokenizer: Tokenizer, seed: int) -> None:
    """Texts of few letters, so that stop texts overlap, match partially and end together; from any token on."""
    chance, stopped = random.Random(seed), 0
    for _ in range(100):
        tokens = tokenizer.encode(text_of(chance, 40), special=False)
        stops = [text_of(chance, 4) for _ in range(chance.randint(0, 3))]
        at = chance.choice([0, 0, len(tokens) // 2])
        pieces, until = tokenizer.stream([], tokens), Until(stops)
        wanted = pieces[:at] + [until.feed(piece) for piece in pieces[at:]]
        wanted[-1] += until.end()
        assert tokenizer.stream([], tokens, stops, at) == wanted
        assert tokenizer.stopped == until.found
        stopped += until.found
    assert 10 < stopped < 90


@pytest.mark.parametrize("stops", [["b", "aab"], ["aab", "b"], ["ab", "aab", "b"]])
def test_of_stops_that_end_together_the_longest_counts(tokenizer: Tokenizer, stops: list[str]) -> None:
    assert "".join(tokenizer.stream([], tokenizer.encode("caabc", special=False), stops)) == "c"


def test_other_stops_keep_the_text_that_was_held_back(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("caabc", special=False)
    assert tokenizer.stream([], tokens, ["aax"], 0, {3: ["c"]}) == ["c", "", "", "aab", "", ""]
    assert tokenizer.stream([], tokens, ["aax"], 0, {2: []}) == ["c", "", "aa", "b", "c", ""]
    assert tokenizer.stream([], tokens, ["aax"], 0, {2: ["aab"]}) == ["c", "", "", "", "", ""]


def test_stops_that_are_refused(library: Library, tokenizer: Tokenizer) -> None:
    for stops, line in (
        ([""], "^argument: expected stop texts of 1 to 1024 bytes; received 0; "),
        (["a" * 1025], "^argument: expected stop texts of 1 to 1024 bytes; received 1025; "),
        (["a"] * 257, "^argument: expected at most 256 stop texts; received 257; "),
    ):
        with pytest.raises(Failed, match=line):
            tokenizer.stream([], [1], stops)
    stream, one = ctypes.c_void_p(), ctypes.c_size_t(1)
    library.call("t2r_open_stream", tokenizer.handle, None, ctypes.c_size_t(0), ctypes.byref(stream))
    with pytest.raises(Failed, match="^tokenizer: expected stop texts in UTF-8; "):
        library.call("t2r_stop_at", stream, (ctypes.c_char_p * 1)(b"\xff"), one)
    for given in (None, (ctypes.c_char_p * 1)(None)):
        with pytest.raises(Failed, match="^argument: expected .*; received NULL; "):
            library.call("t2r_stop_at", stream, given, one)
