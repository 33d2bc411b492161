"""Folders of recurrent families: logits and states of transformers' full forward, in torch and in every graph."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import folders
import small
from checkpoints.importers.peers import TOLERANCE, error
from checkpoints.importers.recurrent_models import FAMILIES, QWEN3_5
from cli_models import LETTERS, Output, letter_tokenizer, run
from families import full_forward, text
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.mixers import LinearConfig, WindowConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.convert import convert
from t2r_export.describe import describe
from t2r_export.export import export
from t2r_export.quantize import export_quantized
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError

LENGTHS = (1, 2, 3, 63, 64, 65, 193)
LONGEST = ("mamba", "mamba2", "lfm2", "qwen3.5")  # these also read 1,000 tokens


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Checkpoint, Path]]:
    """Per family: transformers' model, ours and a folder with its graphs, made on first access."""

    class Made(dict[str, tuple[Any, Checkpoint, Path]]):
        def __missing__(self, name: str) -> tuple[Any, Checkpoint, Path]:
            folder = tmp_path_factory.mktemp("family")
            theirs, ours = FAMILIES[name].imported(folder)
            for target in ("portable", "fused"):
                export(ours, folder / f"{target}.onnx", ExportConfig(prefill=True, target=target))
            self[name] = theirs, ours, folder
            return self[name]

    return Made()


STUDENTS = {"window": WindowConfig(5, sinks=2), "linear": LinearConfig(5, update_rule="gated", gate="data")}
WINDOWS = {"recurrent-gemma": "1"}  # layers of windows, where a family has no softmax layer
STATE_SPACES = ("mamba", "mamba2", "falcon-mamba")  # layers without other parts
HYBRIDS = [name for name in FAMILIES if name not in STATE_SPACES and " " not in name]  # one of each family
families = pytest.mark.parametrize("name", FAMILIES)


@families
def test_a_text_in_torch_is_transformers(name: str, made: Any) -> None:
    theirs, ours, _ = made[name]
    for length in (*LENGTHS, 1000) if name in LONGEST else LENGTHS:
        ids = text(length, 31)
        expected, states = full_forward(theirs, ours, ids)
        assert expected.std() > 0.1
        with torch.no_grad():
            logits, after = ours.model.prefill(ids, ours.model.init_state(len(ids)))
        assert error(logits, expected) < TOLERANCE, length
        small.assert_states(after, states, TOLERANCE)


@families
@pytest.mark.parametrize("target", ["portable", "fused"])
def test_prompts_and_steps_of_the_graphs_are_transformers(name: str, target: str, made: Any) -> None:
    theirs, ours, folder = made[name]
    for length in LENGTHS:
        ids = text(length, 31)
        expected, states = full_forward(theirs, ours, ids)
        decoder = Decoder(folder / f"{target}.onnx", threads=1)
        for read in (Decoder.prefill, by_steps) if length in (1, 65) else (Decoder.prefill,):
            decoder.reset(len(ids))
            found = read(decoder, ids.numpy())
            assert error(found, expected[:, -1]) < TOLERANCE, length
            small.assert_states(decoder.state(), states, TOLERANCE)


@pytest.mark.parametrize("name", LONGEST)
@pytest.mark.parametrize("target", ["portable", "fused"])
def test_the_graphs_read_a_thousand_tokens(name: str, target: str, made: Any) -> None:
    """Compares the logits of every step, and the states after the steps and after a prompt."""
    theirs, ours, folder = made[name]
    ids = text(1000, 31)
    expected, states = full_forward(theirs, ours, ids)
    decoder = Decoder(folder / f"{target}.onnx", threads=1)
    decoder.reset(len(ids))
    found = np.stack([decoder.step(column) for column in ids.T.numpy()], axis=1)
    assert error(found, expected) < TOLERANCE
    small.assert_states(decoder.state(), states, TOLERANCE)
    decoder.reset(len(ids))
    assert error(decoder.prefill(ids.numpy()), expected[:, -1]) < TOLERANCE
    small.assert_states(decoder.state(), states, TOLERANCE)


def by_steps(decoder: Decoder, ids: np.ndarray) -> np.ndarray:
    return [decoder.step(column) for column in ids.T][-1]


@families
def test_steps_from_random_states_are_the_sequence(name: str, made: Any) -> None:
    model = made[name][1].model
    start, ids = small.states(model), text(70, 31)
    with torch.no_grad():
        expected, end = model.prefill(ids, start)
        logits, after = small.by_steps(model, ids, start)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    small.assert_states(after, end, 1e-4)


@pytest.mark.parametrize("name, scheme", [*zip(FAMILIES, cycle(("w8", "w4")))])
def test_quantized_graphs_are_within_their_tolerances(name: str, scheme: str, made: Any, tmp_path: Path) -> None:
    ours = made[name][1]
    path = tmp_path / "q.onnx"
    export_quantized(ours, path, ExportConfig(prefill=True), QuantizeConfig(scheme=scheme))
    assert small.proof(ours, path, steps=40).passed


@families
def test_save_load_round_trip(name: str, made: Any, tmp_path: Path) -> None:
    ours = made[name][1]
    checkpoint.save(tmp_path / "model.pt", ours.model, None, ours.provenance)
    again = checkpoint.load(tmp_path / "model.pt")
    assert again.config == ours.config
    for one, other in zip(ours.model.state_dict().values(), again.model.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_inspect_says_the_bytes_of_the_states(made: Any) -> None:
    _, _, folder = made["mamba2"]
    of_model, of_graph = describe(folder), describe(folder / "portable.onnx")
    S, conv = 6 * 5 * 4, 3 * (24 + 2 * 3 * 5)
    assert of_model.state_bytes == of_graph.state_bytes == 2 * 4 * (S + conv)
    assert of_model.memory_reason == "all states have a fixed size"
    assert of_graph.growth_bytes == 0


def test_inspect_numbers_layers_of_any_parts(made: Any) -> None:
    rows = [(row[:3], number) for row, number in describe(made["nemotron-h"][2]).rows]
    state_space, softmax = rows[0][0][1], "-"
    assert state_space.startswith("heads=6,head_size=4,state_size=5,")
    kinds = [("mamba2", state_space, "none"), ("none", "-", "dense"), ("softmax", softmax, "none")]
    assert rows == [(kinds[0], 0), (kinds[1], 1), (kinds[2], 2), (kinds[0], 3)]
    rows = [(row[:3], number) for row, number in describe(made["falcon-h1"][2]).rows]
    state_space = rows[1][0][1]
    both = [("softmax", softmax, "dense"), ("mamba2", state_space, "dense")]
    assert rows == [(row, number) for number in range(2) for row in both]


# kinds in turn: what becomes constant is the softmax layers, which all families share
@pytest.mark.parametrize("name, kind", [*zip(HYBRIDS, cycle(STUDENTS))])
def test_softmax_layers_become_constant_and_train(
    name: str, kind: str, made: Any, tmp_path: Path, capsys: Output
) -> None:
    """Converts, finetunes with the teacher and exports; recurrent layers are kept."""
    model, mixer = made[name][1].model, STUDENTS[kind]
    student = convert(model, mixer, WINDOWS.get(name, "softmax"))
    if kind == "window":  # a window longer than the text
        ids = text(4, 31)
        with torch.no_grad():
            torch.testing.assert_close(student(ids), model(ids), rtol=1e-5, atol=1e-5)
    for path, one in (("teacher", model), ("student", student)):
        checkpoint.save(tmp_path / f"{path}.pt", one, letter_tokenizer(LETTERS + "!?"), {})
    (tmp_path / "text.txt").write_text("the cat sat on the mat. the dog sat on the cat.\n" * 20)
    data = ["--data", tmp_path / "text.txt", "--teacher", tmp_path / "teacher.pt", "--json"]
    stages = ["--stages", "distill,task", "--steps", "2,9", "--lr", "1e-3,1e-3"]
    options = [*stages, "--length", 16, "--batch", 2, "--device", "cpu"]
    run(capsys, "finetune", tmp_path / "student.pt", tmp_path / "tuned.pt", *data, *options)
    tuned = checkpoint.load(tmp_path / "tuned.pt")
    before, after = dict(student.named_parameters()), tuned.model.state_dict()
    assert not [name for name in before if torch.equal(before[name], after[name])]
    report = export(tuned, tmp_path / "g.onnx", ExportConfig(prefill=True))
    assert not any(state.grows for state in report.signature.states)
    assert small.proof(tuned, tmp_path / "g.onnx", steps=40).passed


def test_a_layer_is_no_softmax_to_convert(made: Any) -> None:
    with pytest.raises(UserError, match="layer 0 to be softmax or a window; received mamba2"):
        convert(made["mamba2"][1].model, LinearConfig(5))


IMAGES = {
    "depth": 1,
    "hidden_size": 8,
    "intermediate_size": 6,
    "num_heads": 2,
    "out_hidden_size": 24,
    "num_position_embeddings": 16,
}
SECTIONS = {"mrope_section": [1, 1, 0], "mrope_interleaved": True}


@pytest.fixture
def wrapped(tmp_path: Path) -> Any:
    """transformers' vision-language model; its saved folder also has layers that draft tokens."""
    import transformers

    rope = {**QWEN3_5.sizes["rope_parameters"], **SECTIONS}
    config = transformers.Qwen3_5Config(
        text_config={**QWEN3_5.sizes, "rope_parameters": rope, "eos_token_id": 7}, vision_config=IMAGES
    )
    torch.manual_seed(0)
    theirs = transformers.Qwen3_5ForConditionalGeneration(config).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, mean=0.1 if parameter.ndim == 1 else 0.0, std=QWEN3_5.spread)
    theirs.save_pretrained(tmp_path)
    folders.change_tensors(tmp_path, **{"mtp.fc.weight": torch.ones(3, 4)})
    folders.change_config(tmp_path, image_token_id=3, video_token_id=4, vision_start_token_id=5, vision_end_token_id=6)
    return theirs


@torch.no_grad()
def test_the_text_model_of_one_that_sees_images_is_read(wrapped: Any, tmp_path: Path) -> None:
    ours, ids = checkpoint.load(tmp_path), text(70, 31)
    expected = wrapped(ids, use_cache=False).logits
    assert expected.std() > 0.1
    assert error(ours.model(ids), expected) < TOLERANCE
    assert ours.config.eos_tokens == (7,)
    assert ours.notes == ()


@torch.no_grad()
def test_the_text_model_with_experts_of_one_that_sees_images_is_read(tmp_path: Path) -> None:
    import transformers

    config = transformers.Qwen3_5MoeConfig(text_config=FAMILIES["qwen3.5-moe"].sizes, vision_config=IMAGES)
    torch.manual_seed(0)
    theirs, ids = transformers.Qwen3_5MoeForConditionalGeneration(config).eval(), text(21, 31)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, mean=0.1 if parameter.ndim == 1 else 0.0, std=QWEN3_5.spread)
    theirs.save_pretrained(tmp_path)
    expected = theirs(ids, use_cache=False).logits
    assert expected.std() > 0.1
    assert error(checkpoint.load(tmp_path).model(ids), expected) < TOLERANCE


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"tie_word_embeddings": True}, "tie_word_embeddings in config.json to be false, as in its text_config"),
        ({"text_config": 5}, "text_config in config.json to be an object"),
        ({"text_config": {"num_experts": 5}}, "num_experts in config.json to be absent"),
        ({"text_config": {}}, "missing "),
    ],
)
def test_a_nested_config_that_cannot_be_is_refused(
    changes: dict[str, Any], message: str, wrapped: Any, tmp_path: Path
) -> None:
    folders.change_config(tmp_path, **changes)
    with pytest.raises(UserError) as caught:
        checkpoint.load(tmp_path)
    assert message in str(caught.value)


def test_tensors_in_pieces_are_joined_over_shards(made: Any, tmp_path: Path) -> None:
    theirs, ours, _ = made["olmo-hybrid"]
    theirs.save_pretrained(tmp_path, max_shard_size="2KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 9
    again = checkpoint.load(tmp_path).model.state_dict()
    assert all(torch.equal(again[name], weight) for name, weight in ours.model.state_dict().items())


@pytest.mark.parametrize("shape", [None, (1,), (3, 2, 3)])
def test_a_piece_that_is_missing_or_does_not_fit_is_refused(
    shape: tuple[int, ...] | None, made: Any, tmp_path: Path
) -> None:
    made["olmo-hybrid"][0].save_pretrained(tmp_path)
    piece = "model.layers.0.linear_attn.v_conv1d.weight"
    folders.change_tensors(tmp_path, **{piece: None if shape is None else torch.ones(shape)})
    message = "missing model.layers.0.linear_attn.conv1d.weight, unexpected model.layers.0.linear_attn.k_conv1d.weight"
    with pytest.raises(UserError, match=message):
        checkpoint.load(tmp_path)


HUGE = 10**400  # beyond the floats
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("mamba2", {"num_heads": 5}, "num_heads in config.json to be a number of heads of 4 with 24 channels in all"),
    ("mamba2", {"head_dim": 3}, "num_heads in config.json to be a number of heads of 3 with 24 channels in all"),
    ("mamba2", {"n_groups": 4}, "groups to divide heads=6"),
    ("mamba2", {"hidden_act": "gelu"}, "hidden_act in config.json to be one of silu"),
    ("mamba2", {"time_step_limit": [0.5, 0.1]}, "time_step_limit in config.json to be two numbers"),
    ("mamba2", {"time_step_limit": [0.5]}, "time_step_limit in config.json to be two numbers"),
    ("mamba2", {"time_step_limit": ["a", True]}, "time_step_limit in config.json to be two numbers"),
    ("mamba2", {"conv_kernel": 1}, "taps to be an integer from 2"),
    ("mamba2", {"state_size": 6}, "conv1d.weight 54×1×4 instead of 60×1×4"),
    ("granite", {"num_local_experts": -1}, "num_local_experts in config.json to be an integer of at least 1"),
    ("granite", {"position_embedding_type": "alibi"}, "position_embedding_type in config.json to be one of rope, nope"),
    ("granite", {"layer_types": ["mamba"]}, "layer_types in config.json to be 3 names"),
    ("granite", {"hidden_act": "gelu"}, "hidden_act in config.json to be one of silu"),
    ("granite", {"residual_multiplier": 0}, "residual_multiplier in config.json to be a finite positive number"),
    (
        "nemotron-h",
        {"layers_block_type": ["mamba", "moe"]},
        "linear_attention, mamba, full_attention, attention, mlp, ",
    ),
    ("nemotron-h", {"layers_block_type": None, "hybrid_override_pattern": "MEM*"}, "of M, * and -, since experts are"),
    ("nemotron-h", {"layers_block_type": []}, "layers_block_type in config.json to be 1 to 1024"),
    ("nemotron-h", {"tie_word_embeddings": True}, "tie_word_embeddings in config.json to be absent or false"),
    ("falcon-h1", {"mamba_d_ssm": 25}, "mamba_n_heads in config.json to be a number of heads of 4 with 25 channels"),
    ("mamba", {"hidden_act": "gelu"}, "hidden_act in config.json to be one of silu"),
    ("mamba", {"conv_kernel": 1}, "conv_kernel in config.json to be an integer of at least 2"),
    ("mamba", {"intermediate_size": 23}, "mixer.D 24 instead of 23"),
    ("falcon-mamba", {"time_step_rank": 0}, "time_step_rank in config.json to be an integer of at least 1"),
    ("jamba", {"attn_layer_offset": 3}, "attn_layer_offset in config.json to be below attn_layer_period=3"),
    (
        "zamba2",
        {"layers_block_type": ["mamba"]},
        "layers_block_type in config.json to be 5 names, each one of linear_att",
    ),
    ("zamba2", {"n_mamba_heads": 7}, "n_mamba_heads in config.json to be a divisor of 48 channels"),
    (
        "zamba2",
        {"num_attention_heads": 5},
        "num_attention_heads in config.json to be a divisor of 48 and a multiple of",
    ),
    ("zamba2", {"use_long_context": True}, "use_long_context in config.json to be absent or false"),
    ("zamba2", {"tie_word_embeddings": False}, "tie_word_embeddings in config.json to be absent or true"),
    (
        "zamba2",
        {"num_mem_blocks": 1},
        "unexpected model.layers.2.shared_transformer.feed_forward",
    ),
    ("falcon-h1", {"ssm_multipliers": [1.0]}, "ssm_multipliers in config.json to be 5 finite numbers"),
    ("falcon-h1", {"mlp_multipliers": [HUGE, 1.0]}, "mlp_multipliers in config.json to be 2 finite numbers"),
    ("mamba2", {"time_step_limit": [0, HUGE]}, "time_step_limit in config.json to be two numbers"),
    ("mamba2", {"hidden_size": HUGE}, "hidden_size in config.json to be an integer of at most "),
    (
        "lfm2",
        {"intermediate_size": 10**15, "block_ffn_dim_multiplier": 1e299},
        "block_ffn_dim_multiplier in config.json",
    ),
    ("granite", {"layer_types": [["mamba"]] * 3}, "layer_types in config.json to be 3 names"),
    ("granite", {"residual_multiplier": 1e60}, "multiplier to be a number above 0 and below "),
    ("lfm2", {"conv_L_cache": 1}, "conv_L_cache in config.json to be an integer of at least 2"),
    ("lfm2", {"conv_L_cache": 65}, "taps to be an integer from 2 to 64"),
    (
        "lfm2",
        {"layer_types": ["conv", "mamba"] * 2},
        "layer_types in config.json to be 4 names, each one of conv",
    ),
    ("lfm2", {"layer_types": None, "full_attn_idxs": [True]}, "full_attn_idxs in config.json to be numbers of layers"),
    ("lfm2", {"block_ff_dim": 20}, "intermediate_size and block_ff_dim in config.json to be equal"),
    ("lfm2", {"block_use_swiglu": False}, "block_use_swiglu in config.json to be absent or true"),
    ("lfm2", {"num_experts": 4}, "num_experts in config.json to be absent"),
    ("lfm2", {"rope_parameters": {"rope_type": "proportional", "factor": 2.0}}, "rope_type in the rotary parameters"),
    ("lfm2", {"conv_bias": True}, "missing model.layers.0.conv.conv.bias"),
    ("lfm2-moe", {"layer_types": None}, "layer_types in config.json to be 4 names, each one of conv, full_attention; "),
    ("lfm2-moe", {"num_experts_per_tok": 6}, "top to be an integer from 1 to 5; received 6"),
    ("lfm2-moe", {"use_expert_bias": False}, "unexpected model.layers.1.feed_forward.expert_bias"),
    ("olmo-hybrid", {"linear_num_key_heads": 4}, "linear_num_key_heads in config.json to be a divisor of linear_num_"),
    ("olmo-hybrid", {"linear_key_head_dim": 6}, "linear_attn.conv1d.weight 54×1×3 instead of 60×1×3"),
    ("olmo-hybrid", {"layer_types": ["linear_attention"]}, "layer_types in config.json to be 4 names"),
    ("lfm3", {"sliding_window": 0}, "sliding_window in config.json to be an integer of at least 1"),
    ("lfm3", {"layer_types": ["conv"]}, "layer_types in config.json to be 5 names, each one of conv, full_attention, "),
    ("lfm3", {"rope_parameters": {"full_attention": {"rope_type": "linear"}}}, "factor in the rotary parameters of"),
    ("recurrent-gemma", {"block_types": ["mamba"]}, "block_types in config.json to be names, each one of recurrent, "),
    ("recurrent-gemma", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "to be of the rope_type default"),
    ("recurrent-gemma", {"lru_width": 26}, "lru_width in config.json to be a multiple of num_attention_heads=6"),
    ("recurrent-gemma", {"conv1d_width": 1}, "conv1d_width in config.json to be an integer of at least 2"),
    ("qwen3.5", {"linear_num_key_heads": 4}, "linear_num_key_heads in config.json to be a divisor of linear_num_value"),
    ("qwen3.5", {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim in config.json to be an integer of at least 2"),
    ("qwen3.5", {"linear_key_head_dim": 6}, "linear_attn.conv1d.weight 54×1×4 instead of 60×1×4"),
    ("qwen3.5", {"layer_types": ["linear_attention"]}, "layer_types in config.json to be 4 names"),
    ("qwen3.5", {"hidden_act": "gelu"}, "hidden_act in config.json to be one of silu"),
    ("qwen3.5", {"attn_output_gate": False}, "attn_output_gate in config.json to be absent or null, true"),
    ("qwen3.5", {"num_experts": 8}, "num_experts in config.json to be absent"),
    ("qwen3.5", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.5}}, "partial_rotary_factor"),
    ("qwen3.5", {"head_dim": 6}, "partial_rotary_factor in the rotary parameters of config.json to be a share of a"),
]


@pytest.mark.parametrize("name, changes, message", REFUSED)
def test_what_a_family_cannot_be_is_refused(
    name: str, changes: dict[str, Any], message: str, made: Any, tmp_path: Path
) -> None:
    made[name][0].save_pretrained(tmp_path)
    folders.change_config(tmp_path, **changes)
    with pytest.raises(UserError) as caught:
        checkpoint.load(tmp_path)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "name, changes",
    [
        ("mamba2", {"time_step_limit": [0.3, 0.8]}),
        ("mamba2", {"layer_norm_epsilon": 1e-2}),
        ("mamba", {"layer_norm_epsilon": 1e-2}),
        ("falcon-mamba", {"mixer_rms_eps": 0.1}),
        ("jamba", {"rms_norm_eps": 0.1}),
        ("granite", {"residual_multiplier": 0.5}),
        ("granite", {"attention_multiplier": 0.5}),
        ("lfm2", {"norm_eps": 1e-2}),
        ("lfm2-moe", {"routed_scaling_factor": 1.4}),
        ("lfm2-moe", {"norm_topk_prob": False}),
        ("falcon-h1", {"ssm_multipliers": [0.5, 0.6, 0.7, 0.8, 0.8]}),
        ("nemotron-h", {"time_step_min": 0.3}),
        ("falcon-h1", {"key_multiplier": 0.7}),
        ("zamba2", {"time_step_min": 0.5}),
        ("zamba2", {"use_mem_rope": False}),
        ("olmo-hybrid", {"linear_allow_neg_eigval": False}),
        ("olmo-hybrid", {"rope_parameters": None}),
        ("lfm3", {"sliding_window": 5}),
        (
            "lfm3",
            {"rope_parameters": {"full_attention": {"rope_theta": 3e3}, "sliding_attention": {"rope_theta": 20.0}}},
        ),
        ("recurrent-gemma", {"attention_window_size": 6}),
        ("recurrent-gemma", {"logits_soft_cap": 4.0}),
        ("qwen3.5", {"rms_norm_eps": 0.1}),
        ("qwen3.5", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    ],
)
def test_the_comparison_sees_a_wrong_config(name: str, changes: dict[str, Any], made: Any, tmp_path: Path) -> None:
    theirs, ours, _ = made[name]
    theirs.save_pretrained(tmp_path)
    folders.change_config(tmp_path, **changes)
    ids = text(13, 31)
    with torch.no_grad():
        assert float((checkpoint.load(tmp_path).model(ids) - full_forward(theirs, ours, ids)[0]).abs().max()) > 1e-4
