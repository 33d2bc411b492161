"""Write a softmax model for other decoders: a Hugging Face folder, or GGUF.

All candidates get the same weights, so tests can compare their outputs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from t2r_export.checkpoints.importers.llama import LLAMA
from t2r_export.checkpoints.weights import weight_shapes
from t2r_export.config.model import ModelConfig
from t2r_export.config.parts import AttentionConfig, DenseConfig
from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError

LONGEST = 1 << 14  # positions declared for models without a limit


def write_folder(model: Transformer, folder: Path) -> Path:
    """Write a float32 Hugging Face folder of the Llama family with a dummy tokenizer.

    Raises:
        UserError: a model of another family.
    """
    c = model.config
    a, dense = _parts(c)
    rms = a.norm is not None and a.norm.kind == "rms"
    if not rms or not dense.gated or a.rotary is None or a.rotary.scaling:
        raise UserError(
            "a model of the Llama family for a Hugging Face folder", c.positions_summary, "leave that engine out"
        )
    folder.mkdir(parents=True)
    weights = model.state_dict()
    tensors = {name: source.stored(weights).contiguous() for name, source in LLAMA.sources(c, weight_shapes(c)).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_llama_config(c)))
    words = {f"<{i}>": i for i in range(c.vocab_size)}
    tokenizer = Tokenizer(models.BPE(words, []))
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<1>", "eos_token": "<2>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return folder


def _parts(config: ModelConfig) -> tuple[AttentionConfig, DenseConfig]:
    """The parts of a layer; all layers are alike."""
    attention, dense = config.layers[0].parts
    assert isinstance(attention, AttentionConfig) and isinstance(dense, DenseConfig)
    return attention, dense


def _llama_config(c: ModelConfig) -> dict[str, Any]:
    a, dense = _parts(c)
    assert a.rotary is not None
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": c.vocab_size,
        "hidden_size": c.width,
        "num_hidden_layers": len(c.layers),
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_size,
        "intermediate_size": dense.size,
        "hidden_act": "silu",
        "rms_norm_eps": a.norm_eps,
        "rope_theta": a.rotary.theta,
        "tie_word_embeddings": c.tied_head,
        "max_position_embeddings": LONGEST,
        "attention_bias": a.qkv_bias,
        "mlp_bias": dense.bias,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }


def write_gguf(model: Transformer, path: Path, form: str, words: bool = False) -> Path:
    """Write a GGUF file for llama.cpp: matrices as `form` (F32, Q8_0, Q4_0), the rest float32.

    Args:
        words: with a vocabulary of `<0>`, `<1>`, …, which a server needs; otherwise with none.

    Raises:
        UserError: a model of another family.
    """
    import gguf

    c = model.config
    a, dense = _parts(c)
    llama = a.rotary is not None
    if not llama and c.max_positions is None:
        raise UserError("a model of the Llama or GPT-2 family for GGUF", c.positions_summary, "leave that engine out")
    kind = gguf.GGMLQuantizationType[form]
    writer = gguf.GGUFWriter(path, "llama" if llama else "gpt2")
    writer.add_context_length(c.max_positions or LONGEST)
    writer.add_embedding_length(c.width)
    writer.add_block_count(len(c.layers))
    writer.add_feed_forward_length(dense.size)
    writer.add_head_count(a.heads)
    writer.add_vocab_size(c.vocab_size)
    if words:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("default")
        writer.add_token_list([f"<{i}>" for i in range(c.vocab_size)])
        writer.add_token_types([gguf.TokenType.NORMAL] * c.vocab_size)
        writer.add_token_merges(["< 0"])
        writer.add_eos_token_id(2)
    else:
        writer.add_tokenizer_model("no_vocab")
    if llama:
        assert a.rotary is not None
        writer.add_head_count_kv(a.kv_heads)
        writer.add_layer_norm_rms_eps(a.norm_eps)
        writer.add_rope_freq_base(a.rotary.theta)
        writer.add_rope_dimension_count(a.head_size)
    else:
        writer.add_layer_norm_eps(a.norm_eps)
    for name, array in _llama_tensors(model) if llama else _gpt2_tensors(model):
        if array.ndim == 2 and name != "position_embd.weight":
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


Named = Iterator[tuple[str, NDArray[np.float32]]]


def _llama_tensors(model: Transformer) -> Named:
    c = model.config
    w = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    yield "token_embd.weight", w["embedding.weight"]
    yield "output_norm.weight", w["norm.weight"]
    if not c.tied_head:
        yield "output.weight", w["head.weight"]
    attention, _ = _parts(c)
    heads, kv_heads = attention.heads, attention.kv_heads
    for layer in range(len(c.layers)):
        ours, theirs = f"blocks.{layer}", f"blk.{layer}"
        yield f"{theirs}.attn_norm.weight", w[f"{ours}.norms.0.weight"]
        yield f"{theirs}.attn_q.weight", _neighbours(w[f"{ours}.parts.0.q.weight"], heads)
        yield f"{theirs}.attn_k.weight", _neighbours(w[f"{ours}.parts.0.k.weight"], kv_heads)
        yield f"{theirs}.attn_v.weight", w[f"{ours}.parts.0.v.weight"]
        yield f"{theirs}.attn_output.weight", w[f"{ours}.parts.0.o.weight"]
        yield f"{theirs}.ffn_norm.weight", w[f"{ours}.norms.1.weight"]
        for part in ("gate", "up", "down"):
            yield f"{theirs}.ffn_{part}.weight", w[f"{ours}.parts.1.{part}.weight"]


def _neighbours(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of a projection in llama.cpp's order: it rotates adjacent pairs, t2r rotates halves of a head."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def _gpt2_tensors(model: Transformer) -> Named:
    w = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    yield "token_embd.weight", w["embedding.weight"]
    yield "position_embd.weight", w["positions.table.weight"]
    for kind in ("weight", "bias"):
        yield f"output_norm.{kind}", w[f"norm.{kind}"]
        for layer in range(len(model.config.layers)):
            ours, theirs = f"blocks.{layer}", f"blk.{layer}"
            yield f"{theirs}.attn_norm.{kind}", w[f"{ours}.norms.0.{kind}"]
            yield f"{theirs}.attn_qkv.{kind}", np.concatenate([w[f"{ours}.parts.0.{x}.{kind}"] for x in "qkv"])
            yield f"{theirs}.attn_output.{kind}", w[f"{ours}.parts.0.o.{kind}"]
            yield f"{theirs}.ffn_norm.{kind}", w[f"{ours}.norms.1.{kind}"]
            yield f"{theirs}.ffn_up.{kind}", w[f"{ours}.parts.1.up.{kind}"]
            yield f"{theirs}.ffn_down.{kind}", w[f"{ours}.parts.1.down.{kind}"]
