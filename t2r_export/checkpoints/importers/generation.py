"""Tokens with a meaning of their own, by generation_config.json, which is what generation goes by, or by config.json.

Those that the vocabulary does not have are passed over, with a note: transformers writes GPT-2's into the config of any
small model, and some write -1 for none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.config.model import ModelConfig

# what a translator's generation reads; keys of config.json in older versions
TRANSLATION: dict[str, Any] = {
    "decoder_start_token_id": None,
    "forced_bos_token_id": None,
    "bad_words_ids": None,
    "suppress_tokens": None,
}


def special_tokens(config: ModelConfig, sources: Sequence[Fields]) -> tuple[dict[str, Any], list[str]]:
    """Fields of `config`, of the first of the sources that says something about each; and notes, a line each."""
    found: dict[str, tuple[int, ...]] = {}
    notes = []
    translation = () if config.encoder is None else ("decoder_start_token_id", "forced_bos_token_id", "suppress_tokens")
    for key in ("bos_token_id", "eos_token_id", *translation):
        for source in sources:
            tokens = source.tokens(key)
            known = tuple(token for token in tokens if 0 <= token < config.vocab_size)
            if len(known) < len(tokens) and key in source.data:
                notes.append(f"{key} in {source.where} is not among the {config.vocab_size} tokens and is passed over")
            found[key] = found.get(key) or known
    made: dict[str, Any] = {
        "bos_token": next(iter(found["bos_token_id"]), None),
        "eos_tokens": found["eos_token_id"],
    }
    if config.encoder is not None:
        begin, forced = found["decoder_start_token_id"] or config.start_tokens, found["forced_bos_token_id"]
        banned, passed_over = _bad_words(config, sources)
        notes += passed_over
        made["start_tokens"] = (*begin[:1], *forced[:1])
        made["banned_tokens"] = tuple(sorted({*found["suppress_tokens"], *banned}))
    return made, notes


def _bad_words(config: ModelConfig, sources: Sequence[Fields]) -> tuple[list[int], list[str]]:
    """The tokens that are never chosen. Words of several tokens are passed over, with a note."""
    for source in sources:
        words = source.get("bad_words_ids", [])
        if not isinstance(words, list) or not all(isinstance(word, list) for word in words):
            raise source.wrong("bad_words_ids", "a list of lists of tokens", words)
        if words:
            single = [word[0] for word in words if len(word) == 1]
            banned = [token for token in single if type(token) is int and 0 <= token < config.vocab_size]
            more = len(words) - len(banned)
            note = f"{more} of bad_words_ids in {source.where} are not one token of the model and are passed over"
            return banned, [note] if more else []
    return [], []
