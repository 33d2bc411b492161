"""generation_config.json of a decoder: the inverse of `importers.generation`."""

from __future__ import annotations

from typing import Any

from t2r_export.checkpoints.importers.generation_keys import KEYS
from t2r_export.config.model import ModelConfig
from t2r_runtime.contract.options import DECODER, PENALTIES


def generation_config(config: ModelConfig) -> dict[str, Any]:
    """Special tokens and options. The end token is also the padding token, which transformers requires.

    Without options transformers decodes greedily. Unset options are written explicitly, since transformers' defaults
    may differ: it samples from 50 tokens.
    """
    ends = list(config.eos_tokens)
    settings: dict[str, Any] = {"bos_token_id": config.bos_token, "eos_token_id": ends[0] if len(ends) == 1 else ends}
    settings = {key: value for key, value in settings.items() if value not in (None, [])}
    settings |= {"pad_token_id": ends[0]} if ends else {}
    options = config.generation
    if options is None:
        return settings
    decoder = {key: value for key, value in options.to_dict().items() if key in DECODER}
    if options.temperature == 0:
        settings["do_sample"] = False
        decoder = {key: value for key, value in decoder.items() if key in PENALTIES}
    else:
        settings |= {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    return settings | {KEYS[key]: value for key, value in decoder.items()}
