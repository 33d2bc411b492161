"""The role of each key of a config.json for a family: read, refused if it changes the function, or without effect.

transformers silently ignores keys that its class of a family does not use, even if they were written for a class that
uses them, and then computes another model. So keys that change a related family's function are refused by name, keys
known to change nothing are listed, and the rest is shown to the user.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from t2r_export.checkpoints.importers.generation_keys import GENERATION

# keys of any family -> values without effect
REFUSED: dict[str, tuple[Any, ...]] = {
    # which tokens a token sees
    "is_causal": (True,),  # transformers reads null as false
    "use_bidirectional_attention": (None, False),
    "is_encoder_decoder": (None, False),
    "add_cross_attention": (None, False),
    "sliding_window": (None,),
    "use_sliding_window": (None, False),
    "sliding_window_pattern": (None,),
    "attention_chunk_size": (None,),
    "layer_types": (None,),
    "per_layer_config": (None, {}),
    "num_kv_shared_layers": (None, 0),
    "pruned_heads": (None, {}),
    # positions
    "alibi": (None, False),
    "use_alibi": (None, False),
    "no_rope_layers": (None, []),
    "no_rope_layer_interval": (None, 0),
    "partial_rotary_factor": (None, 1),
    "rotary_pct": (None, 1),
    "rope_pct": (None, 1),
    "rotary_dim": (None,),
    "rope_interleaved": (None, False),
    "rope_local_base_freq": (None,),
    # scales and caps; names that end in multiplier or softcap: NAMED, below
    "attn_scale": (None,),
    "attn_temperature_tuning": (None, False, 0),
    "query_pre_attn_scalar": (None,),
    "scale_emb": (None, 1),
    "scale_depth": (None,),
    "dim_model_base": (None,),
    "embedding_scale": (None, 1),
    "residual_scale": (None, 1),
    "logit_scale": (None, 1),
    "logits_scaling": (None, 1),
    "clip_qkv": (None,),
    # norms and residual sums
    "qk_layernorm": (None, False),
    "qk_norm": (None, False),
    "use_qk_norm": (None, False),
    "parallel_attn": (None, False),
    "use_parallel_residual": (None, False),
    "use_post_norm": (None, False),
    # other parts
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "n_routed_experts": (None, 0),
    "kv_lora_rank": (None,),
    "q_lora_rank": (None,),
    "attn_output_gate": (None, False),
    # another file of weights
    "transformers_weights": (None, "model.safetensors"),
}
# names of such keys in new families: unknown keys that match are refused too
NAMED = {
    re.compile(r"\w*_multipliers?"): (None, 1),
    re.compile(r"\w*(softcap|soft_cap|softcapping)"): (None,),
}
# names of one thing in different families: a refused one may have the value of the one that the family reads
SYNONYMS = (
    ("rope_theta", "rotary_emb_base"),
    ("partial_rotary_factor", "rotary_pct", "rope_pct"),
    ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    ("sliding_window", "window_size", "attention_window_size"),
    ("use_qk_norm", "qk_norm", "qk_layernorm"),
    ("embedding_multiplier", "embedding_scale", "scale_emb"),
    ("residual_multiplier", "residual_scale"),
)


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


HARMLESS = words(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _name_or_path architectures attention_dropout
    attn_implementation chunk_size_feed_forward classifier_dropout cross_attention_hidden_size dtype finetuning_task
    gradient_checkpointing hidden_dropout id2label initializer_range is_decoder label2id name_or_path num_labels
    output_attentions output_hidden_states pad_token_id prefix problem_type return_dict sep_token_id
    task_specific_params tf_legacy_loss tie_encoder_decoder tie_last_hidden_states tokenizer_class torch_dtype
    torchscript transformers_version use_bfloat16 use_cache
    """
)
# keys of `Keys.noted` -> values without effect in transformers, and the note on other values
NOTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "rescale_prenorm_residual": (
        (None, False),
        "transformers 5.23 divides out_proj by the square root of the number of layers whenever it loads a folder; "
        "here weights are taken as they are stored",
    ),
}
# keys that every family reads
READ: dict[str, Any] = {"model_type": None, "quantization_config": None, "bos_token_id": None, "eos_token_id": None}


@dataclass(frozen=True)
class Keys:
    """Every key that a family knows, each in one of three tables, and aliases of the keys that are read."""

    read: Mapping[str, Any]  # key -> default in transformers' class of the family
    refused: Mapping[str, tuple[Any, ...]]  # key -> values without effect
    harmless: frozenset[str]
    aliases: Mapping[str, str]  # alias -> key
    noted: frozenset[str]  # harmless keys by which transformers changes stored weights
    absent: Mapping[str, Any]  # key that is read -> its value where it is absent, if its default is null

    def neutral(self, key: str) -> tuple[Any, ...] | None:
        """The values that a key may have without being refused; None: any."""
        if key in self.read or key in self.harmless or key in self.aliases:
            return None
        if key in self.refused:
            return self.refused[key]
        return next((neutral for name, neutral in NAMED.items() if name.fullmatch(key)), None)

    def elsewhere(self, key: str, data: Mapping[str, Any]) -> tuple[str, Any] | None:
        """Where a family reads what a refused key says too, and the value there; None: nowhere.

        Args:
            data: a config.json without aliases.
        """
        names = next((group for group in SYNONYMS if key in group), ())
        stated = data.get("rope_parameters") or data.get("rope_scaling")
        rotary = stated if isinstance(stated, dict) and "rope_parameters" in self.read else {}
        for name in names:
            if rotary.get(name) is not None:  # as in transformers: these come first
                return f"{name} of the rotary parameters", rotary[name]
        for name in [name for name in names if name in self.read]:
            value = data.get(name, self.read[name])
            return name, self.absent.get(name) if value is None else value
        heads, width = (data.get(name, self.read.get(name)) for name in ("num_attention_heads", "hidden_size"))
        if key == "num_key_value_heads" and heads is not None:
            return "num_attention_heads", heads
        if key == "head_dim" and isinstance(heads, int) and isinstance(width, int) and heads > 0:
            return "hidden_size / num_attention_heads", width // heads
        return None


def keys(
    read: Mapping[str, Any],
    refused: Mapping[str, tuple[Any, ...]] | None = None,
    harmless: str = "",
    aliases: Mapping[str, str] | None = None,
    absent: Mapping[str, Any] | None = None,
    noted: str = "",
) -> Keys:
    """A family's tables, which override those of all families; `harmless` and `noted` are separated by spaces."""
    read = {**READ, **read}
    others = {**REFUSED, **(refused or {})}
    known = {*read, *words(harmless), *(aliases or {})}
    return Keys(
        read=read,
        refused={key: neutral for key, neutral in others.items() if key not in known},
        harmless=(HARMLESS | GENERATION | words(harmless) | words(noted)) - read.keys(),
        aliases=aliases or {},
        noted=words(noted),
        absent=absent or {},
    )
