"""Random transformers models of recurrent and hybrid families, built from these configs. All sizes differ."""

from __future__ import annotations

from families import Family

SIZES = {"vocab_size": 31, "hidden_size": 12, "num_hidden_layers": 2}
MAMBA2 = Family(
    "Mamba2",
    {**SIZES, "num_heads": 6, "head_dim": 4, "state_size": 5, "n_groups": 3, "chunk_size": 16},
)
MAMBA = Family("Mamba", {**SIZES, "state_size": 5, "time_step_rank": 7})
JAMBA = Family(
    "Jamba",
    {
        **SIZES,
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "intermediate_size": 8,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "num_experts": 5,
        "num_experts_per_tok": 3,
        "mamba_d_state": 5,
        "mamba_d_conv": 3,
        "mamba_dt_rank": 7,
        "rms_norm_eps": 1e-3,
    },
)
GRANITE = Family(
    "GraniteMoeHybrid",
    {
        **SIZES,
        "hidden_size": 24,
        "mamba_expand": 1,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "shared_intermediate_size": 11,
        "num_local_experts": 0,
        "layer_types": ["mamba", "attention", "mamba"],
        "mamba_n_heads": 6,
        "mamba_n_groups": 3,
        "mamba_d_state": 5,
        "mamba_chunk_size": 16,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.6,
        "logits_scaling": 2.0,
        "attention_multiplier": 0.4,
        "time_step_limit": (0.3, 0.9),
    },
)
ATTENTION = {"intermediate_size": 19, "num_attention_heads": 6, "num_key_value_heads": 3}
HYBRID = {**SIZES, **ATTENTION, "hidden_size": 24, "num_hidden_layers": 4}
LFM2 = Family("Lfm2", {**HYBRID, "block_multiple_of": 5, "full_attn_idxs": [1]})
LFM2_MOE = Family(
    "Lfm2Moe",
    {
        **HYBRID,
        "layer_types": ["conv", "full_attention", "conv", "conv"],
        "num_dense_layers": 1,
        "num_experts": 5,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 8,
        "routed_scaling_factor": 1.5,
    },
)
ZAMBA2 = Family(
    "Zamba2",
    {
        **SIZES,
        "hidden_size": 24,
        "num_hidden_layers": 5,
        "layers_block_type": ["mamba", "hybrid", "hybrid", "mamba", "hybrid"],
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "intermediate_size": 11,
        "n_mamba_heads": 6,
        "mamba_ngroups": 3,
        "mamba_d_state": 5,
        "chunk_size": 16,
        "adapter_rank": 7,
        "num_mem_blocks": 2,
        "use_shared_attention_adapter": True,
        "use_mem_rope": True,
        "add_bias_linear": True,
        "rms_norm_eps": 1e-3,
        "time_step_min": 0.3,
    },
)
FALCON = Family(
    "FalconH1",
    {
        **SIZES,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "intermediate_size": 11,
        "mamba_d_ssm": 24,
        "mamba_n_heads": 6,
        "mamba_n_groups": 3,
        "mamba_d_state": 5,
        "mamba_chunk_size": 16,
        "time_step_limit": (0.3, 0.9),
        "embedding_multiplier": 2.5,
        "lm_head_multiplier": 1.5,
        "key_multiplier": 0.8,
        "attention_in_multiplier": 1.1,
        "attention_out_multiplier": 0.9,
        "ssm_in_multiplier": 1.2,
        "ssm_out_multiplier": 0.7,
        "ssm_multipliers": [0.5, 0.6, 0.7, 0.8, 0.9],
        "mlp_multipliers": [0.6, 0.4],
    },
)
QWEN3_5 = Family(
    "Qwen3_5",
    {
        **HYBRID,
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"],
        "head_dim": 8,
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 5,
        "linear_value_head_dim": 4,
        "rms_norm_eps": 0.05,  # else float32 rounding dominates heads with small output
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
    },
    config="Qwen3_5Text",
    spread=0.15,
)
OLMO = Family(
    "OlmoHybrid",
    {
        **HYBRID,
        "linear_num_key_heads": 3,
        "linear_key_head_dim": 5,
        "linear_value_head_dim": 4,
        "linear_conv_kernel_dim": 3,
        "rms_norm_eps": 0.05,
        "pad_token_id": 0,
        "rope_parameters": {"rope_type": "default", "rope_theta": None},
    },
    spread=0.2,
)
RECURRENT_GEMMA = Family(
    "RecurrentGemma",
    {
        **HYBRID,
        "num_key_value_heads": 2,
        "lru_width": 24,  # with another size, transformers cannot read one token
        "intermediate_size": 22,
        "attention_window_size": 7,
        "block_types": ["recurrent", "attention", "recurrent"],
        "logits_soft_cap": 3.0,
        "attention_bias": True,
    },
    spread=0.2,
)
LFM3 = Family(
    "Lfm3",
    {
        **HYBRID,
        "num_hidden_layers": 5,
        "head_dim": 8,
        "sliding_window": 6,
        "conv_L_cache": 5,
        "conv_bias": True,
        "attention_bias": True,
        "pad_token_id": 0,
        "norm_eps": 0.05,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            "full_attention": {"rope_type": "proportional", "rope_theta": 30.0, "partial_rotary_factor": 0.5},
        },
    },
    spread=0.2,
)
NEMOTRON = Family(
    "NemotronH",
    {
        "vocab_size": 31,
        "hidden_size": 12,
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "intermediate_size": 11,
        "ssm_state_size": 5,
        "mamba_num_heads": 6,
        "mamba_head_dim": 4,
        "n_groups": 3,
        "chunk_size": 16,
        "time_step_min": 0.4,
    },
)
BAMBA = Family(
    "Bamba",
    {
        **HYBRID,
        "num_hidden_layers": 3,
        "attn_layer_indices": [1],
        "mamba_n_heads": 6,
        "mamba_n_groups": 3,
        "mamba_d_state": 5,
        "mamba_expand": 1,
        "mamba_chunk_size": 16,
        "time_step_limit": (0.3, 0.9),
    },
)
EXPERTS = {
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 11,
    "num_experts": 5,
    "num_experts_per_tok": 3,
}
QWEN3_NEXT = Family("Qwen3Next", {**QWEN3_5.sizes, **EXPERTS, "mlp_only_layers": [1]}, spread=QWEN3_5.spread)
QWEN3_5_MOE = Family(
    "Qwen3_5Moe",
    {key: value for key, value in {**QWEN3_5.sizes, **EXPERTS}.items() if key != "intermediate_size"},
    config="Qwen3_5MoeText",
    spread=QWEN3_5.spread,
)
FAMILIES = {
    "mamba2": MAMBA2.changed(time_step_limit=(0.3, 0.9), use_bias=True),
    "lfm2": LFM2,
    "lfm2 biases": LFM2.changed(
        layer_types=["full_attention", "conv", "conv", "full_attention"],
        conv_bias=True,
        conv_L_cache=4,
        tie_word_embeddings=False,
        block_auto_adjust_ff_dim=False,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        norm_eps=1e-3,
    ),
    "lfm2-moe": LFM2_MOE,
    "lfm2-moe by sigmoids alone": LFM2_MOE.changed(
        use_expert_bias=False, norm_topk_prob=False, num_dense_layers=0, num_experts_per_tok=1, conv_bias=True
    ),
    "qwen3.5": QWEN3_5,
    "qwen3.5 biases, tied": QWEN3_5.changed(
        linear_conv_kernel_dim=3,
        linear_num_key_heads=6,
        attention_bias=True,
        tie_word_embeddings=True,
        layer_types=["full_attention", "linear_attention"] * 2,
        rms_norm_eps=0.1,
    ),
    "qwen3.5-moe": QWEN3_5_MOE,
    "qwen3-next": QWEN3_NEXT,
    "olmo-hybrid": OLMO.changed(attention_bias=True),
    "lfm3": LFM3,
    "recurrent-gemma": RECURRENT_GEMMA,
    "mamba2 tied": MAMBA2.changed(use_conv_bias=False, conv_kernel=3, n_groups=1, tie_word_embeddings=True),
    "mamba": MAMBA.changed(use_bias=True, tie_word_embeddings=False),
    "mamba tied": MAMBA.changed(use_conv_bias=False, conv_kernel=3, expand=3, tie_word_embeddings=True),
    "falcon-mamba": Family("FalconMamba", {**MAMBA.sizes, "use_bias": True, "mixer_rms_eps": 1e-3}),
    "jamba": JAMBA.changed(mamba_proj_bias=True),
    "granite": GRANITE.changed(attention_bias=True, mamba_proj_bias=True),
    "granite rotary": GRANITE.changed(position_embedding_type="rope", tie_word_embeddings=True),
    "granite experts": GRANITE.changed(num_local_experts=5, num_experts_per_tok=3, intermediate_size=8),
    "granite dense": GRANITE.changed(position_embedding_type="rope", layer_types=["attention"] * 3, hidden_act="gelu"),
    "bamba": BAMBA.changed(attention_bias=True, mamba_proj_bias=True, mlp_bias=True),
    "nemotron-h": NEMOTRON.changed(use_bias=True, mlp_bias=True),
    "nemotron-h pattern": NEMOTRON.changed(
        layers_block_type=None, hybrid_override_pattern="-MM*", mlp_hidden_act="silu"
    ),
    "zamba2": ZAMBA2,
    "zamba2 one block": ZAMBA2.changed(
        num_key_value_heads=3, num_mem_blocks=1, use_shared_attention_adapter=False, use_mem_rope=False
    ),
    "falcon-h1": FALCON.changed(projectors_bias=True, mamba_proj_bias=True, attention_bias=True, mlp_bias=True),
    "falcon-h1 norm": FALCON.changed(mamba_rms_norm=True, tie_word_embeddings=True, mamba_d_ssm=None),
    "falcon-h1 norm behind": FALCON.changed(mamba_rms_norm=True, mamba_norm_before_gate=False, mamba_conv_bias=False),
}
