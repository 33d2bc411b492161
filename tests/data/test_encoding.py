from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from t2r_export.data import encoding
from t2r_export.data.encoding import Encoder, encoded
from t2r_export.data.vocabulary import byte_tokenizer, train_tokenizer
from t2r_runtime.errors import UserError

WORDS = ["once", "upon", "a", "time", "naïve", "mouse", "mouses", "1234", "\n\n", "...", "日本", "🦉"]
LEARNED = train_tokenizer([" ".join(WORDS)] * 3, 320)


def blank() -> str:
    """A tokenizer whose normalizer prepends a letter to each text."""
    made = Tokenizer.from_str(LEARNED)
    made.normalizer = normalizers.Sequence([normalizers.Prepend("a"), normalizers.Lowercase()])
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split("time", "merged_with_next"), made.pre_tokenizer])
    return str(made.to_str())


TOKENIZERS = {"bytes": byte_tokenizer(), "learned": LEARNED, "prepended": blank()}


def tokens(documents: Sequence[tuple[int, str]], encoder: Encoder, processes: int = 1) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for part, ids, _ in encoded(documents, encoder, processes):
        found.setdefault(part, []).extend(ids)
    return found


@pytest.mark.parametrize("name", TOKENIZERS)
@given(words=st.lists(st.sampled_from(WORDS), min_size=60, max_size=200), joint=st.sampled_from(["", " ", "\n"]))
def test_window_tokens_equal_whole_document(name: str, words: list[str], joint: str) -> None:
    text = joint.join(words)
    encoder = Encoder(TOKENIZERS[name], (7,), (8, 9))
    with pytest.MonkeyPatch.context() as patch:
        whole = tokens([(0, text)], encoder)
        patch.setattr(encoding, "WINDOW", 150)
        patch.setattr(encoding, "OVERLAP", 100)
        patch.setattr(encoding, "AGREEING", 6)
        assert tokens([(0, text)], encoder) == whole
    assert whole[0][:1] + whole[0][-2:] == [7, 8, 9]


def test_document_is_split_without_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Tokenizer(models.WordLevel({"[UNK]": 0, "a" * 20: 1}, unk_token="[UNK]"))  # a whole text is one token
    monkeypatch.setattr(encoding, "WINDOW", 30)
    monkeypatch.setattr(encoding, "OVERLAP", 10)
    assert tokens([(0, "a" * 60)], Encoder(str(made.to_str()), (5,), ())) == {0: [5, 1, 1, 1]}


@pytest.mark.parametrize("batch", [1, 50, 1 << 18])
def test_tokens_do_not_depend_on_processes(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "BATCH", batch)
    encoder = Encoder(LEARNED, (), (0,))
    documents = [(n % 3, " ".join(WORDS[n % 5 : n % 7 + 5])) for n in range(40)]
    alone = [(part, list(ids), count) for part, ids, count in encoded(documents, encoder, 1)]
    for processes in (2, 3):
        assert [(part, list(ids), count) for part, ids, count in encoded(documents, encoder, processes)] == alone


def test_tokenizer_error_in_process() -> None:
    with pytest.raises(UserError) as caught:
        list(encoded([(0, "a")], Encoder("{}", (), ()), 2))
    with pytest.raises(UserError) as alone:
        list(encoded([(0, "a")], Encoder("{}", (), ()), 1))
    assert str(caught.value) == str(alone.value)


def test_killed_process_is_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "start", lambda *_, **options: real("-c", "input()", **options))
    with pytest.raises(UserError, match="a running tokenizer process; received its end"):
        list(encoded([(0, "a")], Encoder(LEARNED, (), ()), 2))


real = encoding.start


@pytest.mark.parametrize("name", ["tinyshakespeare", "wikitext2-valid.raw"])
def test_long_text_tokens_equal_whole(name: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (data / f"text/{name}.txt").read_text(encoding="utf-8")[:600_000]
    encoder = Encoder((data / "checkpoints/stories260K/tokenizer.json").read_text(encoding="utf-8"), (), ())
    found = tokens([(0, text)], encoder)
    monkeypatch.setattr(encoding, "WINDOW", 1 << 20)
    assert tokens([(0, text)], encoder) == found
