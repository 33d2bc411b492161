"""SmolLM3 (Hugging Face 2025): Llama with some layers without positions (Yang et al. 2025, arXiv 2501.18795).

no_rope_layers has a 1 for each layer that rotates. Layers without positions may have a window.
"""

from __future__ import annotations

from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.llama import decoder, family, sliding_layers, window_of, with_positions
from t2r_export.config.model import ModelConfig

READ = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "rope_theta": 2e6,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "no_rope_layers": None,
    "no_rope_layer_interval": 4,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}


def _config(fields: Fields) -> ModelConfig:
    rotating = _rotating(fields)
    layers = sliding_layers(fields, window_of(fields), lambda layer: not rotating[layer])
    model = decoder(fields, layers)
    return with_positions(model, [model.heads[0].positions if rotates else None for rotates in rotating])


def _rotating(fields: Fields) -> list[int]:
    """Whether the queries and keys of each layer rotate."""
    count, interval = fields.layers("num_hidden_layers"), fields.size("no_rope_layer_interval")
    found = fields.get("no_rope_layers", [int((layer + 1) % interval != 0) for layer in range(count)])
    if not isinstance(found, list) or len(found) != count or not all(one in (0, 1) for one in found):
        raise fields.wrong("no_rope_layers", f"{count} numbers, 1 for a layer that rotates and else 0", found)
    return found


SMOLLM3 = family(READ, _config)
