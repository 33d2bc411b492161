"""RWKV-7 in GGUF files, as a folder of flash-linear-attention has it."""

from __future__ import annotations

from t2r_export.checkpoints.gguf.architecture import Architecture, Change, Config
from t2r_export.checkpoints.gguf.metadata import Metadata
from t2r_export.checkpoints.gguf.rope import NUMBER

SHIFTED = "rwkvag"  # what is made of a token and the one before it, in a file's order
RANKS = {"decay": "decay", "a": "iclr", "v": "value_residual_mix", "gate": "gate"}
# beginnings of a file's names
TIME, CHANNEL = "time_mix", "channel_mix"
OF_RWKV7: dict[str, str | tuple[str, ...]] = {
    "attn_norm": "attn_norm",
    "attn_norm_2": "ffn_norm",
    f"{TIME}_lerp_fused.weight": tuple(f"attn.x_{part}" for part in SHIFTED),
    **{f"{TIME}_{part}1": f"attn.{part}_lora.lora.0" for part in "wavg"},
    **{f"{TIME}_{part}2": f"attn.{part}_lora.lora.2" for part in "wavg"},
    **{f"{TIME}_{part}0.weight": f"attn.{part}_lora.lora.2.bias" for part in "wav"},
    **{f"{TIME}_{name}.weight": f"attn.{name}" for name in ("k_k", "k_a", "r_k")},
    **{f"{TIME}_{name}": f"attn.{name[0]}_proj" for name in ("receptance", "key", "value", "output")},
    f"{TIME}_ln": "attn.g_norm",
    f"{CHANNEL}_lerp_k.weight": "ffn.x_k",
    f"{CHANNEL}_key": "ffn.key",
    f"{CHANNEL}_value": "ffn.value",
}
ENDS = {
    "token_embd": "model.embeddings",
    "token_embd_norm": "model.layers.0.pre_norm",
    "output_norm": "model.norm",
    "output": "lm_head",
}
# llama.cpp wants them in the first layer too, which mixes no values
UNUSED = frozenset(f"blk.0.{TIME}_v{number}.weight" for number in range(3))


def _rwkv7(data: Metadata) -> Config:
    data.only("token_shift_count", 2)
    return {
        "model_type": "rwkv7",
        "vocab_size": data.rows("token_embd.weight"),
        "hidden_size": data.get("embedding_length"),
        "intermediate_size": data.same("feed_forward_length"),
        "num_hidden_layers": data.layers,
        "head_dim": data.get("wkv.head_size"),
        **{f"{ours}_low_rank_dim": data.get(f"attention.{name}_lora_rank") for ours, name in RANKS.items()},
        "norm_first": "token_embd_norm.weight" in data.tensors,
        "norm_eps": data.get("attention.layer_norm_epsilon", NUMBER),
        "tie_word_embeddings": "output.weight" not in data.tensors,
    }


def _of_rwkv7(config: Config) -> dict[str, Change]:
    def shift(number: int) -> Change:
        return lambda x: x.reshape(len(SHIFTED), 1, 1, -1)[number]

    size = max(config["head_dim"], 1)
    return {
        **{f"attn.x_{part}": shift(number) for number, part in enumerate(SHIFTED)},
        f"{TIME}_r_k.weight": lambda x: x.reshape(-1, size),
        f"{CHANNEL}_lerp_k.weight": lambda x: x.flatten(),
    }


RWKV7: dict[str, Architecture] = {"rwkv7": Architecture(_rwkv7, OF_RWKV7, ENDS, changes=_of_rwkv7, unused=UNUSED)}
