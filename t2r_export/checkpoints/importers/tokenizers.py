"""The tokenizers of a folder: its tokenizer.json, or converted sentencepiece models and their vocabulary."""

from __future__ import annotations

import json

from t2r_export.checkpoints.importers.files import DOWNLOAD, Folder, parse_object
from t2r_export.checkpoints.importers.special import SpecialTokens
from t2r_export.checkpoints.piece_file import MAX_FILE, read_pieces
from t2r_export.checkpoints.piece_tokenizer import piece_tokenizer
from t2r_export.config.model import ModelConfig
from t2r_runtime import Tokenizer
from t2r_runtime.errors import UserError, shown
from t2r_runtime.text.tokenizer_parts import MAX_BYTES

TOKENIZER, MAX_TOKENIZER = "tokenizer.json", 1 << 27  # bytes
SOURCE, TARGET = "source.spm", "target.spm"
VOCABULARY, TARGET_VOCABULARY, MAX_VOCABULARY = "vocab.json", "target_vocab.json", 1 << 26


def tokenizers(files: Folder, config: ModelConfig, special: SpecialTokens) -> tuple[str | None, str | None, list[str]]:
    """The texts of a tokenizer.json for the model, and for a translator's sources if they differ; and notes.

    Notes report a tokenizer in other files, which is not read, and tokens that the model lacks.

    Args:
        special: tokens that are added to tokenizer.json.

    Raises:
        UserError: an invalid tokenizer, some files of Marian's without the others, or a vocabulary of another size than
            the model's.
    """
    if files.has(TOKENIZER):
        text = files.text(TOKENIZER, MAX_TOKENIZER)
        data, tokenizer = parse_object(text, str(files.folder / TOKENIZER)), _tried(text)
        if (whole := special.added_to(text, data)) is not None:
            text, tokenizer = whole, _tried(whole)
        if len(text) > MAX_BYTES // 4:  # the bound of runtimes counts what is no part of a tokenizer too
            text = _compact(text)
        return text, None, _beyond(tokenizer, config.vocab_size)
    if config.encoder is None or not any(map(files.has, (SOURCE, TARGET))):
        return None, None, []
    own = config.encoder.vocab_size is not None
    source = _pieces(files, SOURCE, VOCABULARY, config.encoder.vocab_size or config.vocab_size)
    target = _pieces(files, TARGET, TARGET_VOCABULARY if own else VOCABULARY, config.vocab_size)
    return target, None if source == target else source, []


def _compact(text: str) -> str:
    """The same tokenizer without blanks, and with merges as texts, which are smaller and faster to read than pairs."""
    data = json.loads(text)
    merges = data["model"].get("merges") or []
    if all(isinstance(merge, list) and " " not in "".join(merge) for merge in merges):
        joined = [" ".join(merge) for merge in merges]
        if not any(merge.startswith("#version") for merge in joined):  # the library takes that for a comment
            data["model"]["merges"] = joined
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def _pieces(files: Folder, model: str, vocabulary: str, size: int) -> str:
    where = str(files.folder / vocabulary)
    pieces = read_pieces(files.content(model, MAX_FILE), str(files.folder / model))
    numbers = files.object(vocabulary, MAX_VOCABULARY)
    if len(numbers) != size:
        raise UserError(f"{size} pieces in {where}, as many as the model's tokens", f"{len(numbers)}", DOWNLOAD)
    text = piece_tokenizer(pieces, numbers, where)
    _tried(text)
    return text


def _tried(text: str) -> Tokenizer:
    return Tokenizer(text)  # fails here instead of after training


def _beyond(tokenizer: Tokenizer, size: int) -> list[str]:
    piece = tokenizer.piece(size)
    beyond = f"{TOKENIZER} has tokens past the model's {size:,}, such as {shown(piece)}: texts with them are refused"
    return [beyond] if piece else []
