"""Tokenizers for models of one's own: one that reads bytes, and one that is learned from a text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from t2r_export.config.finetune import SEPARATOR

# the bytes that a byte-level tokenizer.json writes as themselves; the others follow from U+0100 on
OWN = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


def byte_tokenizer(special: Sequence[str] = ()) -> str:
    """A tokenizer that learned nothing: token n is the byte n of a text in UTF-8.

    Args:
        special: names of further tokens, 256 and up, for a model's bos_token and eos_tokens. A text has none of them.

    Returns:
        The text of a tokenizer.json with 256 + len(special) tokens.
    """
    others = iter(range(0x100, 0x200))
    letters = [chr(byte if byte in OWN else next(others)) for byte in range(256)]
    tokenizer = Tokenizer(models.BPE({letter: byte for byte, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    return str(tokenizer.to_str())


def train_tokenizer(documents: Iterable[str], vocab_size: int) -> str:
    """A byte-level BPE (Sennrich et al. 2016) with one special token, 0, that begins and ends a document.

    Returns:
        The text of a tokenizer.json.
    """
    return _byte_pairs(documents, vocab_size, f"{SEPARATOR} $A")


def train_pair_tokenizer(pairs: Sequence[tuple[str, str]], vocab_size: int) -> str:
    """The same for both sides of pairs: its special token, 0, ends a source, and begins and ends a target.

    Returns:
        The text of a tokenizer.json, for sources and for targets.
    """
    return _byte_pairs((sentence for pair in pairs for sentence in pair), vocab_size, f"$A {SEPARATOR}")


def _byte_pairs(texts: Iterable[str], vocab_size: int, form: str) -> str:
    """A tokenizer learned from texts. `form`: where the special token goes beside a text, $A."""
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
