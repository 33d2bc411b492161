"""BART (Lewis et al. 2020, arXiv 1910.13461): an encoder and a decoder with a norm after each sum and the embeddings.

Marian and Pegasus are BART with a few options. A learned table of positions begins with two unused rows. The
head's bias is stored separately, as one row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from t2r_export.checkpoints.importers.base import ACTIVATIONS, Fields, Importer
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.sources import HEAD, ROW, Source, named, skipped
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.uniform import UniformConfig, UniformEncoder

READ: dict[str, Any] = {
    "vocab_size": 50265,
    "d_model": 1024,
    "encoder_layers": 12,
    "encoder_ffn_dim": 4096,
    "encoder_attention_heads": 16,
    "decoder_layers": 12,
    "decoder_ffn_dim": 4096,
    "decoder_attention_heads": 16,
    "activation_function": "gelu",
    "max_position_embeddings": 1024,
    "scale_embedding": False,
    "tie_word_embeddings": True,
}
ALIASES = {
    "hidden_size": "d_model",
    "num_attention_heads": "encoder_attention_heads",
    "num_hidden_layers": "encoder_layers",
}
HARMLESS = """
    activation_dropout decoder_layerdrop dropout encoder_layerdrop extra_pos_embeddings
    force_bos_token_to_be_generated gradient_checkpointing init_std save_step
"""
SHARED, BIAS, OFFSET = "model.shared.weight", "final_logits_bias", 2
SIDES = {"encoder": "encoder.", "decoder": ""}  # their stack -> our prefix


def refused(pre_norm: bool, embedding_norm: bool, fixed_positions: bool) -> dict[str, tuple[Any, ...]]:
    """Shape keys that older versions wrote, and the values that agree with transformers' class."""
    shape = {
        "normalize_before": pre_norm,
        "add_final_layer_norm": pre_norm,
        "normalize_embedding": embedding_norm,
        "static_position_embeddings": fixed_positions,
        "add_bias_logits": False,
        "do_blenderbot_90_layernorm": False,
        "is_encoder_decoder": True,
    }
    return {key: (value,) for key, value in shape.items()}


def translator(fields: Fields, *, own_source: bool = False, **shape: Any) -> ModelConfig:
    """The config of a BART-like model, from its config.json.

    Args:
        own_source: sources have their own vocabulary, vocab_size, and targets decoder_vocab_size.
        shape: the family's fields of UniformConfig.
    """
    width, vocabulary, tied = fields.size("d_model"), fields.size("vocab_size"), fields.flag("tie_word_embeddings")
    if not tied and not own_source:
        raise fields.wrong("tie_word_embeddings", "true, since each stack has a table of its own otherwise", tied)
    encoder, decoder = (_attention(fields, f"{side}_attention_heads", width) for side in ("encoder", "decoder"))
    layers = fields.layers("decoder_layers")
    learned = fields.size("max_position_embeddings") if shape["position"] == "learned" else None
    if learned is None:
        fields.get("max_position_embeddings")  # marks the training length as read
    return UniformConfig(
        vocab_size=fields.size("decoder_vocab_size", vocabulary) if own_source else vocabulary,
        width=width,
        ffn_size=fields.size("decoder_ffn_dim"),
        layers=(SoftmaxConfig(),) * layers,
        crosses=(SoftmaxConfig(),) * layers,
        attention=decoder,
        encoder=UniformEncoder(
            layers=(SoftmaxConfig(),) * fields.layers("encoder_layers"),
            attention=encoder,
            ffn_size=fields.size("encoder_ffn_dim"),
            vocab_size=vocabulary if own_source else None,
            max_positions=learned,
        ),
        max_positions=learned,
        activation=fields.choice("activation_function", ACTIVATIONS),
        embedding_scale=width**0.5 if fields.flag("scale_embedding", null=False) else 1.0,
        tied_head=tied,
        head_bias=True,
        start_tokens=(0,),  # placeholder, set by `with_generation`
        **shape,
    ).build()


def _attention(fields: Fields, key: str, width: int) -> HeadsConfig:
    heads = fields.divisor(key, "d_model")
    return HeadsConfig(heads=heads, kv_heads=heads, head_size=width // heads)


def _names(own_source: bool) -> dict[str, str]:
    """A table of names; norms are before or after a part, depending on the family."""
    found = {"embedding": SHARED.removesuffix(".weight"), "head": "lm_head", "head.bias": BIAS}
    if own_source:
        found |= {f"{ours}embedding": f"model.{side}.embed_tokens" for side, ours in SIDES.items()}
    for side, ours in SIDES.items():
        stack, layer = f"model.{side}", f"model.{side}.layers.{{}}"
        found |= {f"{ours}positions.table": f"{stack}.embed_positions", f"{ours}norm": f"{stack}.layer_norm"}
        found[f"{ours}embedding_norm"] = f"{stack}.layernorm_embedding"
        attentions = {"attention": "self_attn", "cross": "encoder_attn", "encoder_attention": "self_attn"}
        parts = {f"{kind}.{one}": f"{name}.{one}_proj" for kind, name in attentions.items() for one in "qkv"}
        parts |= {f"{kind}.o": f"{name}.out_proj" for kind, name in attentions.items()}
        parts |= {"dense.up": "fc1", "dense.down": "fc2"}
        norms = {**attentions, "dense": "final"}
        parts |= {
            f"{kind}.{norm}": f"{name}_layer_norm" for kind, name in norms.items() for norm in ("norm", "norm_sum")
        }
        found |= {f"{ours}{part}": f"{layer}.{name}" for part, name in parts.items()}
    return found


def sources(config: ModelConfig, weights: Iterable[str]) -> dict[str, Source]:
    assert config.encoder is not None
    tables = [f"model.{side}.embed_positions.weight" for side in SIDES]
    bart = config.embedding_norm is not None
    transforms = {BIAS: ROW, **dict.fromkeys(tables if bart else (), skipped(OFFSET))}
    own = config.encoder.vocab_size is not None
    return named(config, weights, _names(own), transforms, {BIAS, *(() if bart else tables)})


def copies(config: ModelConfig) -> dict[str, str]:
    assert config.encoder is not None
    if config.encoder.vocab_size is not None:
        return {HEAD: "model.decoder.embed_tokens.weight"} if config.tied_head else {}
    return dict.fromkeys((HEAD, "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"), SHARED)


def importer(
    read: Mapping[str, Any],
    shape: Mapping[str, tuple[Any, ...]],
    config: Callable[[Fields], ModelConfig],
    sines: bool = False,
) -> Importer:
    """An importer of tensors with BART's names and shapes. Args: shape: see `refused`."""
    return Importer(
        keys=keys(read={**READ, **read}, refused=shape, harmless=HARMLESS, aliases=ALIASES),
        config=config,
        sources=sources,
        prefix="model.",
        sines=sines,
        copies=copies,
        outside=frozenset({HEAD, BIAS}),
    )


def _marian(fields: Fields) -> ModelConfig:
    shared = fields.flag("share_encoder_decoder_embeddings")
    if shared and fields.get("decoder_vocab_size") not in (None, fields.get("vocab_size")):
        size = fields.get("decoder_vocab_size")
        raise fields.wrong("decoder_vocab_size", "vocab_size, since the stacks share their table", size)
    return translator(fields, own_source=not shared, position="sinusoidal", norm_position="post", last_norm=False)


BART = importer(
    {"bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2},
    refused(pre_norm=False, embedding_norm=True, fixed_positions=False),
    lambda fields: translator(fields, position="learned", norm_position="post", last_norm=False, embedding_norm=True),
)
# Marian (Junczys-Dowmunt et al. 2018, arXiv 1804.00344): sinusoidal positions and no norm of the embeddings. Its
# sources may have their own vocabulary
MARIAN = importer(
    {
        "vocab_size": 58101,
        "decoder_vocab_size": None,
        "share_encoder_decoder_embeddings": True,
        "eos_token_id": 0,
        "decoder_start_token_id": 58100,
    },
    refused(pre_norm=False, embedding_norm=False, fixed_positions=True),
    _marian,
    sines=True,
)
# Pegasus (Zhang et al. 2020, arXiv 1912.08777): Marian with a norm before each part, and a last one in each stack
PEGASUS = importer(
    {"eos_token_id": 1, "decoder_start_token_id": 0},
    refused(pre_norm=True, embedding_norm=False, fixed_positions=True),
    lambda fields: translator(fields, position="sinusoidal", norm_position="pre", last_norm=True),
    sines=True,
)
