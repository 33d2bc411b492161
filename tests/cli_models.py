"""A model with a letter tokenizer, and a way to run commands, for the command-line tests."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from t2r_export.cli import main
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.uniform import UniformConfig

LETTERS = "abcdefghijklmnopqrstuvwxyz .,"
CONFIG = UniformConfig(
    vocab_size=len(LETTERS) + 1,
    width=12,
    ffn_size=20,
    layers=(SoftmaxConfig(), SoftmaxConfig()),
    position="sinusoidal",
    bos_token=len(LETTERS),
    attention=HeadsConfig(heads=6, kv_heads=3, head_size=4),
)


def letter_tokenizer(letters: str = LETTERS) -> str:
    """A tokenizer.json with one token per letter; other characters are dropped."""
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    return str(tokenizer.to_str())


Output = pytest.CaptureFixture[str]


def run(capsys: Output, *arguments: object, code: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == code, capsys.readouterr().err
    captured = capsys.readouterr()
    return captured.out, captured.err
