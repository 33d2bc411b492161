"""Save a softmax translator as a Hugging Face folder, for transformers and compatible libraries.

Uses the importer of the family in reverse.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.checkpoints.hub.writer import as_json, token_texts, write_folder
from t2r_export.checkpoints.importers import IMPORTERS
from t2r_export.checkpoints.importers.base import ACTIVATIONS, Fields
from t2r_export.checkpoints.importers.files import CONFIG, GENERATION
from t2r_export.config.model import ModelConfig, StackConfig
from t2r_export.config.parts import DenseConfig
from t2r_runtime.errors import UserError, shown
from t2r_runtime.translate.beam import Beam
from t2r_runtime.translate.search import MAX_TOKENS

LONGEST = 1024  # positions of sinusoidal tables in a folder; unlimited here
# supported families → classes of transformers
CLASSES = {"marian": "MarianMTModel", "pegasus": "PegasusForConditionalGeneration"}


def save_translator(loaded: Checkpoint, folder: Path, family: str) -> list[Path]:
    """Write config.json, generation_config.json, model.safetensors, and tokenizer.json if there is a tokenizer.

    Args:
        folder: must not exist, or be empty.
        family: a key of CLASSES.

    Returns:
        Paths of the files.

    Raises:
        UserError: a model that the family cannot represent; the message names the differences. A folder that cannot be
            written.
    """
    config, generation = _configs(loaded.config, family)
    texts = {CONFIG: as_json(config), GENERATION: as_json(generation)}
    if loaded.tokenizer is not None and loaded.source_tokenizer is None:
        special = token_texts(loaded.tokenizer, _special(loaded.config))
        said = {"tokenizer_class": "PreTrainedTokenizerFast", **special}
        texts |= {"tokenizer.json": loaded.tokenizer, "tokenizer_config.json": as_json(said)}
    return write_folder(folder, texts, loaded, IMPORTERS[family])


def _special(model: ModelConfig) -> dict[str, int | None]:
    """Special tokens by their names in tokenizer_config.json.

    CTranslate2 starts Pegasus translations from the padding token, and requires an unknown token.
    """
    end = model.eos_tokens[0] if model.eos_tokens else None
    return {"eos_token": end, "pad_token": model.start_tokens[0], "unk_token": end}


def _configs(model: ModelConfig, family: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and generation_config.json. Raises UserError unless an import of them gives the model's config."""
    encoder = model.encoder
    if encoder is None:
        raise UserError(f"a translator, for {family}", "a decoder alone", "save a model with an encoder")
    own = encoder.vocab_size is not None
    dense = {name: _dense(stack) for name, stack in (("encoder", encoder), ("decoder", model))}
    activation = dense["decoder"].activation
    scaled = not math.isclose(model.embedding_scale, 1)
    config = {
        "model_type": family,
        "architectures": [CLASSES[family]],
        "vocab_size": encoder.vocab_size or model.vocab_size,
        "d_model": model.width,
        "encoder_layers": len(encoder.layers),
        "encoder_ffn_dim": dense["encoder"].size,
        "encoder_attention_heads": encoder.heads[0].heads,
        "decoder_layers": len(model.layers),
        "decoder_ffn_dim": dense["decoder"].size,
        "decoder_attention_heads": model.heads[0].heads,
        "activation_function": next(theirs for theirs, ours in ACTIVATIONS.items() if ours == activation),
        "max_position_embeddings": LONGEST,
        "scale_embedding": scaled,
        "tie_word_embeddings": model.tied_head,
        "is_encoder_decoder": True,
        # used by CTranslate2; transformers uses the family
        "normalize_before": family == "pegasus",
        "normalize_embedding": False,
    }
    if family == "marian":
        config |= {"share_encoder_decoder_embeddings": not own, "decoder_vocab_size": model.vocab_size}
    if (own and family != "marian") or (not own and not model.tied_head) or len(model.start_tokens) > 2:
        raise _another(family, ["tables or start tokens that the family does not support"])
    said = _generation(model)
    config |= said
    try:
        differing = _differing(model, IMPORTERS[family].config(Fields(config, "config.json")))
    except UserError as error:  # unsupported sizes
        raise _another(family, [f"{error.received} ({error.expected})"]) from error
    if differing:
        raise _another(family, differing)
    return config, said


def _dense(stack: StackConfig) -> DenseConfig:
    """The first dense feed-forward of a stack."""
    found = [part for layer in stack.layers for part in layer.parts if isinstance(part, DenseConfig)]
    if not found:
        raise UserError("dense feed-forwards", "none", "save another model")
    return found[0]


def _differing(model: ModelConfig, read: ModelConfig) -> list[str]:
    """Fields that an import of the folder would change, special tokens excepted."""
    ours, theirs = _comparable(model), _comparable(read)
    places = [place for place in dict.fromkeys([*ours, *theirs]) if ours.get(place) != theirs.get(place)]
    return list(dict.fromkeys(_named(place, ours.get(place)) for place in places))


def _named(place: str, value: Any) -> str:
    """A field for an error message; fields of parts are shown without layer number and value."""
    match = re.fullmatch(r"(?:number of )?(encoder\.)?layers\.\d+\.parts\.\d+\.(\w+).*", place)
    return f"{place} {shown(value)}" if match is None else f"{'encoder ' if match[1] else ''}{match[2]}"


def _comparable(model: ModelConfig) -> dict[str, Any]:
    """Values of a config by path, rounded, without special tokens and the head's bias."""
    found: dict[str, Any] = {}

    def walk(value: Any, place: str) -> None:
        if isinstance(value, Mapping):
            for name, item in value.items():
                walk(item, f"{place}.{name}" if place else str(name))
        elif isinstance(value, list):
            found[f"number of {place}"] = len(value)
            for number, item in enumerate(value):
                walk(item, f"{place}.{number}")
        else:
            found[place] = round(value, 6) if isinstance(value, float) else value

    beside = ("bos_token", "eos_tokens", "start_tokens", "banned_tokens", "generation", "head_bias")
    walk({name: value for name, value in model.to_dict().items() if name not in beside}, "")
    for place, value in [entry for entry in found.items() if entry[0].endswith(".head_size")]:
        scale = place.removesuffix("head_size") + "scale"  # None means head_size ** -0.5
        found[scale] = round(value**-0.5, 6) if found[scale] is None else found[scale]
    return found


def _another(family: str, differing: Sequence[str]) -> UserError:
    expected = f"softmax layers and options that {family} supports"
    return UserError(expected, "; ".join(differing)[:300], "save the teacher, or as another family")


def _generation(model: ModelConfig) -> dict[str, Any]:
    """Contents of generation_config.json. The end token is also the padding token."""
    ends = list(model.eos_tokens)
    said: dict[str, Any] = {
        "decoder_start_token_id": model.start_tokens[0],
        "eos_token_id": ends[0] if len(ends) == 1 else ends,
        "pad_token_id": ends[0] if ends else 0,
        "bos_token_id": model.bos_token,
    }
    if len(model.start_tokens) == 2:
        said["forced_bos_token_id"] = model.start_tokens[1]
    if model.banned_tokens:
        said["bad_words_ids"] = [[token] for token in model.banned_tokens]
    return {**said, **_search(model)}


def _search(model: ModelConfig) -> dict[str, Any]:
    """Search options; all options that runtimes use, if the model has generation options."""
    options = Beam().resolved(None if model.generation is None else model.generation.to_dict())
    forced = {"forced_eos_token_id": model.eos_tokens[0]} if options.forced_end and model.eos_tokens else {}
    if model.generation is None:
        return forced
    return {
        **forced,
        "num_beams": options.width,
        "length_penalty": options.length_penalty,
        "early_stopping": options.early_stopping,
        "max_new_tokens": options.max_tokens or MAX_TOKENS,
        "min_new_tokens": options.min_tokens,
        "repetition_penalty": options.repetition_penalty,
        "no_repeat_ngram_size": options.no_repeat_ngram,
    }
