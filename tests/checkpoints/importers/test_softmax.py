"""Folders of softmax families: logits of transformers, in torch and in graphs, and as students. All sizes differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import folders
import small
from checkpoints.importers.peers import TOLERANCE, logit_error
from families import Family
from t2r_export.checkpoints import checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.mixers import LinearConfig, SoftmaxConfig, WindowConfig
from t2r_export.convert import convert
from t2r_export.export import export
from t2r_export.fold import fold
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError

LENGTH = 47
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
    "arcee": Family("Arcee", {**GQA, "attention_bias": True, "mlp_bias": True}),
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
families = pytest.mark.parametrize("name", FAMILIES)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of each family transformers' model, ours and the folder, made when they are asked for."""

    class Made(dict[str, Any]):
        def __missing__(self, name: str) -> Any:
            folder = tmp_path_factory.mktemp("family")
            self[name] = (*FAMILIES[name].imported(folder), folder)
            return self[name]

    return Made()


@families
def test_random_models_agree_with_transformers(name: str, made: Any) -> None:
    theirs, ours, _ = made[name]
    assert logit_error(ours.model, theirs, LENGTH) < TOLERANCE
    assert ours.notes == ()


@families
def test_the_graph_is_the_model(name: str, made: Any, tmp_path: Path) -> None:
    ours = made[name][1]
    export(ours, tmp_path / "g.onnx", ExportConfig(prefill=True))
    assert small.proof(ours, tmp_path / "g.onnx", steps=58).passed


@families
def test_every_layer_can_become_linear(name: str, made: Any) -> None:
    model = made[name][1].model
    student = convert(model, LinearConfig(5, positions="drop"))
    report = fold(student)[1]
    normed = model.config.heads[0].qk_norm
    assert {layer.reason for layer in report if not layer.folded} == (
        {"q and k are normalized between the projection and φ (qk_norm)"} if normed else set()
    )
    assert all(layer.folded != normed for layer in report)


BOTH = Family(
    "Phi3",
    {
        **GQA,
        "rope_parameters": {**LONG, "long_factor": [4.0], "partial_rotary_factor": 0.5},
        "original_max_position_embeddings": 20,
    },
)


@torch.no_grad()
def test_longrope_ends_where_its_frequencies_change_or_has_those_of_longer_texts(tmp_path: Path) -> None:
    theirs, ours = BOTH.imported(tmp_path)
    ids = torch.randint(0, 31, (2, 40), generator=torch.Generator().manual_seed(3))
    expected = {length: theirs(ids[:, :length]).logits for length in (20, 21, 40)}
    assert ours.config.max_positions == 20
    torch.testing.assert_close(ours.model(ids[:, :20]), expected[20], rtol=0, atol=TOLERANCE)
    with pytest.raises(
        UserError, match="at most 20 tokens, since longer texts have other rotary frequencies; received 21"
    ):
        ours.model(ids[:, :21])
    for path, context, lengths in (("short", None, [20]), ("context", "20", [20]), ("long", "40", [21, 40])):
        report = export(ours, tmp_path / f"{path}.onnx", ExportConfig(prefill=True, context=context))
        assert report.signature.max_positions == (lengths[-1] if context else 20)
        assert small.proof(ours, tmp_path / f"{path}.onnx", steps=30).passed
        decoder = Decoder(tmp_path / f"{path}.onnx", threads=1)
        for length in lengths:
            decoder.reset(2)
            read = decoder.prefill(ids[:, :length].numpy())
            assert np.abs(read - expected[length][:, -1].numpy()).max() < TOLERANCE
    decoder = Decoder(tmp_path / "short.onnx", threads=1)
    decoder.reset(2)
    with pytest.raises(UserError, match="20"):
        decoder.prefill(ids[:, :21].numpy())


def test_a_student_of_longrope_has_no_end_and_a_graph_of_it_no_other(tmp_path: Path) -> None:
    ours = BOTH.imported(tmp_path)[1]
    assert convert(ours.model, LinearConfig(5)).config.max_positions is None
    assert convert(ours.model, LinearConfig(5), "0").config.max_positions == 20
    for past_end in ("clamp", "wrap:16"):
        with pytest.raises(
            UserError, match="past_end refuse, since texts of more than 20 tokens have other frequencies"
        ):
            export(ours, tmp_path / "g.onnx", ExportConfig(past_end=past_end))
    report = export(ours, tmp_path / "g.onnx", ExportConfig(context="24:slide"))
    assert report.signature.max_positions is None


KINDS = {  # s: softmax, w: windows
    "smollm3": "sss",
    "smollm3 windows": "wsw",
    "cohere2": "wsw",
    "exaone4": "wws",
    "ministral3 window": "www",
    "olmo3": "wwws",
    "phi3 window": "www",
    "gemma2": "wsw",
    "gemma3": "wsw",
    "gemma3 capped": "sws",
}


def test_layers_with_a_window_have_one(made: Any) -> None:
    for name, expected in KINDS.items():
        found = small.mixers(made[name][1].config)
        assert found == [SoftmaxConfig() if kind == "s" else WindowConfig(5, sinks=0) for kind in expected], name


def test_the_head_of_a_gpt_neox_has_two_names(made: Any, tmp_path: Path) -> None:
    theirs, ours, folder = made["gpt-neox"]
    tensors = load_file(folder / "model.safetensors")
    names = {"embed_out.weight": "lm_head.weight", "lm_head.weight": "embed_out.weight"}
    assert names.keys() & tensors.keys()
    save_file({names.get(name, name): tensor for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    again = checkpoint.load(tmp_path).model.state_dict()
    assert all(torch.equal(again[name], weight) for name, weight in ours.model.state_dict().items())


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("gpt-neox", {"num_attention_heads": 5}, "num_attention_heads in config.json to be a divisor of hidden_size=24"),
    ("gpt-neox", {"rope_parameters": None, "rotary_pct": 0.25}, "share of a head's 4 numbers that is an even number"),
    ("gpt-neox", {"head_dim": 4}, "head_dim in config.json to be absent or null"),
    ("gpt-neox", {"hidden_act": "laplace"}, "hidden_act in config.json to be one of relu"),
    ("opt", {"word_embed_proj_dim": 12}, "word_embed_proj_dim in config.json to be absent or hidden_size=24"),
    ("gemma3", {"sliding_window": 0}, "sliding_window in config.json to be an integer of at least 1"),
    ("opt", {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine in config.json to be absent"),
    ("opt", {"_remove_final_layer_norm": True}, "unexpected model.decoder.final_layer_norm.bias"),
    ("opt", {"max_position_embeddings": 61}, "embed_positions.weight 62×24 instead of 63×24"),
    (
        "smollm3",
        {"no_rope_layers": [1, 0]},
        "no_rope_layers in config.json to be 3 numbers, 1 for a layer that rotates",
    ),
    ("smollm3", {"no_rope_layers": [1, 0, 2]}, "no_rope_layers in config.json to be 3 numbers"),
    ("smollm3", {"layer_types": [SLIDING] * 3}, "layer_types in config.json to be without sliding_attention"),
    ("granite", {"residual_multiplier": 0}, "residual_multiplier in config.json to be a finite positive number"),
    ("granite", {"num_local_experts": 4}, "num_local_experts in config.json to be absent"),
    ("granitemoe", {"num_experts_per_tok": 6}, "top to be an integer from 1 to 5; received 6"),
    ("mixtral", {"num_local_experts": 4}, "unexpected model.layers.0.block_sparse_moe.experts.4.w1.weight"),
    ("mixtral", {"num_local_experts": 0}, "num_local_experts in config.json to be an integer of at least 1"),
    ("olmoe", {"clip_qkv": 8.0}, "clip_qkv in config.json to be absent or null"),
    ("qwen2-moe", {"mlp_only_layers": [1]}, "mlp_only_layers in config.json to be absent or null, []"),
    ("qwen2-moe", {"decoder_sparse_step": 2}, "decoder_sparse_step in config.json to be absent or 1"),
    ("qwen3-moe", {"mlp_only_layers": [1.0]}, "mlp_only_layers in config.json to be numbers of layers"),
    ("olmo2", {"layer_types": [SLIDING] * 3}, "layer_types in config.json to be"),
    ("cohere", {"use_qk_norm": True}, "use_qk_norm in config.json to be absent or null, false"),
    (
        "exaone4",
        {"layer_types": None, "sliding_window_pattern": "LLG"},
        "sliding_window_pattern in config.json to be an",
    ),
    ("hunyuan", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "whose frequencies do not depend on the"),
    (
        "ministral3",
        {"rope_parameters": YARN},
        "llama_4_scaling_beta in the rotary parameters of config.json to be a finite",
    ),
    (
        "phi3",
        {"rope_parameters": {**LONG, "short_factor": None}},
        "short_factor in the rotary parameters of config.json",
    ),
    ("phi3", {"rope_parameters": {**LONG, "partial_rotary_factor": 1.0}}, "2 rotary factors, one per pair; received 1"),
    ("nanochat", {"rope_parameters": YARN}, "of a type that rotates and does not scale, since q and k are normalized"),
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention in config.json to be absent"),
    ("gemma3", {"rope_parameters": {"rope_theta": 9.0}}, "rope_parameters in config.json to be an object for full_att"),
    ("gemma3", {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": None}, "with a rope_type"),
    ("gemma3", {"rope_parameters": BY_LAYER, "rope_scaling": BY_LAYER[FULL]}, "and no rope_scaling beside them"),
    ("stablelm", {"qk_layernorm": True}, "qk_layernorm in config.json to be absent or null, false"),
    ("starcoder2", {"use_bias": True}, "missing model.layers.0.mlp.c_fc.bias"),
]


def changed(folder: Path, target: Path, changes: dict[str, Any]) -> Path:
    """A copy of a folder with other keys in its config.json; None takes a key away."""
    for name in ("config.json", "model.safetensors"):
        (target / name).write_bytes((folder / name).read_bytes())
    folders.change_config(target, **changes)
    return target


@pytest.mark.parametrize("name, changes, message", REFUSED)
def test_what_a_family_cannot_be_is_refused(
    name: str, changes: dict[str, Any], message: str, made: Any, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        checkpoint.load(changed(made[name][2], tmp_path, changes))
    assert message in str(caught.value)


def test_a_tensor_that_the_class_does_not_have_is_refused(made: Any, tmp_path: Path) -> None:
    folder = changed(made["cohere"][2], tmp_path, {})
    folders.change_tensors(folder, model__norm__bias=torch.ones(24))
    with pytest.raises(UserError, match=r"unexpected model\.norm\.bias"):
        checkpoint.load(folder)


VISION: dict[str, dict[str, Any]] = {
    "Gemma3": {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 6,
        "image_size": 4,
        "patch_size": 2,
    },
    "Mistral3": {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 6,
        "head_dim": 4,
    },
}
OUTER = {"Gemma3": {"mm_tokens_per_image": 4}, "Mistral3": {"tie_word_embeddings": False}}


@torch.no_grad()
@pytest.mark.parametrize("name, text", [("Gemma3", "gemma3"), ("Mistral3", "ministral3")])
def test_the_text_model_of_one_that_sees_images_is_read(name: str, text: str, tmp_path: Path) -> None:
    import transformers

    sizes = {**FAMILIES[text].sizes, "model_type": {"gemma3": "gemma3_text"}.get(text, text)}
    config = getattr(transformers, f"{name}Config")(text_config=sizes, vision_config=VISION[name], **OUTER[name])
    theirs = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, mean=0.1 if parameter.ndim == 1 else 0.0, std=0.3)
    theirs.save_pretrained(tmp_path)
    ours = checkpoint.load(tmp_path)
    assert logit_error(ours.model, theirs, LENGTH) < TOLERANCE
    assert ours.notes == ()
    folders.change_config(tmp_path, text_config={**sizes, "model_type": "mistral"})
    with pytest.raises(UserError, match="model_type in text_config in config.json to be .*, since no other is read"):
        checkpoint.load(tmp_path)


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("gpt-neox", {"use_parallel_residual": False}),
    ("gpt-neox", {"layer_norm_eps": 0.1}),
    ("opt", {"activation_function": "gelu"}),
    ("smollm3", {"no_rope_layers": [1, 1, 1]}),
    ("smollm3", {"no_rope_layers": [0, 1, 0]}),
    ("granite", {"attention_multiplier": 0.5}),
    ("granite", {"residual_multiplier": 0.5}),
    ("granite", {"embedding_multiplier": 2.0}),
    ("granite", {"logits_scaling": 3.0}),
    ("granitemoe", {"residual_multiplier": 0.5}),
    ("olmoe", {"norm_topk_prob": True}),
    ("qwen3-moe", {"norm_topk_prob": False}),
    ("qwen2-moe", {"norm_topk_prob": True}),
    ("qwen2-moe windows", {"sliding_window": 4}),
    ("granitemoe", {"num_experts_per_tok": 1}),
    ("mixtral", {"num_experts_per_tok": 2}),
    ("olmo2", {"rms_norm_eps": 0.1}),
    ("hunyuan", {"rope_parameters": {**NTK, "alpha": 60.0}}),
    ("phi", {"layer_norm_eps": 0.1}),
    ("cohere", {"layer_norm_eps": 0.1}),
    ("cohere2", {"logit_scale": 0.5}),
    ("cohere2", {"rope_parameters": {"rope_theta": 50.0}}),
    ("exaone4", {"layer_types": None, "sliding_window_pattern": 2}),
    ("glm4", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 1.0}}),
    ("hunyuan", {"rms_norm_eps": 0.1}),
    ("ministral3", {"rope_parameters": {**YARN, "llama_4_scaling_beta": 0.4}}),
    (
        "ministral3 window",
        {"rope_parameters": {**GROWING, "original_max_position_embeddings": 19}},
    ),
    ("olmo3", {"rope_parameters": {FULL: {"rope_theta": 500.0}}}),
    ("phi3 longrope", {"original_max_position_embeddings": 19}),
    ("phi3 window", {"sliding_window": 6}),
    ("gemma", {"hidden_act": "silu"}),
    ("gemma2", {"attn_logit_softcapping": 1.6}),
    ("nanochat", {"final_logit_softcapping": 4.0}),
    ("nanochat", {"rope_parameters": {"rope_theta": 50.0}}),
    ("gemma3", {"query_pre_attn_scalar": 8}),
    ("gemma3 capped", {"final_logit_softcapping": 4.0}),
    ("gemma3 capped", {"rope_parameters": {FULL: BY_LAYER[FULL], SLIDING: {"rope_theta": 60.0}}}),
    ("stablelm", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 1.0}}),
    ("starcoder2 window", {"sliding_window": 4}),
]


@pytest.mark.parametrize("name, changes", WRONG)
def test_the_comparison_sees_a_wrong_config(name: str, changes: dict[str, Any], made: Any, tmp_path: Path) -> None:
    theirs, _, folder = made[name]
    ours = checkpoint.load(changed(folder, tmp_path, changes)).model
    assert logit_error(ours, theirs, LENGTH) > 1e-4
