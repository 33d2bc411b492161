"""SentencePiece models: bounds, and tokenization equal to the library's."""

from __future__ import annotations

import contextlib
import io
import json
import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from transformers import MarianTokenizer

from checkpoints.importers.test_translators import reference
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.piece_file import MAX_PIECE, NORMAL, UNUSED, USER_DEFINED, PieceModel, read_pieces
from t2r_export.checkpoints.piece_tokenizer import END, PADDING, UNKNOWN, piece_tokenizer
from t2r_export.data.pairs import Pair, read_archived
from t2r_runtime import Tokenizer
from t2r_runtime.errors import UserError

KINDS = ("unigram", "bpe")
PIECES = [(UNKNOWN, 0.0, 2), (END, 0.0, 3), ("\u2581a", -1.5, NORMAL), ("b", -2.0, NORMAL), ("\u2581", -3.0, NORMAL)]


# -- a writer of such files, field by field


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: bytes | int | float) -> bytes:
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def written(pieces: Sequence[tuple[str, float, int]] = PIECES, trainer: bytes = b"", normalizer: bytes = b"") -> bytes:
    rows = [field(1, text.encode()) + field(2, score) + field(3, kind) for text, score, kind in pieces]
    return b"".join(field(1, row) for row in rows) + field(2, trainer) + field(3, normalizer)


def test_piece_file_is_read() -> None:
    trainer, normalizer = field(3, 2) + field(35, 1) + field(4, 99), field(2, b"map") + field(3, 0) + field(1, b"nfkc")
    found = read_pieces(written(trainer=trainer, normalizer=normalizer) + field(4, b"other"), "x.spm")
    assert [(p.text, p.score, p.kind) for p in found.pieces] == PIECES
    assert dataclass_rest(found) == ("bpe", b"map", False, True, True)
    assert dataclass_rest(read_pieces(written(), "x.spm")) == ("unigram", b"", True, True, False)


def dataclass_rest(model: PieceModel) -> tuple[Any, ...]:
    return model.kind, model.charsmap, model.dummy_prefix, model.strip, model.byte_fallback


WRONG = {
    "nothing": (b"", "expected pieces in x.spm; received none"),
    "a text": (b"a text of no message", "expected a sentencepiece model in x.spm"),
    "cut off": (written()[:-7], "a message that is cut off"),
    "no end": (field(1, b"\xff" * 20), "a number without end"),
    "a long piece": (written([("a" * (MAX_PIECE + 1), 0.0, NORMAL)]), "a piece of 1025 bytes"),
    "an empty piece": (written([("", 0.0, NORMAL)]), "a piece of 0 bytes"),
    "no UTF-8": (field(1, field(1, b"\xff")), "something else"),
    "no score": (written([("a", float("nan"), NORMAL)]), "a score of nan"),
    "no kind": (field(1, field(1, b"a") + field(3, float("inf"))), "a sentencepiece model in x.spm"),
    "words": (written(trainer=field(3, 3)), "a model of the kind 3, neither unigram nor BPE"),
    "suffixes": (written(trainer=field(24, 1)), "white space as a suffix"),
    "a number": (field(2, 7), "a number in the place of a message"),
}


@pytest.mark.parametrize("name", WRONG)
def test_other_file_is_refused(name: str) -> None:
    data, message = WRONG[name]
    with pytest.raises(UserError, match=message):
        read_pieces(data, "x.spm")


@pytest.mark.parametrize("seed", range(3))
def test_damaged_files_are_read_or_refused(seed: int) -> None:
    chance, whole = random.Random(seed), written()
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        with contextlib.suppress(UserError):
            read_pieces(bytes(damaged[: chance.randint(1, len(damaged))]), "x.spm")


def test_token_ids_from_vocabulary() -> None:
    model = read_pieces(written(), "x.spm")
    vocabulary = {"b": 0, END: 1, "\u2581c": 2, UNKNOWN: 3, "\u2581": 4, "\u2581a": 5, ">>eng<<": 6, PADDING: 7}
    tokenizer = Tokenizer(piece_tokenizer(model, vocabulary, "vocab.json"))
    assert tokenizer.encode("ab  b c") == [5, 0, 4, 0, 4, 3, 1]  # c is a piece of the other language
    assert tokenizer.encode(">>eng<< a") == [6, 5, 1]
    assert tokenizer.decode([5, 0, 2, 4, 0, 1, 7]) == "ab c b"
    for wrong in ({**vocabulary, "z": 3}, {**vocabulary, "z": 9}, {**vocabulary, "z": "8"}, {**vocabulary, "z": True}):
        with pytest.raises(UserError, match="pieces with the numbers 0 to 8 in vocab.json, each once; received z: "):
            piece_tokenizer(model, wrong, "vocab.json")
    with pytest.raises(UserError, match="the piece </s> in vocab.json; received none"):
        piece_tokenizer(model, {UNKNOWN: 0, "a": 1}, "vocab.json")


def test_a_model_of_user_defined_pieces_alone() -> None:
    model = read_pieces(written([*PIECES[:2], ("ab", 0.0, USER_DEFINED)]), "x.spm")
    tokenizer = Tokenizer(piece_tokenizer(model, {UNKNOWN: 0, END: 1, "ab": 2}, "vocab.json"))
    assert tokenizer.encode("abab")[-3:] == [2, 2, 1]


# -- compared with the library


@pytest.fixture(scope="module")
def pairs(data: Path) -> list[Pair]:
    return read_archived(data / "parallel" / "deu-eng.zip", "deu.txt", (1, 0))[::40]


def trained(kind: str, sentences: list[str], size: int) -> bytes:
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=file,
        vocab_size=size,
        model_type=kind,
        unk_id=1,
        eos_id=0,
        bos_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    return file.getvalue()


def vocabulary(*models: Any) -> dict[str, int]:
    """Vocabulary of all models' pieces, as Marian's conversion builds it."""
    found: dict[str, int] = {}
    for model in models:
        for number in range(model.get_piece_size()):
            found.setdefault(model.id_to_piece(number), len(found))
    return {**found, PADDING: len(found)}


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_equal_sentencepiece(kind: str, pairs: list[Pair]) -> None:
    sides = [list(side) for side in zip(*pairs, strict=True)]
    files = [trained(kind, side, size) for side, size in zip(sides, (900, 700), strict=True)]
    models = [sentencepiece.SentencePieceProcessor(model_proto=file) for file in files]
    numbers = vocabulary(*models)
    for sentences, file, model in zip(sides, files, models, strict=True):
        tokenizer = Tokenizer(piece_tokenizer(read_pieces(file, "x.spm"), numbers, "vocab.json"))
        strange = [f" {a}\t {b}\u3000\uff01\N{GRINNING FACE}\u4e2d\u6587x" for a, b in pairs[:50]]
        for text in (*sentences, *strange):
            ids = model.encode(text)
            found = tokenizer.encode(text)
            if kind == "bpe" or UNKNOWN not in map(model.id_to_piece, ids):
                known = [numbers[UNKNOWN if model.is_unknown(n) else model.id_to_piece(n)] for n in ids]
                assert found == [*known, numbers[END]], text
            if UNKNOWN not in map(model.id_to_piece, ids):
                assert tokenizer.decode(found) == model.decode(ids)


LETTERS = "abcd\u00e9\u00a3\u8881\u9e20&x"


def random_model(chance: random.Random) -> tuple[list[str], bytes]:
    """A unigram model of some letters: its pieces and its file. Ties of scores are exact in float32 too."""
    own = ["\u2581", *chance.sample(LETTERS, chance.randint(3, 7))]
    texts = dict.fromkeys(own)
    while len(texts) < 20:
        texts["".join(chance.choices(own, k=chance.randint(2, 4)))] = None
    rows = [(UNKNOWN, 0.0, 2), (END, 0.0, 3)]
    kinds = chance.choices((NORMAL, USER_DEFINED, UNUSED), (20, 1, 1), k=len(texts))
    rows += [(text, -chance.randint(1024, 9999) / 1024, kind) for text, kind in zip(texts, kinds, strict=True)]
    flags = b"".join(field(number, int(chance.random() < 0.7)) for number in (3, 4))  # prefix and blanks
    return list(texts), written(rows, field(3, 1), flags)


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("seed", range(12))
def test_tokens_equal_marian(seed: int, tmp_path: Path) -> None:
    """Texts of both sides, with letters of the other side, of none, and pieces that the vocabulary lacks."""
    chance = random.Random(seed)
    (texts, source), (others, target) = random_model(chance), random_model(chance)
    both = [text for text in dict.fromkeys([*texts, *others]) if chance.random() < 0.9]
    both = list(dict.fromkeys([UNKNOWN, END, *both, "\u00a3\u00a3", "\u8881\u9e20", PADDING, ">>deu<<"]))
    numbers = {text: number for number, text in enumerate(chance.sample(both, len(both)))}
    paths = [tmp_path / name for name in ("source.spm", "target.spm", "vocab.json")]
    for path, content in zip(paths, (source, target, json.dumps(numbers).encode()), strict=True):
        path.write_bytes(content)
    theirs = MarianTokenizer(*map(str, paths))
    ours = [Tokenizer(piece_tokenizer(read_pieces(file, "x.spm"), numbers, "vocab.json")) for file in (source, target)]
    for _ in range(40):
        text = "".join(chance.choices([*LETTERS, " ", "  ", "z\u00df", "\uffff", ">", "&&"], k=chance.randint(1, 12)))
        text = chance.choice(["", "", "", ">>deu<<"]) + text + chance.choice(["", "", "", "</s>a"])
        expected = theirs(text)["input_ids"], theirs(text_target=text)["input_ids"]
        assert tuple(side.encode(text) for side in ours) == expected, text
        assert tuple(side.encode_documents([text], True)[0] for side in ours) == expected, text


def test_folder_has_tokenizer_per_side(pairs: list[Pair], tmp_path: Path) -> None:
    reference("marian").save_pretrained(tmp_path)
    pieces = {side: trained("bpe", ["ab ba", "bab a"], 6) for side in ("source", "target")}
    pieces["target"] = trained("bpe", ["cd dc", "dcd c"], 6)
    for side, file in pieces.items():
        (tmp_path / f"{side}.spm").write_bytes(file)
    models = [sentencepiece.SentencePieceProcessor(model_proto=file) for file in pieces.values()]
    numbers = vocabulary(*models)
    numbers |= {f"extra{n}": n for n in range(len(numbers), 29)}
    (tmp_path / "vocab.json").write_text(json.dumps(numbers))
    loaded = checkpoint.load(tmp_path)
    assert loaded.tokenizer is not None and loaded.source_tokenizer is not None
    assert Tokenizer(loaded.source_tokenizer).encode("ab")[-1] == numbers[END]
    assert numbers[UNKNOWN] in Tokenizer(loaded.tokenizer).encode("ab")
    checkpoint.save(tmp_path / "model.pt", loaded.model, loaded.tokenizer, {}, loaded.source_tokenizer)
    again = checkpoint.load(tmp_path / "model.pt")
    assert (again.tokenizer, again.source_tokenizer) == (loaded.tokenizer, loaded.source_tokenizer)
    (tmp_path / "vocab.json").write_text(json.dumps({**numbers, "more": 29}))
    with pytest.raises(UserError, match="29 pieces in .*vocab.json, as many as the model's tokens; received 30"):
        checkpoint.load(tmp_path)
    (tmp_path / "source.spm").unlink()
    with pytest.raises(UserError, match="the file source.spm in .*; received no such file"):
        checkpoint.load(tmp_path)
