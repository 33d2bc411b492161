"""Byte tokenizers, trained tokenizers, and the documentation page on custom models."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, pre_tokenizers

import t2r_runtime
from t2r_export.checkpoints import checkpoint
from t2r_export.cli import main
from t2r_export.data.vocabulary import byte_tokenizer, train_tokenizer
from test_readme import ROOT, fenced

STORY = "Once there was a small red hen. She ran to the hill, and the hill was far."
TEXT = "naïve\x00 \t\n  Grüße, 日本 \N{GRINNING FACE}<|end|>"


def test_byte_tokenizer() -> None:
    tokenizer = t2r_runtime.Tokenizer(byte_tokenizer())
    assert tokenizer.encode(TEXT) == list(TEXT.encode())
    assert tokenizer.decode(list(TEXT.encode())) == TEXT
    library = Tokenizer.from_str(byte_tokenizer())
    assert library.get_vocab_size() == 256
    assert library.get_vocab().keys() == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(library.get_vocab().values()) == list(range(256))


def test_special_tokens_follow_bytes() -> None:
    library = Tokenizer.from_str(byte_tokenizer(["<|begin|>", "<|end|>"]))
    assert library.get_vocab_size() == 258
    assert [library.token_to_id(name) for name in ("<|begin|>", "<|end|>")] == [256, 257]
    assert library.decode([256, *b"hen", 257]) == "hen"


def test_trained_tokenizer_round_trip() -> None:
    tokenizer = Tokenizer.from_str(train_tokenizer([STORY] * 3, 280))
    ids = tokenizer.encode("a small naïve hen").ids
    assert ids[0] == 0
    assert tokenizer.decode(ids) == "a small naïve hen"


PAGE = (ROOT / "docs" / "own-models.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_own_models_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page's programs run in order and print what the page shows; its commands run."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text((STORY + "\n") * 20)
    names: dict[str, object] = {}
    printed = fenced(PAGE)
    for program in fenced(PAGE, "python"):
        exec(program, names)
        out = capsys.readouterr().out
        if "print(" in program:
            assert out == printed.pop(0)
    assert checkpoint.load("model.pt").config.head_bias
    assert len(t2r_runtime.Decoder("out.onnx").generate(list(b"hen"), max_tokens=3)) > 0
    for line in fenced(PAGE, "sh")[0].splitlines():
        assert main(line.partition("#")[0].split()[1:]) == 0, line
