"""Tokenizers for new models: byte-level without merges, and byte-level BPE trained on a text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from t2r_export.config.finetune import SEPARATOR

BETWEEN_DIGITS = re.compile(r"(?<=\d)(?=\d)")

# bytes that a byte-level tokenizer.json maps to themselves; the others map to U+0100 and up
OWN = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def byte_tokenizer(special: Sequence[str] = ()) -> str:
    """A byte tokenizer: token n is byte n of UTF-8 text.

    Args:
        special: names of special tokens, 256 and up, such as a model's bos_token and eos_tokens.

    Returns:
        Contents of a tokenizer.json with 256 + len(special) tokens.
    """
    others = iter(range(0x100, 0x200))
    letters = [chr(byte if byte in OWN else next(others)) for byte in range(256)]
    tokenizer = Tokenizer(models.BPE({letter: byte for byte, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    return str(tokenizer.to_str())


def train_tokenizer(documents: Iterable[str], vocab_size: int) -> str:
    """Train a byte-level BPE (Sennrich et al. 2016) with one special token, 0, that begins and ends documents.

    Returns:
        Contents of a tokenizer.json.
    """
    return _byte_pairs(documents, vocab_size, f"{SEPARATOR} $A")


def train_pair_tokenizer(pairs: Sequence[tuple[str, str]], vocab_size: int) -> str:
    """`train_tokenizer` for both sides of pairs; the special token ends sources, and begins and ends targets.

    A digit is a separate token: a number is copied digit by digit, whether or not it was in the training data.

    Returns:
        Contents of a tokenizer.json.
    """
    # spaces keep digits from being merged with each other, so no pre-tokenizer has to split them when text is encoded
    sentences = (BETWEEN_DIGITS.sub(" ", sentence) for pair in pairs for sentence in pair)
    return _byte_pairs(sentences, vocab_size, f"$A {SEPARATOR}")


def _byte_pairs(texts: Iterable[str], vocab_size: int, form: str) -> str:
    """Train a tokenizer. `form`: template with the special token and the text $A."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[SEPARATOR],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=form, special_tokens=[(SEPARATOR, 0)])
    return str(tokenizer.to_str())
