"""Folders of flash-linear-attention: logits and every state against definitions in NumPy, in torch and in graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import folders
import small
from checkpoints.importers.fla_models import MODELS, Model
from checkpoints.importers.peers import TOLERANCE, error
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.export import export
from t2r_export.quantize import export_quantized
from t2r_runtime import Decoder
from t2r_runtime.contract.state_spec import POSITION
from t2r_runtime.errors import UserError

LENGTHS = (1, 2, 65, 130)
models = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Checkpoint, Path]]:
    found = {}
    for name, model in MODELS.items():
        folder = model.save(tmp_path_factory.mktemp("fla"))
        found[name] = checkpoint.load(folder), folder
        assert found[name][0].notes == ()
    return found


def expected(model: Model, length: int, ours: Checkpoint) -> tuple[torch.Tensor, np.ndarray, dict[str, torch.Tensor]]:
    """Two texts, their logits, and the states after them."""
    ids = torch.randint(0, 31, (2, length), generator=torch.Generator().manual_seed(length))
    logits, states = zip(*(model.read(row) for row in ids.numpy()), strict=True)
    found = {name: torch.from_numpy(np.stack([of[name] for of in states])) for name in states[0]}
    if POSITION in {spec.name for spec in ours.model.state_spec()}:
        found[POSITION] = torch.full((2,), length, dtype=torch.int32)
    return ids, np.stack(logits), found


@models
@torch.no_grad()
def test_texts_in_torch_and_in_graphs_are_the_definition(name: str, made: Any) -> None:
    ours, folder = made[name]
    for target in ("portable", "fused"):
        export(ours, folder / f"{target}.onnx", ExportConfig(prefill=True, target=target))
    for length in LENGTHS:
        ids, logits, states = expected(MODELS[name], length, ours)
        assert logits.std() > 0.1
        found, after = ours.model.prefill(ids, ours.model.init_state(2))
        assert error(found, logits) < TOLERANCE
        small.assert_states(after, states, TOLERANCE)
        for target in ("portable", "fused"):
            decoder = Decoder(folder / f"{target}.onnx", threads=1)
            for prompt in (True, False)[: 1 + (length < 66)]:
                decoder.reset(2)
                read = decoder.prefill(ids.numpy()) if prompt else [decoder.step(row) for row in ids.T.numpy()][-1]
                assert error(read, logits[:, -1]) < TOLERANCE
                small.assert_states(decoder.state(), states, TOLERANCE)


@pytest.mark.parametrize("name, scheme", [("gla", "w8"), ("retnet", "w4"), ("gated-deltanet", "w8"), ("kda", "w4")])
def test_quantized_graphs_are_within_their_tolerances(name: str, scheme: str, made: Any, tmp_path: Path) -> None:
    export_quantized(made[name][0], tmp_path / "q.onnx", ExportConfig(prefill=True), QuantizeConfig(scheme=scheme))
    assert small.proof(made[name][0], tmp_path / "q.onnx", steps=40).passed


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("gla", {"num_kv_heads": 1}, "num_kv_heads in config.json to be absent or num_heads=3"),
    ("gla", {"feature_map": "relu"}, "feature_map in config.json to be absent or null"),
    ("gla", {"clamp_min": -1.0}, "clamp_min in config.json to be absent or null"),
    (
        "gla",
        {"expand_k": 0.3},
        "expand_k in config.json to be a factor of 48 that gives an integer that num_heads=3 div",
    ),
    ("gla", {"use_output_gate": False}, "unexpected model.layers.0.attn.g_proj.weight"),
    ("gla", {"use_short_conv": True}, "missing model.layers.0.attn.qkv_conv1d.weight"),
    ("gla", {"hidden_act": "powlu"}, 'hidden_act in config.json to be absent or "swish"'),
    ("gla", {"intermediate_size": None, "hidden_ratio": 3}, "gate_proj.weight 19×48 instead of 256×48"),
    ("retnet", {"attn": {"layers": [1], "num_heads": 3}}, "attn in config.json to be absent or null"),
    ("retnet", {"attnres_block_size": 2}, "attnres_block_size in config.json to be absent or null"),
    ("retnet", {"num_heads": 6}, "an even head_size of at most"),
    ("delta-net", {"qk_norm": "sum"}, 'qk_norm in config.json to be absent or "l2"'),
    ("delta-net", {"qk_activation": "elu"}, 'qk_activation in config.json to be absent or "silu"'),
    ("delta-net", {"use_beta": False}, "use_beta in config.json to be absent or true"),
    ("delta-net", {"conv_size": 1}, "conv_size in config.json to be an integer of at least 2"),
    ("gated-deltanet", {"num_v_heads": 4}, "num_v_heads in config.json to be a multiple of num_heads=3"),
    ("gated-deltanet", {"expand_v": 1.3}, "expand_v in config.json to be a factor of 16 that gives an integer"),
    ("gated-deltanet", {"output_gate_activation": "relu"}, "output_gate_activation in config.json to be one of swish"),
    ("kda", {"safe_gate": True}, "safe_gate in config.json to be absent or false"),
    ("kda", {"lower_bound": -5.0}, "lower_bound in config.json to be absent or null"),
]


@pytest.mark.parametrize("name, changes, message", REFUSED)
def test_what_a_family_cannot_be_is_refused(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        checkpoint.load(MODELS[name].save(tmp_path, **changes))
    assert message in str(caught.value)


def test_a_norm_that_is_not_fused_has_another_name(made: Any, tmp_path: Path) -> None:
    folder = MODELS["gla"].save(tmp_path, fuse_norm=False)
    for layer in (0, 1):
        norm = f"model.layers.{layer}.attn.g_norm"
        weight = torch.from_numpy(MODELS["gla"].weights[f"{norm}_swish_gate.weight"])
        folders.change_tensors(folder, **{f"{norm}_swish_gate.weight": None, f"{norm}.weight": weight})
    again, ours = (one.model.state_dict() for one in (checkpoint.load(folder), made["gla"][0]))
    assert all(torch.equal(again[name], weight) for name, weight in ours.items())


CHANGED = {
    "gla": ("gk_proj.0.weight", "gk_proj.1.bias", "g_proj.weight"),
    "retnet": ("k_proj.weight", "g_norm_swish_gate.weight"),
    "delta-net": ("b_proj.weight", "k_conv1d.weight"),
    "gated-deltanet": ("a_proj.weight", "A_log", "dt_bias"),
    "kda": ("f_proj.0.weight", "A_log", "dt_bias", "g_proj.1.bias"),
}


@torch.no_grad()
@pytest.mark.parametrize("name, weight", [(name, weight) for name, names in CHANGED.items() for weight in names])
def test_the_comparison_sees_a_wrong_weight(name: str, weight: str, made: Any, tmp_path: Path) -> None:
    ids, logits, _ = expected(MODELS[name], 13, made[name][0])
    full = f"model.layers.1.attn.{weight}"
    folder = MODELS[name].save(tmp_path)
    folders.change_tensors(folder, **{full: torch.from_numpy(MODELS[name].weights[full]) + 0.1})
    assert np.abs(checkpoint.load(folder).model(ids).numpy() - logits).max() > 1e-4
