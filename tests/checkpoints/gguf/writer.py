"""Writes small GGUF files from random models of transformers, as llama.cpp's converters do.

Names of tensors come from the package gguf's table, and the changes of tensors are written down here as the converters
make them, so that both are independent of the code under test.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

Values = dict[str, Any]
# endings of names that only transformers has; gate_up: what converters write as two tensors
OTHERS = {
    "experts.gate_up_proj": "ffn_gate_up_exps",
    "experts.down_proj": "ffn_down_exps",
    "shared_mlp.input_linear.weight": "ffn_gate_up_shexp.weight",
    "moe.router.weight": "ffn_gate_inp.weight",
    "dt_bias": "ssm_dt.bias",
    "e_score_correction_bias": "exp_probs_b.bias",
}
Arrays = dict[str, np.ndarray[Any, Any]]


def write(
    path: Path,
    architecture: str,
    values: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray[Any, Any]],
    kinds: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    **options: Any,
) -> Path:
    """Write a file.

    Args:
        values: keys, without the architecture unless they have another prefix.
        kinds: types of tensors by name; F32 if absent.
    """
    writer = gguf.GGUFWriter(path, architecture, **options)
    for key, value in values.items():
        whole = key if key.startswith(("general.", "tokenizer.", "split.")) else f"{architecture}.{key}"
        if isinstance(value, bool):
            writer.add_bool(whole, value)
        elif isinstance(value, int):
            writer.add_uint32(whole, value)
        elif isinstance(value, float):
            writer.add_float32(whole, value)
        elif isinstance(value, str):
            writer.add_string(whole, value)
        else:
            writer.add_array(whole, list(value))
    for name, tensor in tensors.items():
        kind = (kinds or {}).get(name)
        if kind is None:
            writer.add_tensor(name, np.ascontiguousarray(tensor, np.float32))
        else:
            writer.add_tensor(name, gguf.quants.quantize(tensor.astype(np.float32), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors_of(model: Any, architecture: str) -> Arrays:
    """The tensors of a model of transformers by their names in a file, unchanged; a tied head is left out."""
    kind = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, model.config.num_hidden_layers)
    found = {}
    for name, tensor in model.state_dict().items():
        if model.config.tie_word_embeddings and name in ("lm_head.weight", "embed_out.weight"):
            continue
        known = name.replace("model.", "backbone.", 1) if architecture == "nemotron_h" else name
        known = known.removeprefix("transformer.") if architecture == "bloom" else known
        whole = names.get_name(known, try_suffixes=(".weight", ".bias"))
        if whole is None and (ours := next((ours for end, ours in OTHERS.items() if name.endswith(end)), None)):
            [layer] = re.findall(r"[.](\d+)[.]", name)
            whole = f"blk.{layer}.{ours}"
        assert whole is not None, name
        found[whole] = tensor.float().numpy()
    return found


def sizes(config: Any, **others: Any) -> Values:
    """Keys of sizes that most architectures have."""
    return {
        "vocab_size": config.vocab_size,
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "attention.head_count": config.num_attention_heads,
        **{
            key: getattr(config, name)
            for key, name in (
                ("feed_forward_length", "intermediate_size"),
                ("attention.head_count_kv", "num_key_value_heads"),
            )
            if hasattr(config, name)
        },
        **others,
    }


def rms(config: Any, theta: float | None = None, **others: Any) -> Values:
    """Keys of a model with RMS norms and rotary positions. Args: theta: None: that of the config."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return sizes(
        config,
        **{
            "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
            "attention.key_length": head,
            "attention.value_length": head,
            "rope.dimension_count": head,
            "rope.freq_base": config.rope_parameters["rope_theta"] if theta is None else theta,
            **others,
        },
    )


def adjacent(tensors: Arrays, heads: int, kv_heads: int) -> Arrays:
    """Rows of q and k from rotation of halves to rotation of neighbours."""

    def turned(tensor: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
        split = tensor.reshape(count, 2, tensor.shape[0] // count // 2, *tensor.shape[1:])
        return split.swapaxes(1, 2).reshape(tensor.shape)

    counts = {".attn_q.": heads, ".attn_k.": kv_heads}
    return {
        name: next((turned(tensor, count) for part, count in counts.items() if part in name), tensor)
        for name, tensor in tensors.items()
    }


def changed(tensors: Arrays, ending: str, change: Callable[[Any], Any]) -> Arrays:
    """The tensors with a change of those whose names end so."""
    return {name: change(tensor) if name.endswith(ending) else tensor for name, tensor in tensors.items()}


def llama3_factors(rope: Mapping[str, Any], head: int) -> np.ndarray[Any, Any]:
    """The tensor rope_freqs.weight of Llama 3's scaling."""
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    original, found = rope["original_max_position_embeddings"], []
    for place in range(0, head, 2):
        wave = 2 * math.pi * rope["rope_theta"] ** (place / head)
        smooth = min(max((original / wave - low) / (high - low), 0.0), 1.0)
        found.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(found, np.float32)


def random_model(name: str, config: Mapping[str, Any], spread: float = 0.3) -> Any:
    """A model of transformers, such as Llama, with weights large enough that each of them matters."""
    import transformers

    torch.manual_seed(0)
    kind = getattr(transformers, f"{name}ForCausalLM", None) or getattr(transformers, f"{name}LMHeadModel")
    model = kind(kind.config_class(**config)).eval()
    biases = [buffer for name, buffer in model.named_buffers() if name.endswith("bias")]  # of choices of experts
    for parameter in [*model.parameters(), *biases]:
        torch.nn.init.normal_(parameter, mean=0.1 if parameter.ndim == 1 else 0.0, std=spread)
    return model
