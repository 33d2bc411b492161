"""Weights packed by AWQ and GPTQ are those of a plain dequantization, to the bit, and stay in their blocks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import folders
from t2r_export.checkpoints import checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import QuantizeConfig, Run
from t2r_export.quantize import export_quantized
from t2r_runtime.errors import UserError

Arrays = dict[str, np.ndarray[Any, Any]]
WIDTH, HIDDEN, KV, GROUP = 64, 96, 48, 32
PRODUCTS = {
    "self_attn.q_proj": (HIDDEN, WIDTH),
    "self_attn.k_proj": (KV, WIDTH),
    "self_attn.v_proj": (KV, WIDTH),
    "self_attn.o_proj": (WIDTH, HIDDEN),
    "mlp.gate_proj": (HIDDEN, WIDTH),
    "mlp.up_proj": (HIDDEN, WIDTH),
    "mlp.down_proj": (WIDTH, HIDDEN),
}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": False}


def packed(numbers: np.ndarray[Any, Any], bits: int, places: range | list[int]) -> np.ndarray[Any, Any]:
    """Numbers (N, M), several per int32 along the last axis: the lowest bits are those of places[0]."""
    made = np.zeros((len(numbers), numbers.shape[1] // len(places)), np.uint32)
    for column in range(made.shape[1]):
        for i, place in enumerate(places):
            made[:, column] |= numbers[:, column * len(places) + place].astype(np.uint32) << np.uint32(bits * i)
    return made.view(np.int32)


def quantized(how: dict[str, Any], rows: int, columns: int, seed: int) -> tuple[Arrays, np.ndarray[Any, Any]]:
    """The tensors of a product (out, in), and its weight."""
    random, bits = np.random.default_rng(seed), how["bits"]
    group = columns if how["group_size"] == -1 else how["group_size"]
    numbers = random.integers(0, 1 << bits, (columns, rows))
    zeros = random.integers(1, 1 << bits, (columns // group, rows))
    scales = random.uniform(0.01, 0.1, zeros.shape).astype(np.float16)
    groups = np.arange(columns) // group
    if how.get("desc_act"):
        groups = random.permutation(groups)
    found = {"scales": scales}
    if how["quant_method"] == "awq":
        order = [0, 2, 4, 6, 1, 3, 5, 7]
        found |= {"qweight": packed(numbers, bits, order), "qzeros": packed(zeros, bits, order)}
    else:
        stored = zeros - (how.get("checkpoint_format") != "gptq_v2")
        found["qweight"] = packed(numbers.T, bits, range(32 // bits)).T.copy()
        found["qzeros"] = packed(stored, bits, range(32 // bits))
        found["g_idx"] = groups.astype(np.int32)
    return found, ((numbers - zeros[groups]) * scales.astype(np.float32)[groups]).T.astype(np.float32)


def written(folder: Path, how: dict[str, Any]) -> Arrays:
    """Write a folder in two shards, scales in the second; returns the weights of its products."""
    shapes = {name: (*shape[:-1], WIDTH) for name, shape in folders.llama_shapes().items() if "proj" not in name}
    tensors, weights = folders.random_tensors(shapes), Arrays()
    for layer in range(2):
        for number, (name, shape) in enumerate(PRODUCTS.items()):
            parts, weights[f"model.layers.{layer}.{name}"] = quantized(how, *shape, seed=10 * layer + number)
            tensors |= {f"model.layers.{layer}.{name}.{kind}": torch.from_numpy(part) for kind, part in parts.items()}
    folder.mkdir()
    sizes = {"hidden_size": WIDTH, "intermediate_size": HIDDEN, "head_dim": 16, "quantization_config": how}
    (folder / "config.json").write_text(json.dumps(folders.LLAMA | sizes))
    shards = {name: f"model-0000{1 + name.endswith('scales')}-of-00002.safetensors" for name in tensors}
    for shard in set(shards.values()):
        save_file({name: tensor for name, tensor in tensors.items() if shards[name] == shard}, folder / shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    return weights


CASES = {
    "awq": AWQ,
    "awq, a group": AWQ | {"group_size": -1},
    "gptq": GPTQ,
    "gptq_v2": GPTQ | {"checkpoint_format": "gptq_v2"},
    "gptq, 8 bits": GPTQ | {"bits": 8},
    "gptq, desc_act": GPTQ | {"desc_act": True},
}


@pytest.mark.parametrize("name", CASES)
def test_weights_are_the_dequantized_ones_to_the_bit(name: str, tmp_path: Path) -> None:
    expected = written(tmp_path / "model", CASES[name])
    found = checkpoint.load(tmp_path / "model").model.state_dict()
    names = {"self_attn": "parts.0", "mlp": "parts.1"}
    for place, weight in expected.items():
        _, _, layer, part, product = place.split(".")
        ours = f"blocks.{layer}.{names[part]}.{product.removesuffix('_proj')}.weight"
        np.testing.assert_array_equal(found[ours].numpy(), weight, err_msg=place)


def test_keep(tmp_path: Path) -> None:
    """Groups stay as blocks; groups of any inputs, those of desc_act, are none, up to chance."""
    for name in ("awq", "gptq", "gptq, desc_act"):
        written(tmp_path / name, CASES[name])
        loaded, out = checkpoint.load(tmp_path / name), tmp_path / "q.onnx"
        kept = dict(export_quantized(loaded, out, ExportConfig(), QuantizeConfig(scheme="keep"))[1].kept)
        assert kept.pop("head.weight") == (Run(31, 8, 32, kept=False),), "it is not packed"
        assert "embedding.weight" not in kept
        runs = [run for each in kept.values() for run in each]
        if name == "gptq, desc_act":
            assert sum(run.rows for run in runs if run.kept) < 0.05 * sum(run.rows for run in runs)
        else:
            assert {run[1:] for run in runs} == {(4, GROUP, True, True)}


def change(kind: str, value: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    """Change a tensor of a product."""

    def changed(folder: Path) -> None:
        for file in folder.glob("*.safetensors"):
            tensors: dict[str, Any] = load_file(file)
            name = f"model.layers.1.mlp.up_proj.{kind}"
            if name in tensors:
                save_file({**tensors, name: value(tensors[name])}, file)

    return changed


@pytest.mark.parametrize(
    "how, damage, message",
    [
        (
            AWQ | {"quant_method": "bitsandbytes"},
            None,
            "or packed by awq or gptq; received another quantization_config",
        ),
        (AWQ | {"quant_method": {"awq": 1}}, None, "received another quantization_config"),
        (GPTQ | {"bits": 3}, None, "bits in quantization_config of config.json to be one of 4, 8; received 3"),
        (AWQ | {"bits": True}, None, "bits in quantization_config"),
        (AWQ | {"group_size": 0}, None, "group_size in .* an integer of at least 1; received 0"),
        (AWQ | {"version": "gemv"}, None, 'version in .* one of gemm; received "gemv"'),
        (AWQ | {"zero_point": False}, None, "zero_point in .* true or absent; received false"),
        (GPTQ | {"checkpoint_format": "marlin"}, None, 'one of gptq, gptq_v2; received "marlin"'),
        (GPTQ | {"dynamic": {"+:.*": {"bits": 8}}}, None, "dynamic in .* {} or absent"),
        (AWQ, change("qweight", lambda x: x[:-1].clone()), "1 instead of|instead of"),
        (
            AWQ,
            change("qzeros", lambda x: x.float()),
            "scales of floating point and integers of 32 bits; received .*qzeros",
        ),
        (AWQ, change("scales", lambda x: x * torch.inf), "finite numbers in"),
        (GPTQ, change("g_idx", lambda x: x + 1), "groups below 2 in g_idx of model.layers.1.mlp.up_proj.weight"),
        (GPTQ, change("g_idx", lambda x: x - 1), "groups below 2 in g_idx"),
    ],
)
def test_others_are_refused(
    how: dict[str, Any], damage: Callable[[Path], None] | None, message: str, tmp_path: Path
) -> None:
    written(tmp_path / "model", AWQ if how["quant_method"] != "gptq" else GPTQ)
    folders.change_config(tmp_path / "model", quantization_config=how)
    if damage is not None:
        damage(tmp_path / "model")
    with pytest.raises(UserError, match=message):
        checkpoint.load(tmp_path / "model")
