"""generation_config.json of a decoder: the inverse of `importers.generation`."""

from __future__ import annotations

from typing import Any

from t2r_export.config.model import ModelConfig


def generation_config(config: ModelConfig) -> dict[str, Any]:
    """Special tokens and options. The end token is also the padding token, which transformers requires.

    Without options transformers decodes greedily. Unset options are written explicitly, since transformers' defaults
    may differ: it samples from 50 tokens.
    """
    ends = list(config.eos_tokens)
    said: dict[str, Any] = {"bos_token_id": config.bos_token, "eos_token_id": ends[0] if len(ends) == 1 else ends}
    said = {key: value for key, value in said.items() if value not in (None, [])}
    said |= {"pad_token_id": ends[0]} if ends else {}
    options = config.generation
    if options is None:
        return said
    said |= {"do_sample": False} if options.temperature == 0 else _drawn(options.to_dict())
    penalties = {"repetition_penalty": options.repetition_penalty, "no_repeat_ngram_size": options.no_repeat_ngram}
    return said | {key: value for key, value in penalties.items() if value is not None}


def _drawn(options: dict[str, Any]) -> dict[str, Any]:
    said = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    return said | {key: options[key] for key in ("temperature", "top_k", "top_p", "min_p") if key in options}
