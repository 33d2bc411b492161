"""Jamba in GGUF files: Mamba layers, some with attention in their place, and some with experts."""

from __future__ import annotations

from collections.abc import Sequence

from t2r_export.checkpoints.gguf.architecture import (
    ATTENTION,
    ENDS,
    EXPERT,
    Architecture,
    Config,
    anywhere,
    sizes_by_layer,
)
from t2r_export.checkpoints.gguf.metadata import Metadata
from t2r_export.checkpoints.gguf.recurrent import OF_MAMBA, of_mamba1

FORWARD = ("gate", "up", "down")
OF_JAMBA = {
    **ATTENTION,
    **{name: place.replace("mixer.", "mamba.") for name, place in OF_MAMBA.items()},
    **{f"ssm_{part}_norm": f"mamba.{part}_layernorm" for part in ("dt", "b", "c")},
    "attn_norm": "input_layernorm",
    "ffn_norm": "pre_ff_layernorm",
    "ffn_gate_inp": "feed_forward.router",
    **{f"ffn_{part}": f"feed_forward.{part}_proj" for part in FORWARD},
    **{f"ffn_{part}_exps": f"feed_forward.experts.{EXPERT}.{part}_proj" for part in FORWARD},
}


def _jamba(data: Metadata) -> Config:
    found, kv_heads = sizes_by_layer(data, "jamba")
    width, inner = max(found["hidden_size"], 1), data.get("ssm.inner_size")
    if inner % width:
        raise data.wrong("jamba.ssm.inner_size", f"a multiple of embedding_length={width}", inner)
    experts = data.get("expert_count", int, 0)
    sparse = [f"blk.{layer}.ffn_gate_inp.weight" in data.tensors for layer in range(len(kv_heads))]
    del found["head_dim"], found["rope_parameters"]
    return {
        **found,
        **_period(data, "attn", "attention", [count > 0 for count in kv_heads]),
        **_period(data, "expert", "experts", sparse),
        "intermediate_size": data.same("feed_forward_length"),
        "num_experts": experts if any(sparse) else 0,
        "num_experts_per_tok": data.get("expert_used_count", int, 0),
        "mamba_d_state": data.get("ssm.state_size"),
        "mamba_d_conv": data.get("ssm.conv_kernel"),
        "mamba_expand": inner // width,
        "mamba_dt_rank": data.get("ssm.time_step_rank"),
        "mamba_conv_bias": anywhere(data, "ssm_conv1d.bias"),
        "mamba_proj_bias": anywhere(data, "ssm_in.bias"),
    }


def _period(data: Metadata, name: str, what: str, layers: Sequence[bool]) -> Config:
    """Keys of the period of layers that have something, and of the first one's place; beyond the layers if none has."""
    places = [number for number, each in enumerate(layers) if each]
    first = places[0] if places else len(layers)
    period = places[1] - first if len(places) > 1 else len(layers) + 1
    if first >= period or places != list(range(first, len(layers), period)):
        raise data.wrong("jamba", f"a model with {what} in every nth layer", places, "use another model")
    return {f"{name}_layer_period": period, f"{name}_layer_offset": first}


JAMBA: dict[str, Architecture] = {
    "jamba": Architecture(_jamba, OF_JAMBA, ENDS | {"output_norm": "model.final_layernorm"}, changes=of_mamba1)
}
