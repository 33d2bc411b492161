"""RWKV-7 in GGUF files: the folder that they were written from."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from checkpoints.gguf.writer import Arrays, Values, write
from checkpoints.importers.peers import TOLERANCE, error
from checkpoints.importers.test_rwkv7 import HIDDEN, LAYERS, RANKS, SIZE, D, V, definition, tensors
from t2r_export.checkpoints import checkpoint
from t2r_runtime.errors import UserError

EPS = 1e-3
KEYS: Values = {
    "context_length": 1 << 20,
    "embedding_length": D,
    "block_count": LAYERS,
    "attention.layer_norm_epsilon": EPS,
    "wkv.head_size": SIZE,
    "attention.decay_lora_rank": RANKS["w"],
    "attention.iclr_lora_rank": RANKS["a"],
    "attention.value_residual_mix_lora_rank": RANKS["v"],
    "attention.gate_lora_rank": RANKS["g"],
    "feed_forward_length": HIDDEN,
    "attention.head_count": 0,
    "token_shift_count": 2,
    "tokenizer.ggml.model": "rwkv",
    "tokenizer.ggml.tokens": ["<s>", *(f"\\x{number:02x}" for number in range(V - 1))],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 0,
    "tokenizer.ggml.eot_token_id": 11,
}
# as converters change the names before they look them up
SPELT = {
    "ffn_norm": "ln2",
    "ffn": "feed_forward",
    "g_norm": "ln_x",
    "attn": "attention",
    "_lora.lora.0.weight": "1.weight",
    "_lora.lora.2.weight": "2.weight",
    "_lora.lora.2.bias": "0.weight",
}


def converted(stored: Arrays) -> Arrays:
    """Tensors of a folder as a file has them: shifts in one tensor, and unused ones in the first layer."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.RWKV7, LAYERS)
    found: Arrays = {}
    for name, x in stored.items():
        if ".attn.x_" in name:
            continue
        for theirs, spelt in SPELT.items():
            name = name.replace(theirs, spelt)
        whole = names.get_name(name, (".weight", ".bias"))
        assert whole is not None, name
        found[whole if whole.endswith((".weight", ".bias")) else f"{whole}.weight"] = np.squeeze(x)
    for layer in range(LAYERS):
        parts = [stored[f"model.layers.{layer}.attn.x_{part}"] for part in "rwkvag"]
        found[f"blk.{layer}.time_mix_lerp_fused.weight"] = np.stack(parts)
        name = f"blk.{layer}.time_mix_r_k.weight"
        found[name] = found[name].flatten()
    return found | {f"blk.0.time_mix_v{n}.weight": found[f"blk.0.time_mix_a{n}.weight"] for n in range(3)}


def test_logits_are_those_of_the_definition_and_tokens_are_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", "rwkv7", KEYS, converted(tensors()))
    loaded = checkpoint.load(path)
    ids = torch.randint(0, V, (47,), generator=torch.Generator().manual_seed(3))
    expected, _ = definition({name: x.astype(np.float64) for name, x in tensors().items()}, ids.numpy(), EPS)
    with torch.no_grad():
        assert error(loaded.model(ids[None])[0], expected) < TOLERANCE
    assert loaded.tokenizer is None
    assert loaded.notes == ("tokenizer.ggml.model rwkv is not read: the model runs with token numbers",)
    assert (loaded.config.bos_token, loaded.config.eos_tokens) == (0, (0, 11))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"token_shift_count": 1}, "rwkv7.token_shift_count in .* to be 2; received 1; use another model"),
        ({"wkv.head_size": 5}, "head_dim in model.gguf to be a divisor of hidden_size=12; received 5"),
        ({"attention.gate_lora_rank": 9}, "attn.g_lora.lora.0.weight 8×12 instead of 9×12"),
        ({"tokenizer.ggml.eos_token_id": V}, "tokenizer.ggml.eos_token_id in .* to be a token below 31"),
    ],
)
def test_what_it_cannot_be_is_refused(changes: Values, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", "rwkv7", {**KEYS, **changes}, converted(tensors()))
    with pytest.raises(UserError, match=message):
        checkpoint.load(path)
