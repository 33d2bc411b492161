"""A toy language with its tokenizer and teacher, shared by tests of data and training."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import small
from cli_models import letter_tokenizer
from t2r_export.checkpoints import checkpoint
from t2r_export.config.finetune import SEPARATOR, FinetuneConfig
from t2r_export.config.mixers import LinearConfig, MixerConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.stages import StagePlan
from t2r_export.convert import convert, provenance
from t2r_export.data.pairs import write_pairs

LETTERS = "abcdefgh ."
BOS, EOS = len(LETTERS), len(LETTERS) + 1

TEACHER = dataclasses.replace(
    small.LLAMA, layers=(small.SOFTMAX,) * 3, vocab_size=len(LETTERS) + 2, bos_token=BOS, eos_tokens=(EOS,)
)
STUDENT = LinearConfig(small.K)


def tokenizer() -> str:
    """A tokenizer.json with one token per letter, 0 for `a`; other characters are dropped."""
    return letter_tokenizer(LETTERS)


def documents(count: int = 40, seed: int = 0) -> list[str]:
    """Documents of 20 to 60 letters that repeat one word of three letters: easy to predict, once read."""
    chance = random.Random(seed)
    words = ["".join(chance.choices(LETTERS[:-2], k=3)) for _ in range(count)]
    return [" ".join([word] * chance.randint(5, 15)) + "." for word in words]


def write_text(path: Path, count: int = 40) -> Path:
    path.write_text(f"\n{SEPARATOR}\n".join(documents(count)), encoding="utf-8")
    return path


def write_teacher(path: Path, config: ModelConfig = TEACHER) -> Path:
    checkpoint.save(path, small.model(config), tokenizer(), {"origin": "random"})
    return path


def write_student(path: Path, layers: str = "all", mixer: MixerConfig = STUDENT) -> Path:
    """The teacher converted, untrained."""
    teacher = small.checkpoint(TEACHER)
    model = convert(teacher.model, mixer, layers)
    checkpoint.save(path, model, tokenizer(), provenance(teacher, layers=layers))
    return path


def run(folder: Path, plan: tuple[StagePlan, ...], **options: Any) -> FinetuneConfig:
    """A run of the untrained student on the toy language, with all files in `folder`."""
    return FinetuneConfig(
        model=write_student(folder / "model.pt"),
        output=folder / "tuned.pt",
        data=(write_text(folder / "text"),),
        plan=plan,
        length=16,
        batch=4,
        device="cpu",
        checkpoint_every=5,
        **options,
    )


def write_words(path: Path, count: int) -> Path:
    """Pairs of a word and a sentence made from it."""
    chance = random.Random(0)
    words = ["".join(chance.choices("abcdefgh", k=chance.randint(2, 7))) for _ in range(count)]
    write_pairs(path, [(word, f"{word[::-1]} {word} .") for word in words])
    return path


def write_translator(path: Path, cross: MixerConfig, base: str, history: Mapping[str, Any] | None = None) -> None:
    """A translator with a letter tokenizer."""
    made = small.translator(cross, base=base, source_vocabulary=None)
    made = dataclasses.replace(made, vocab_size=len(LETTERS) + 2, bos_token=None, eos_tokens=(EOS,))
    checkpoint.save(path, small.model(made), tokenizer(), dict(history or {}))
