"""A softmax translator as a folder of the Hugging Face format, so that transformers and what reads its folders run it.

The importer of the family says which of our weights each tensor holds; here it is read the other way.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.checkpoints.importers import IMPORTERS
from t2r_export.checkpoints.importers.base import ACTIVATIONS, Source
from t2r_export.config.attention import AttentionConfig
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_runtime.beam import Beam
from t2r_runtime.errors import UserError
from t2r_runtime.files import replacing
from t2r_runtime.search import MAX_TOKENS
from t2r_runtime.tokenizer_file import Library

LONGEST = 1024  # how far sines go in a folder; they do not end here


@dataclass(frozen=True)
class Shape:
    """What makes a translator one of a family: fields of ModelConfig."""

    class_name: str  # transformers'
    fields: Mapping[str, Any]


COMMON = {"norm": "layer", "norm_eps": 1e-5, "position": "sinusoidal", "embedding_norm": False}
SHAPES = {
    "marian": Shape("MarianMTModel", {**COMMON, "norm_position": "post", "last_norm": False}),
    "pegasus": Shape("PegasusForConditionalGeneration", {**COMMON, "norm_position": "pre", "last_norm": True}),
}


def save_folder(loaded: Checkpoint, folder: Path, family: str) -> list[Path]:
    """Write config.json, generation_config.json, model.safetensors, and tokenizer.json where there is one.

    Args:
        family: a key of SHAPES.

    Returns:
        The files.

    Raises:
        UserError: a model that is none of the family, which names what differs, or a folder that cannot be written.
    """
    config, generation = _configs(loaded.config, family)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"a folder at {folder}", error.strerror or str(error), "name another place") from error
    sources = IMPORTERS[family].sources(loaded.config)
    state = loaded.model.state_dict()
    if loaded.config.head_bias is False:
        del sources["final_logits_bias"]
    tensors = {name: _stored(source, state) for name, source in sources.items()}
    texts = {"config.json": config, "generation_config.json": generation}
    files = [folder / name for name in (*texts, "model.safetensors")]
    for path, data in zip(files, texts.values(), strict=False):
        with replacing(path) as part:
            part.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    with replacing(files[2]) as part:
        save_file(tensors, part, {"format": "pt"})
    if loaded.tokenizer is not None and loaded.source_tokenizer is None:
        files += [folder / "tokenizer.json", folder / "tokenizer_config.json"]
        said = {"tokenizer_class": "PreTrainedTokenizerFast", **_special(loaded.config, loaded.tokenizer)}
        for path, text in zip(files[3:], (loaded.tokenizer, json.dumps(said) + "\n"), strict=True):
            with replacing(path) as part:
                part.write_text(text, encoding="utf-8")
    return files


def _special(model: ModelConfig, tokenizer: str) -> dict[str, str]:
    """Texts of special tokens by their names in tokenizer_config.json.

    CTranslate2 starts a Pegasus from the padding token and wants a token for what is unknown, which nothing is here.
    """
    end = model.eos_tokens[0] if model.eos_tokens else None
    named = {"eos_token": end, "pad_token": model.start_tokens[0], "unk_token": end}
    library = Library(tokenizer).tokenizer
    texts = {name: None if token is None else library.id_to_token(token) for name, token in named.items()}
    return {name: text for name, text in texts.items() if text is not None}


def _stored(source: Source, state: Mapping[str, Tensor]) -> Tensor:
    whole = torch.cat([state[part].detach().cpu().float() for part in source.parts])
    assert not source.transposed and not source.skipped
    return (whole[None] if source.row else whole).contiguous()


def _configs(model: ModelConfig, family: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json and generation_config.json."""
    shape = SHAPES[family]
    encoder = model.encoder
    if encoder is None:
        raise UserError(f"a translator, for {family}", "a decoder alone", "save a model with an encoder")
    scaled = not math.isclose(model.embedding_scale, 1)
    needed = {
        **shape.fields,
        **dict.fromkeys(("parallel", "gated_ffn"), False),
        **dict.fromkeys(("residual", "ffn_bias"), True),
        "logit_scale": 1.0,
        "logit_softcap": None,
        "feed_forwards": (),
        "attentions": (),
        "layers": (SoftmaxConfig(),) * len(model.layers),
        "crosses": (SoftmaxConfig(),) * len(model.layers),
    }
    values = {name: getattr(model, name) for name in needed}
    other = {name: value for name, value in values.items() if value != needed[name]}
    differing = [name if isinstance(value, tuple) else f"{name} {value!r}" for name, value in other.items()]
    stacks = {"encoder": encoder.attention, "decoder": model.attention}
    differing += [f"{side} {attention}" for side, attention in stacks.items() if not _plain(attention, model.width)]
    if encoder.layers != (SoftmaxConfig(),) * len(encoder.layers):
        differing.append("encoder layers")
    if scaled and not math.isclose(model.embedding_scale, math.sqrt(model.width), rel_tol=1e-6):
        differing.append(f"embedding_scale {model.embedding_scale}")
    own = encoder.vocab_size is not None
    if (own and family != "marian") or (not own and not model.tied_head) or len(model.start_tokens) > 2:
        differing.append("tables or start tokens that the family has not")
    if differing:
        expected = f"softmax layers, and otherwise what {family} has"
        raise UserError(expected, "; ".join(differing)[:300], "save the teacher, or as another family")
    assert model.attention is not None
    activation = next(theirs for theirs, ours in ACTIVATIONS.items() if ours == model.activation)
    config = {
        "model_type": family,
        "architectures": [shape.class_name],
        "vocab_size": encoder.vocab_size or model.vocab_size,
        "d_model": model.width,
        "encoder_layers": len(encoder.layers),
        "encoder_ffn_dim": encoder.ffn_size,
        "encoder_attention_heads": encoder.attention.heads,
        "decoder_layers": len(model.layers),
        "decoder_ffn_dim": model.ffn_size,
        "decoder_attention_heads": model.attention.heads,
        "activation_function": activation,
        "max_position_embeddings": LONGEST,
        "scale_embedding": scaled,
        "tie_word_embeddings": model.tied_head,
        "is_encoder_decoder": True,
        # transformers goes by the family, CTranslate2 by these
        "normalize_before": model.norm_position == "pre",
        "normalize_embedding": False,
    }
    if family == "marian":
        config |= {"share_encoder_decoder_embeddings": not own, "decoder_vocab_size": model.vocab_size}
    return {**config, **(said := _generation(model))}, said


def _plain(attention: AttentionConfig | None, width: int) -> bool:
    """Whether heads share the width, with biases everywhere and nothing else."""
    if attention is None or width % attention.heads:
        return False
    size, heads = width // attention.heads, attention.heads
    usual = {None, size**-0.5}
    return attention.scale in usual and attention == AttentionConfig(
        heads=heads, kv_heads=heads, head_size=size, scale=attention.scale
    )


def _generation(model: ModelConfig) -> dict[str, Any]:
    """What generation goes by. An end stands for padding too: nothing is read behind it."""
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
    """How translations are searched: all options where the model says anything, which is what runtimes do then."""
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
