"""Unsupported decoders, and why: a feature that no part computes, or a missing table."""

from __future__ import annotations

_LATENT = "latent attention (MLA), which stores low-rank keys and values"
# feature -> model_type
REASONS = {
    _LATENT: "axk1 bailing_hybrid deepseek_v2 deepseek_v3 glm4_moe_lite longcat_flash minicpm3 youtu",
    f"{_LATENT}, in each fourth layer; its other layers are parts of the kind kda": "kimi_linear",
    f"{_LATENT}, and an index of the tokens that each token sees": """
        axk2 deepseek_v32 dots3_note dots3_note_text glm_moe_dsa""",
    "several streams between the layers (hyper-connections)": "deepseek_v4 hy_v4",
    "embeddings of each layer, and streams that layers predict and correct (AltUp)": "gemma3n gemma3n_text",
    "embeddings of each layer, and keys and values that layers share": """
        gemma4 gemma4_assistant gemma4_text gemma4_unified gemma4_unified_assistant gemma4_unified_text""",
    "experts with biases and clamped gates, in weights of 4 bits (MXFP4)": "gpt_oss",
    "attention in chunks, each of which sees nothing of those before it": "llama4 llama4_text",
    "heads of values of another size than those of keys": "mimo_v2_flash",
    "a router that leaves out experts whose scores are far from the best (SparseMixer)": "phimoe",
    "experts of attention": "jetmoe",
    "the difference of two softmax attentions": "diffllama",
    "a mask of attention that is computed from the values": "doge",
    "attention whose keys and values are convolved and compressed": "zaya",
    "q, k and v that are clipped": "dbrx mpt",
    "layer norms of q and k with biases": "persimmon",
    "norms inside of attention and feed-forward, in front of their last products": "bitnet",
    "an activation with trained numbers (xIELU)": "apertus",
    "patches of bytes": "blt",
    "stacks that run in cycles over each other": "hrm_text",
    "scores by a trained function of the distance, and convolutions of keys and values": "inkling2_text inkling_text",
    "exponential gates with a running maximum": "xlstm",
    "sums of exponentials with a running maximum (RWKV-4)": "rwkv",
    "Mamba's state spaces with heads, and weights that layers share": "zamba",
    "attention among tokens of equal hashes (LSH)": "reformer",
    "two streams of attention, over random orders": "xlnet",
    "several tokens that are predicted at once": "prophetnet",
    "a decoder that reads images or sounds": """
        emu3 fuyu git got_ocr2 minimax_m3_vl_text mllama moshi moss_transcribe_diarize musicgen musicgen_melody
        phi4_multimodal trocr whisper""",
    "an encoder's layers, which transformers makes causal on request": """
        bert bert-generation big_bird camembert data2vec-text electra ernie megatron-bert rembert roberta
        roberta-prelayernorm roc_bert roformer xlm xlm-roberta xlm-roberta-xl xmod""",
    "custom code in its folder, and no class in transformers to compare with": """
        baichuan chatglm deepseek exaone internlm2 minicpm openelm phi3small qwen""",
    "GPT-2's layers, which are read with the model_type gpt2": "gpt-sw3",
    "keys and tensor names that no table here maps": """
        afmoe aria_text beam bigbird_pegasus biogpt blenderbot blenderbot-small codegen cohere2_moe cohere_compass_text
        cpmant ctrl exaone_moe falcon flex_olmo flint gpt_bigcode gpt_neox_japanese gptj granitemoe_swa
        hunyuan_v1_moe hy_v3 hyperclovax kolibri1 laguna mbart mellum minimax minimax_m2
        modernbert-decoder mvp openai-gpt plbart qwen4_exp qwen4_exp_text solar_open vaultgemma xglm""",
}
# model_type -> feature
UNREAD = {family: reason for reason, families in REASONS.items() for family in families.split()}
