"""The tokenizers of a folder: its tokenizer.json, or those made of its sentencepiece models and their vocabulary."""

from __future__ import annotations

from t2r_export.checkpoints.importers.files import DOWNLOAD, Folder, parse_object
from t2r_export.checkpoints.piece_file import MAX_FILE, read_pieces
from t2r_export.checkpoints.piece_tokenizer import piece_tokenizer
from t2r_export.config.model import ModelConfig
from t2r_runtime import Tokenizer
from t2r_runtime.errors import UserError

TOKENIZER, MAX_TOKENIZER = "tokenizer.json", 1 << 27  # bytes
SOURCE, TARGET = "source.spm", "target.spm"
VOCABULARY, TARGET_VOCABULARY, MAX_VOCABULARY = "vocab.json", "target_vocab.json", 1 << 26


def tokenizers(files: Folder, config: ModelConfig) -> tuple[str | None, str | None]:
    """The texts of a tokenizer.json for the model, and for a translator's sources where they have one of their own.

    Raises:
        UserError: one that the library does not take, some files of Marian's without the others, or a vocabulary of
            another size than the model's.
    """
    if files.has(TOKENIZER):
        text = files.text(TOKENIZER, MAX_TOKENIZER)
        parse_object(text, str(files.folder / TOKENIZER))
        return _tried(text), None
    if config.encoder is None or not any(map(files.has, (SOURCE, TARGET))):
        return None, None
    own = config.encoder.vocab_size is not None
    source = _pieces(files, SOURCE, VOCABULARY, config.encoder.vocab_size or config.vocab_size)
    target = _pieces(files, TARGET, TARGET_VOCABULARY if own else VOCABULARY, config.vocab_size)
    return target, None if source == target else source


def _pieces(files: Folder, model: str, vocabulary: str, size: int) -> str:
    where = str(files.folder / vocabulary)
    pieces = read_pieces(files.content(model, MAX_FILE), str(files.folder / model))
    numbers = files.object(vocabulary, MAX_VOCABULARY)
    if len(numbers) != size:
        raise UserError(f"{size} pieces in {where}, as many as the model's tokens", f"{len(numbers)}", DOWNLOAD)
    return _tried(piece_tokenizer(pieces, numbers, where))


def _tried(text: str) -> str:
    Tokenizer(text)  # or it would be refused when the model is trained already
    return text
