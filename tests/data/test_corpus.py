from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import texts
from t2r_export.config.finetune import Shares
from t2r_export.config.model import ModelConfig
from t2r_export.data.corpus import Windows, held_out_windows, parallel_sequences, read_corpus, spread
from t2r_export.data.documents import borders
from t2r_runtime import Tokenizer
from t2r_runtime.errors import UserError

MODEL = texts.TEACHER


def tokenized(documents: Sequence[str], tokenizer: str, model: ModelConfig) -> list[list[int]]:
    """Token ids of each document, after the model's beginning-of-text token or before its end-of-text token."""
    before = [] if model.bos_token is None else [model.bos_token]
    after = [] if before else list(model.eos_tokens[:1])
    return [before + ids + after for ids in Tokenizer(tokenizer).encode_documents(documents)]


@pytest.mark.parametrize(
    "change, expected",
    [
        ({}, [[texts.BOS, 0, 1], [texts.BOS, 2]]),
        ({"bos_token": None}, [[0, 1, texts.EOS], [2, texts.EOS]]),
        ({"bos_token": None, "eos_tokens": ()}, [[0, 1], [2]]),
    ],
)
def test_documents_begin_with_bos_or_else_end_with_eos(
    change: dict[str, object], expected: list[list[int]], tmp_path: Path
) -> None:
    model = dataclasses.replace(MODEL, **change)  # type: ignore[arg-type]
    (tmp_path / "text").write_text("ab\n<|endoftext|>\nc")
    assert read_corpus([tmp_path / "text"], texts.tokenizer(), model, None).tokens.tolist() == sum(expected, [])


def test_parts_in_order(tmp_path: Path) -> None:
    tokens = tokenized(texts.documents(30), texts.tokenizer(), MODEL)
    path = texts.write_text(tmp_path / "text", 30)
    corpus = read_corpus([path], texts.tokenizer(), MODEL, Shares(valid=0.2, test=0.1))
    assert corpus.train.tolist() == sum(tokens[:21], [])
    assert corpus.valid.tolist() == sum(tokens[21:27], [])
    assert corpus.test.tolist() == sum(tokens[27:], [])
    assert np.array_equal(corpus.part("valid"), corpus.valid)
    assert (corpus.documents, corpus.tokens.dtype) == ((21, 6, 3), np.uint16)
    assert corpus.part("all").tolist() == sum(tokens, [])


@given(count=st.integers(0, 10**6), valid=st.floats(0.001, 0.5), test=st.floats(0.001, 0.49))
def test_parts_are_disjoint_and_complete(count: int, valid: float, test: float) -> None:
    first, second = borders(count, Shares(valid, test))
    assert 0 <= first <= second <= count
    assert abs(count - second - count * test) <= 0.5
    assert abs(second - first - count * valid) <= 1


def test_few_documents_are_split_at_character(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("abcdefgh" * 5)
    corpus = read_corpus([path], texts.tokenizer(), MODEL)
    assert [len(part) for part in (corpus.train, corpus.valid, corpus.test)] == [37, 3, 3]  # each includes one BOS


def test_several_files_are_read_in_order(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(name * 3)
    corpus = read_corpus([tmp_path / "a", tmp_path / "b"], texts.tokenizer(), MODEL, Shares(0.25, 0.5))
    assert corpus.train.tolist() == [texts.BOS, 0, 0]
    assert corpus.valid.tolist() == [texts.BOS, 0]
    assert corpus.test.tolist() == [texts.BOS, 1, 1, 1]


def test_hash_depends_on_text_and_split(tmp_path: Path) -> None:
    path = texts.write_text(tmp_path / "text")
    shares = (Shares(), Shares(), Shares(0.1, 0.05), Shares(0.05, 0.1))
    first, again, *cut = (read_corpus([path], texts.tokenizer(), MODEL, s).sha256 for s in shares)
    assert first == again
    assert len({first, *cut}) == 3


@pytest.mark.parametrize("shape", [(60,), (12, 5)])
def test_token_ids_are_unchanged(tmp_path: Path, shape: tuple[int, ...]) -> None:
    ids = np.arange(60).reshape(shape) % MODEL.vocab_size
    np.save(tmp_path / "ids.npy", ids)
    corpus = read_corpus([tmp_path / "ids.npy"], None, MODEL, Shares(0.25, 0.5))
    assert np.array_equal(corpus.part("all"), ids)
    np.save(tmp_path / "other.npy", np.asfortranarray(ids))
    both = read_corpus([tmp_path / "ids.npy", tmp_path / "other.npy"], None, MODEL, Shares(0.25, 0.5))
    assert np.array_equal(both.tokens, np.concatenate([ids, ids]))
    assert (len(corpus.valid), len(corpus.test)) == (shape[0] // 4, shape[0] // 2)
    assert corpus.row == (None if len(shape) == 1 else 4)


def test_windows_are_runs_of_stream() -> None:
    tokens = np.arange(1000, dtype=np.uint16)
    for window in Windows(tokens, length=7, batch=5, seed=0)(3):
        assert window.tolist() == list(range(int(window[0]), int(window[0]) + 8))


@pytest.mark.parametrize("tokens", [np.arange(1000), np.arange(1000).reshape(125, 8)])
def test_epoch_has_every_window_once(tokens: np.ndarray) -> None:
    windows = Windows(tokens, length=7, batch=1, seed=0)
    count = windows.count
    epochs = [[int(windows(step)[0, 0]) for step in range(e * count, (e + 1) * count)] for e in range(3)]
    for starts in epochs:
        step = 7 if tokens.ndim == 1 else 8
        assert sorted(starts) == list(range(min(starts), min(starts) + count * step, step))
    assert epochs[0] != epochs[1] != epochs[2]


def test_epochs_have_different_offsets() -> None:
    windows = Windows(np.arange(1000), length=7, batch=1, seed=0)
    assert len({int(windows(e * windows.count)[0, 0]) % 7 for e in range(20)}) > 3


def test_windows_are_function_of_seed_and_step() -> None:
    tokens = np.arange(100)
    straight = Windows(tokens, length=7, batch=5, seed=3)
    batches = [straight(step) for step in range(20)]  # several epochs
    for step in (19, 0, 11):
        assert torch.equal(Windows(tokens, length=7, batch=5, seed=3)(step), batches[step])
    assert not torch.equal(Windows(tokens, length=7, batch=5, seed=4)(0), batches[0])


def test_batch_larger_than_text() -> None:
    assert Windows(np.arange(8), length=7, batch=3, seed=0)(0).tolist() == [list(range(8))] * 3


def test_held_out_windows_predict_every_token_once() -> None:
    windows = held_out_windows(np.arange(32), length=7)
    assert windows[:, 1:].flatten().tolist() == list(range(1, 29))
    assert torch.equal(windows[1:, 0], windows[:-1, -1])


def test_spread_is_even() -> None:
    rows = torch.arange(10)[:, None]
    assert spread(rows, 4).flatten().tolist() == [0, 3, 6, 9]
    assert spread(rows, 10) is rows
    assert held_out_windows(np.arange(11), 1, 4, 2)[:, 0].tolist() == [0, 9]
    assert spread(rows, 1).flatten().tolist() == [0]
    many = torch.arange(64 * 3 + 1)[:, None]
    assert spread(many, 65).flatten().tolist() == list(range(0, 193, 3))  # exact, at every count


def test_parallel_sequences_cover_text() -> None:
    rows = parallel_sequences(np.arange(100), 3, 20)
    assert [(row[0], row[-1]) for row in rows] == [(0, 19), (40, 59), (80, 99)]
    assert parallel_sequences(np.arange(10), 2, 8).tolist() == [list(range(8)), list(range(2, 10))]


def corpus_error(paths: list[Path], tokenizer: str | None = None, model: ModelConfig = MODEL) -> str:
    with pytest.raises(UserError) as caught:
        read_corpus(paths, tokenizer or texts.tokenizer(), model)
    return str(caught.value)


def test_file_errors(tmp_path: Path) -> None:
    empty, latin = tmp_path / "empty", tmp_path / "latin"
    empty.write_text(" \n<|endoftext|>\n\n")
    latin.write_bytes(b"caf\xe9")
    assert "at least one file" in corpus_error([])
    assert corpus_error([tmp_path / "absent"]).startswith(
        f"expected a text or a .npy to read; received {tmp_path / 'absent'}, which does not"
    )
    assert "received an empty file" in corpus_error([empty])
    assert "UTF-8" in corpus_error([latin])


def test_token_id_errors(tmp_path: Path) -> None:
    good, far, real, objects, wide = (tmp_path / f"{name}.npy" for name in ("good", "far", "real", "objects", "wide"))
    np.save(good, np.zeros(50, np.int64))
    np.save(far, np.full(50, MODEL.vocab_size))
    np.save(real, np.zeros(50))
    np.save(objects, np.array([{}], dtype=object), allow_pickle=True)
    np.save(wide, np.zeros((50, 3), np.int64))
    assert f"tokens from 0 to {MODEL.vocab_size - 1}" in corpus_error([far])
    assert "received float64 of shape (50,)" in corpus_error([real])
    assert "array of token ids" in corpus_error([objects])
    assert "arrays of one shape" in corpus_error([good, wide])
    assert "received both" in corpus_error([good, texts.write_text(tmp_path / "text")])


def npy(header: str, content: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode("latin-1") + content


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        b"PK\x03\x04 of an npz",
        npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,)}\n"),
        npy("{'descr': '<i8', 'fortran_order': False, 'shape': (4,)}\n", b"\0" * 31),
        npy("{'descr': '<i8', 'fortran_order': False, 'shape': (-4,)}\n", b"\0" * 32),
        npy("{'descr': '<i8', 'fortran_order': False, 'shape': 4}\n", b"\0" * 32),
        npy("{'descr': '<i8', 'fortran_order': 1, 'shape': (4,)}\n", b"\0" * 32),
        npy("{'descr': '<q9', 'fortran_order': False, 'shape': (4,)}\n", b"\0" * 32),
        npy("{'descr': [('a', '<i8')], 'fortran_order': False, 'shape': (4,)}\n", b"\0" * 32),
        npy("{'descr': '|V0', 'fortran_order': False, 'shape': (4,)}\n"),
        npy("{'descr': '<i8', 'fortran_order': False, 'shape': (0,)}\n"),
        npy("{'descr': '<i8', 'fortran_order': False, 'shape': ()}\n", b"\0" * 8),
        npy("{'descr': '<U3', 'fortran_order': False, 'shape': (1,)}\n", b"\0" * 12),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n", b"\0" * 12),
        npy("{{{\n"),
        npy("(" * 200 + "\n"),
        npy("1L\n"),
        npy("\xff\x00'\n"),
    ],
)
def test_invalid_token_ids_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "odd.npy").write_bytes(content)
    assert corpus_error([tmp_path / "odd.npy"]).endswith(
        ("write it with numpy.save", "write token ids with numpy.save")
    )


def test_npz_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "many", a=np.zeros(4, np.int64))
    (tmp_path / "many.npz").rename(tmp_path / "many.npy")
    assert "write it with numpy.save" in corpus_error([tmp_path / "many.npy"])


@pytest.mark.parametrize("name", ["x" * 300, "text/more", "x" * 300 + ".npy", "text/more.npy"])
def test_invalid_file_name_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "text").write_text("a")
    assert "received" in corpus_error([tmp_path / name])


def test_text_needs_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a checkpoint without one; pass token ids as a \.npy file"):
        read_corpus([texts.write_text(tmp_path / "text")], None, MODEL)


def test_too_little_text_is_refused() -> None:
    with pytest.raises(UserError, match="at least 8 tokens of training text; received 7"):
        Windows(np.arange(7), length=7, batch=2, seed=0)
    with pytest.raises(UserError, match="at least 8 tokens of text to measure on; received 0"):
        held_out_windows(np.arange(0), length=7)
    with pytest.raises(UserError, match="rows of length \\+ 1 = 8 tokens; received 5"):
        Windows(np.zeros((3, 5)), length=7, batch=2, seed=0)
