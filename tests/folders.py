"""Small Hugging Face folders with random weights, written without transformers. All sizes differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 31,
    "hidden_size": 18,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 4,
    "intermediate_size": 11,
    "max_position_embeddings": 40,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000.0,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "vocab_size": 29,
    "n_embd": 12,
    "n_layer": 2,
    "n_head": 3,
    "n_inner": 17,
    "n_positions": 23,
    "tie_word_embeddings": True,
    "eos_token_id": [5, 7],
}


def llama_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of `LLAMA`'s tensors."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (31, 18),
        "model.norm.weight": (18,),
        "lm_head.weight": (31, 18),
    }
    for layer in range(2):
        block = {
            "input_layernorm": (18,),
            "post_attention_layernorm": (18,),
            "self_attn.q_proj": (24, 18),
            "self_attn.k_proj": (12, 18),
            "self_attn.v_proj": (12, 18),
            "self_attn.o_proj": (18, 24),
            "mlp.gate_proj": (11, 18),
            "mlp.up_proj": (11, 18),
            "mlp.down_proj": (18, 11),
        }
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in block.items()}
    return shapes


def gpt2_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of `GPT2`'s tensors."""
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (29, 12),
        "transformer.wpe.weight": (23, 12),
        "transformer.ln_f.weight": (12,),
        "transformer.ln_f.bias": (12,),
    }
    for layer in range(2):
        block = {"ln_1": (12,), "ln_2": (12,)}
        block |= {"attn.c_attn": (12, 36), "attn.c_proj": (12, 12), "mlp.c_fc": (12, 17), "mlp.c_proj": (17, 12)}
        for name, shape in block.items():
            shapes[f"transformer.h.{layer}.{name}.weight"] = shape
            shapes[f"transformer.h.{layer}.{name}.bias"] = shape[-1:]
    return shapes


def random_tensors(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {name: torch.randn(shape, generator=generator) * 0.3 for name, shape in shapes.items()}


def write_llama(folder: Path, **changes: Any) -> Path:
    """A folder with one safetensors file. `changes` go into its config.json; None removes a key."""
    return _write(folder, LLAMA, llama_shapes(), changes)


def write_gpt2(folder: Path, **changes: Any) -> Path:
    return _write(folder, GPT2, gpt2_shapes(), changes)


def write_lora(folder: Path, **changes: Any) -> None:
    """Write an adapter of peft for a projection of `LLAMA`. `changes` go into its adapter_config.json."""
    shapes = {"lora_A.weight": (3, 18), "lora_B.weight": (24, 3)}
    tensors = {f"base_model.model.model.layers.1.self_attn.q_proj.{name}": shape for name, shape in shapes.items()}
    save_file(random_tensors(tensors), folder / "adapter_model.safetensors")
    said = {
        "peft_type": "LORA",
        "r": 3,
        "lora_alpha": 5,
        "alpha_pattern": {},
        "target_modules": ["q_proj"],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps({**said, **changes}))


def write_tokens(folder: Path) -> None:
    """Write the files of special tokens and of chat templates."""
    data = {
        "tokenizer_config.json": {"bos_token": "a", "extra_special_tokens": ["b"], "chat_template": "{{ bos_token }}"},
        "special_tokens_map.json": {"eos_token": {"content": "c", "lstrip": True}, "pad_token": "<pad>"},
        "added_tokens.json": {"<new>": 10},
    }
    for name, said in data.items():
        (folder / name).write_text(json.dumps(said))
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("{{ eos_token }}")


def change_tensors(folder: Path, **changes: Tensor | None) -> None:
    """Replace, add or (None) remove tensors of a folder's one file; "__" in a keyword stands for a dot."""
    file = folder / "model.safetensors"
    tensors: dict[str, Tensor | None] = {**load_file(file)}
    tensors |= {name.replace("__", "."): tensor for name, tensor in changes.items()}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, file)


def change_config(folder: Path, **changes: Any) -> None:
    """Set keys of config.json; None removes a key."""
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def shard(folder: Path) -> dict[str, str]:
    """Split a folder's one file into two shards with an index; returns the index's weight_map."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {}
    for number, part in enumerate((names[:5], names[5:]), start=1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def _write(folder: Path, config: dict[str, Any], shapes: dict[str, tuple[int, ...]], changes: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(random_tensors(shapes), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    change_config(folder, **changes)
    return folder
