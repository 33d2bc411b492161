"""Folders of softmax families: logits of transformers, in torch and in graphs, and as students. All sizes differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import folders
import small
from checkpoints.importers.peers import TOLERANCE, error, logit_error
from checkpoints.importers.softmax_models import BY_LAYER, FAMILIES, FULL, GQA, GROWING, LONG, NTK, SLIDING, YARN
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
families = pytest.mark.parametrize("name", FAMILIES)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Per family: transformers' model, ours and the folder, made on first access."""

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
    assert error(ours.model(ids[:, :20]), expected[20]) < TOLERANCE
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
            assert error(read, expected[length][:, -1]) < TOLERANCE
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


def test_experts_may_be_stored_one_by_one_or_together(made: Any, tmp_path: Path) -> None:
    """transformers writes one tensor per expert; some hub folders have one per layer."""
    theirs, ours, folder = made["qwen2-moe"]
    one_by_one = {name: None for name in load_file(folder / "model.safetensors") if ".mlp.experts." in name}
    together = {name: x for name, x in theirs.state_dict().items() if ".mlp.experts." in name}
    assert len(one_by_one) == 3 * 3 * 5 and len(together) == 3 * 2
    folders.change_tensors(changed(folder, tmp_path, {}), **one_by_one, **together)
    again = checkpoint.load(tmp_path).model.state_dict()
    assert all(torch.equal(again[name], weight) for name, weight in ours.model.state_dict().items())


def test_layers_that_draft_tokens_are_passed_over(made: Any, tmp_path: Path) -> None:
    _, ours, folder = made["glm4-moe"]
    drafts = {"model.layers.2.eh_proj.weight": torch.ones(3, 2), f"model.layers.{'9' * 5000}.x": torch.ones(1)}
    folders.change_tensors(changed(folder, tmp_path, {}), **drafts)
    again = checkpoint.load(tmp_path).model.state_dict()
    assert all(torch.equal(again[name], weight) for name, weight in ours.model.state_dict().items())
    folders.change_tensors(tmp_path, **{"model.layers.1.eh_proj.weight": torch.ones(3, 2)})
    with pytest.raises(UserError, match=r"unexpected model\.layers\.1\.eh_proj\.weight"):
        checkpoint.load(tmp_path)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("gpt-neox", {"num_attention_heads": 5}, "num_attention_heads in config.json to be a divisor of hidden_size=24"),
    ("gpt-neox", {"rope_parameters": None, "rotary_pct": 0.25}, "share of a head's 4 numbers that is an even number"),
    ("gpt-neox", {"head_dim": 5}, "head_dim in config.json to be absent or 4, since this family reads"),
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
    ("qwen2-moe", {"decoder_sparse_step": 2}, "unexpected model.layers.0.mlp.experts"),
    ("qwen3-moe", {"mlp_only_layers": [1.0]}, "mlp_only_layers in config.json to be numbers of layers"),
    ("glm4-moe", {"n_group": 2}, "n_group in config.json to be absent or 1"),
    ("ernie4.5-moe", {"moe_norm_min": 0.1}, "moe_norm_min in config.json to be absent or 1e-12"),
    (
        "gpt-neo",
        {"attention_layers": None, "attention_types": [[["global"], 2]]},
        "attention_types in config.json to be 3",
    ),
    (
        "gpt-neo",
        {"attention_layers": None, "attention_types": [["global", 3]]},
        "attention_types in config.json to be pai",
    ),
    (
        "gpt-neo",
        {"attention_layers": None, "attention_types": [[["global"], 1024], [["local"], 1]]},
        "attention_types in config.json to be pai",
    ),
    (
        "gpt-neo",
        {"attention_layers": ["global"] * 2},
        "attention_types in config.json to be 3 names, each one of global",
    ),
    ("internlm3", {"attention_bias": False}, "mlp_bias in config.json to be as attention_bias"),
    ("bloom", {"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm in config"),
    ("olmo", {"clip_qkv": 8.0}, "clip_qkv in config.json to be absent or null"),
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
    """A copy of a folder with changed config.json keys; None removes a key."""
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
    ("glm4-moe", {"routed_scaling_factor": 1.4}),
    ("glm4-moe", {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 1.0}}),
    ("dots1", {"norm_topk_prob": False}),
    ("ernie4.5-moe", {"moe_k": 1}),
    ("ministral", {"layer_types": [SLIDING] * 3}),
    ("gpt-neo", {"window_size": 4}),
    ("nemotron", {"norm_eps": 0.1}),
    ("bloom", {"layer_norm_epsilon": 0.1}),
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
