"""Random transformers models of softmax families, built from these configs. All sizes differ."""

from __future__ import annotations

from families import Family

OWN = {"vocab_size": 31, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 6, "pad_token_id": 0}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 60}
MHA = {**OWN, **ENDS, "intermediate_size": 11}
GQA = {**MHA, "num_key_value_heads": 3}
OPT = {**OWN, **ENDS, "ffn_dim": 11}
GEMMA3 = {**GQA, "sliding_window": 5, "query_pre_attn_scalar": 7}
GRANITE = {"embedding_multiplier": 3.0, "residual_multiplier": 0.6, "logits_scaling": 2.0, "attention_multiplier": 0.4}
FULL, SLIDING = "full_attention", "sliding_attention"
BY_LAYER = {
    FULL: {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
    SLIDING: {"rope_type": "default", "rope_theta": 30.0},
}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 3.0, "original_max_position_embeddings": 20}
NTK = {"rope_type": "dynamic", "rope_theta": 500.0, "alpha": 50.0, "factor": 1.0}
GROWING = {"rope_theta": 500.0, "original_max_position_embeddings": 20, "llama_4_scaling_beta": 0.9}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 500.0,
    "partial_rotary_factor": 0.5,
    "short_factor": [1.7],
    "long_factor": [1.7],
}
QWEN2_MOE = {
    **GQA,
    "moe_intermediate_size": 8,
    "shared_expert_intermediate_size": 11,
    "num_experts": 5,
    "num_experts_per_tok": 3,
}
GLM4_MOE = {
    **GQA,
    "moe_intermediate_size": 8,
    "n_routed_experts": 5,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.5,
}
FAMILIES = {
    "gpt-neox": Family("GPTNeoX", {**MHA, "rotary_pct": 0.5}),
    "gpt-neox one by one": Family(
        "GPTNeoX",
        {
            **MHA,
            "num_attention_heads": 3,
            "use_parallel_residual": False,
            "attention_bias": False,
            "tie_word_embeddings": True,
        },
    ),
    "opt": Family("OPT", OPT),
    "opt norms behind": Family("OPT", {**OPT, "do_layer_norm_before": False, "enable_bias": False}),
    "smollm3": Family("SmolLM3", {**GQA, "no_rope_layer_interval": 2, "head_dim": 10}),
    "smollm3 windows": Family(
        "SmolLM3",
        {
            **GQA,
            "no_rope_layers": [0, 1, 0],
            "use_sliding_window": True,
            "sliding_window": 5,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "granite": Family("Granite", {**GQA, **GRANITE, "attention_bias": True, "mlp_bias": True}),
    "granitemoe": Family(
        "GraniteMoe", {**GQA, **GRANITE, "intermediate_size": 8, "num_local_experts": 5, "attention_bias": True}
    ),
    "mixtral": Family(
        "Mixtral",
        {**GQA, "intermediate_size": 8, "num_local_experts": 5, "num_experts_per_tok": 3, "sliding_window": 5},
    ),
    "olmoe": Family("Olmoe", {**GQA, "intermediate_size": 8, "num_experts": 5, "num_experts_per_tok": 3}),
    "qwen2-moe": Family("Qwen2Moe", QWEN2_MOE),
    "qwen2-moe windows": Family(
        "Qwen2Moe",
        {**QWEN2_MOE, "use_sliding_window": True, "sliding_window": 5, "norm_topk_prob": True, "qkv_bias": False},
    ),
    "qwen2-moe dense": Family("Qwen2Moe", {**QWEN2_MOE, "intermediate_size": 19, "mlp_only_layers": [1]}),
    "granitemoeshared": Family(
        "GraniteMoeShared",
        {**GQA, **GRANITE, "intermediate_size": 8, "num_local_experts": 5, "shared_intermediate_size": 12},
    ),
    "glm4-moe": Family("Glm4Moe", {**GLM4_MOE, "num_hidden_layers": 2, "use_qk_norm": True, "attention_bias": True}),
    "dots1": Family(
        "Dots1",
        {**GLM4_MOE, "head_dim": 10, "norm_topk_prob": True, "first_k_dense_replace": 1, "sliding_window": 5}
        | {"max_window_layers": 2},
    ),
    "ernie4.5-moe": Family(
        "Ernie4_5_Moe",
        {
            **GQA,
            "moe_intermediate_size": 8,
            "moe_num_experts": 5,
            "moe_k": 3,
            "moe_layer_interval": 2,
            "use_bias": True,
        },
    ),
    "qwen3-moe": Family(
        "Qwen3Moe",
        {
            **GQA,
            "head_dim": 10,
            "num_hidden_layers": 4,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [3],
            "moe_intermediate_size": 8,
            "num_experts": 5,
            "num_experts_per_tok": 3,
            "norm_topk_prob": True,
            "use_sliding_window": True,
            "sliding_window": 5,
        },
    ),
    "granite swa": Family(
        "GraniteSWA",
        {**GQA, **GRANITE, "num_hidden_layers": 4, "sliding_window": 5, "layer_rope_theta": [0, 50.0, 9.0, 50.0]},
    ),
    "olmo2": Family("Olmo2", {**GQA, "head_dim": 10}),
    "olmo2 biases": Family("Olmo2", {**GQA, "attention_bias": True, "num_key_value_heads": 2}),
    "olmo": Family("Olmo", {**GQA, "attention_bias": True}),
    "seed-oss": Family("SeedOss", {**GQA, "head_dim": 10, "attention_out_bias": True, "mlp_bias": True}),
    "internlm3": Family("InternLM3", {**GQA, "head_dim": 10, "qkv_bias": True, "bias": True}),
    "helium": Family("Helium", {**GQA, "head_dim": 4, "attention_bias": True, "mlp_bias": True}),
    "ministral": Family(
        "Ministral", {**GQA, "head_dim": 10, "sliding_window": 5, "layer_types": [FULL, SLIDING, FULL]}
    ),
    "nemotron": Family("Nemotron", {**GQA, "attention_bias": True, "mlp_bias": True}),
    "gpt-neo": Family(
        "GPTNeo",
        {
            **OWN,
            **ENDS,
            "intermediate_size": 11,
            "num_layers": 3,
            "attention_types": [[["local", "global"], 1], [["local"], 1]],
        }
        | {"window_size": 5},
    ),
    "bloom": Family("Bloom", {**OWN, "n_layer": 3, "n_head": 6}),
    "arcee": Family("Arcee", {**GQA, "attention_bias": True, "mlp_bias": True}),
    "cwm": Family("Cwm", {**GQA, "head_dim": 10, "num_hidden_layers": 5, "sliding_window": 5, "mlp_bias": True}),
    "iquestcoder": Family("IQuestCoder", {**GQA, "head_dim": 10, "attention_bias": True, "mlp_bias": True}),
    "jais2": Family("Jais2", {**GQA, "head_dim": 10}),
    "ernie4.5": Family("Ernie4_5", {**GQA, "head_dim": 10, "use_bias": True, "tie_word_embeddings": False}),
    "phi": Family("Phi", {**GQA, "hidden_size": 36, "partial_rotary_factor": 0.4}),
    "cohere": Family("Cohere", {**GQA, "attention_bias": True, "logit_scale": 0.7}),
    "cohere2": Family("Cohere2", {**GQA, "sliding_window": 5, "sliding_window_pattern": 2, "logit_scale": 0.4}),
    "exaone4": Family("Exaone4", {**GQA, "head_dim": 10, "sliding_window": 5, "sliding_window_pattern": 3}),
    "glm": Family("Glm", {**GQA, "head_dim": 12, "attention_bias": False, "partial_rotary_factor": 1.0}),
    "glm4": Family("Glm4", {**GQA, "head_dim": 12}),
    "nanochat": Family("NanoChat", {**GQA, "num_key_value_heads": 2, "final_logit_softcapping": 3.0}),
    "hunyuan": Family("HunYuanDenseV1", {**GQA, "head_dim": 10, "attention_bias": True, "rope_parameters": NTK}),
    "ministral3": Family(
        "Ministral3", {**GQA, "head_dim": 10, "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.3}}
    ),
    "ministral3 window": Family(
        "Ministral3",
        {
            **GQA,
            "head_dim": 4,
            "sliding_window": 5,
            "rope_parameters": GROWING,
        },
    ),
    "olmo3": Family("Olmo3", {**GQA, "sliding_window": 5, "num_hidden_layers": 4, "rope_parameters": {FULL: YARN}}),
    "phi3": Family("Phi3", {**GQA, "partial_rotary_factor": 0.5}),
    "phi3 longrope": Family("Phi3", {**GQA, "rope_parameters": LONG, "original_max_position_embeddings": 20}),
    "phi3 window": Family("Phi3", {**GQA, "sliding_window": 5}),
    "gemma": Family("Gemma", {**GQA, "head_dim": 10}),
    "gemma2": Family("Gemma2", {**GEMMA3, "head_dim": 10, "attn_logit_softcapping": 1.5}),
    "gemma3": Family("Gemma3", {**GEMMA3, "head_dim": 10, "sliding_window_pattern": 2}, config="Gemma3Text"),
    "gemma3 capped": Family(
        "Gemma3",
        {
            **GEMMA3,
            "head_dim": 4,
            "final_logit_softcapping": 3.0,
            "layer_types": [FULL, SLIDING, FULL],
            "rope_parameters": BY_LAYER,
        },
        config="Gemma3Text",
    ),
    "stablelm": Family("StableLm", {**GQA, "partial_rotary_factor": 0.5}),
    "stablelm beside": Family(
        "StableLm",
        {**GQA, "partial_rotary_factor": 0.5, "use_parallel_residual": True, "use_qkv_bias": True},
    ),
    "starcoder2": Family("Starcoder2", {**GQA, "use_bias": False, "tie_word_embeddings": False}),
    "starcoder2 window": Family("Starcoder2", {**GQA, "sliding_window": 5}),
}
