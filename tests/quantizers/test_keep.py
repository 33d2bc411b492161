"""keep: the graph of a quantized file multiplies by the values in the file, to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

import small
from checkpoints.gguf.test_architectures import granite
from checkpoints.gguf.writer import adjacent, random_model, rms, tensors_of, write
from quantizers.test_grids import random_blocks
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.cli import main
from t2r_export.config.export import ExportConfig
from t2r_export.config.mixers import LinearConfig, WindowConfig
from t2r_export.config.quantize import QuantizeConfig, Run
from t2r_export.convert import conversion
from t2r_export.export import export
from t2r_export.model.transformer import Transformer
from t2r_export.quantize import export_quantized, quantize
from t2r_export.quantizers.blocks import unrounded
from t2r_export.training import lora
from t2r_export.verify import verify
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError

KINDS = gguf.GGMLQuantizationType
SIZES = {
    "vocab_size": 37,
    "hidden_size": 96,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 32,
    "max_position_embeddings": 50,
}
STORED = {
    "attn_q": KINDS.Q4_1,
    "attn_k": KINDS.Q4_1,
    "attn_v": KINDS.Q8_0,
    "attn_output": KINDS.Q4_0,
    "ffn_gate": KINDS.Q5_1,
    "ffn_up": KINDS.Q5_1,
    "ffn_down": KINDS.Q5_0,
}
KEEP, EXACT = QuantizeConfig(scheme="keep"), QuantizeConfig(scheme="keep", accuracy_level=0)
PRODUCTS = {"q_k_v": "qkv", "gate_up": ("gate", "up")}


def written(
    path: Path, table: gguf.GGMLQuantizationType = KINDS.Q8_0, tied: bool = True, family: str = "Llama", **more: Any
) -> Checkpoint:
    """A small model in GGUF, all of whose matrices are quantized. Args: more: sizes in transformers' config."""
    model = random_model(family, SIZES | {"tie_word_embeddings": tied} | more)
    tensors = adjacent(tensors_of(model, family.lower()), 6, 3)
    kinds = {f"blk.{layer}.{name}.weight": kind for layer in range(2) for name, kind in STORED.items()}
    kinds |= {"token_embd.weight": table} | ({} if tied else {"output.weight": KINDS.Q4_1})
    keys = (granite if family == "Granite" else rms)(model.config)
    return checkpoint.load(write(path, family.lower(), keys, tensors, kinds))


def dequantized(path: Path) -> dict[str, np.ndarray]:
    """The matrices (out, in) that a graph multiplies by: by weight, or by weight and number of the run."""
    model = onnx.load(path)
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    found = {}
    for node in model.graph.node:
        if node.op_type != "MatMulNBits":
            continue
        sizes = {each.name: each.i for each in node.attribute}
        matrix = unrounded(
            [arrays[name.removesuffix(".float32")] for name in node.input[1:]], sizes["bits"], sizes["K"]
        ).T
        offsets = arrays.get(node.input[2].replace("_scales", "_offsets").removesuffix(".float32"))
        if offsets is not None:
            matrix = matrix + np.repeat(offsets, sizes["block_size"], 1)
        found[node.input[1].replace(".transposed", "").rpartition("_Q")[0]] = matrix
    return found


def original(model: torch.nn.Module, name: str) -> np.ndarray:
    """The weight of a product in a model."""
    weights = model.state_dict()
    place, _, product = name.removesuffix(".weight").rpartition(".")
    parts = [f"{place}.{part}.weight" for part in PRODUCTS.get(product, (product,))]
    return torch.cat([weights[part.lstrip(".")] for part in parts]).numpy()


def test_graph_has_the_values_of_the_file_to_the_bit(tmp_path: Path) -> None:
    """q, k, v in one product, of two formats; rows of q and k are reordered; the head is the table."""
    loaded = written(tmp_path / "m.gguf")
    _, report = export_quantized(loaded, tmp_path / "q.onnx", ExportConfig(prefill=True), EXACT)
    found = dequantized(tmp_path / "q.onnx")
    qkv = (Run(288, 4, 32, True), Run(96, 8, 32))
    assert report.kept["blocks.0.parts.0.q_k_v.weight"] == qkv
    assert report.kept["embedding.weight"] == (Run(37, 8, 32),)
    assert set(report.kept["blocks.1.parts.1.gate_up.weight"]) == {Run(128, 8, 32, True)}
    for name, runs in report.kept.items():
        parts = [found[name if len(runs) == 1 else f"{name}.{number}"] for number in range(len(runs))]
        np.testing.assert_array_equal(np.concatenate(parts), original(loaded.model, name), err_msg=name)
    export(loaded, tmp_path / "float32.onnx")
    old, new = Decoder(tmp_path / "float32.onnx"), Decoder(tmp_path / "q.onnx")
    prompt, *steps = [int(token) for token in small.ids(1, 12)[0] % 37], 3, 1
    np.testing.assert_allclose(new.prefill(prompt), old.prefill(prompt), atol=2e-4)
    for token in steps:
        np.testing.assert_allclose(new.step(token), old.step(token), atol=2e-4)


def test_multipliers_round_no_block(tmp_path: Path) -> None:
    multipliers = {"residual_multiplier": 0.246, "embedding_multiplier": 12.0, "logits_scaling": 3.0}
    loaded = written(tmp_path / "m.gguf", tied=False, family="Granite", **multipliers)
    _, report = export_quantized(loaded, tmp_path / "q.onnx", ExportConfig(), EXACT)
    assert len(report.kept) == 4 * 2 + 2  # the table and the head apart
    assert all(run.kept for runs in report.kept.values() for run in runs)


@pytest.mark.parametrize("table", [KINDS.Q8_0, KINDS.Q4_1])
def test_untied_tables_are_kept(table: gguf.GGMLQuantizationType, tmp_path: Path) -> None:
    loaded = written(tmp_path / "m.gguf", table, tied=False)
    export(loaded, tmp_path / "float32.onnx")
    report = quantize(tmp_path / "float32.onnx", tmp_path / "q.onnx", EXACT)
    assert report.kept["embedding.weight"][0] == Run(37, *((8, 32) if table == KINDS.Q8_0 else (4, 32, True)))
    assert not any(tensor.dims[:] == [37, 96] for tensor in onnx.load(tmp_path / "q.onnx").graph.initializer)
    old, new = Decoder(tmp_path / "float32.onnx"), Decoder(tmp_path / "q.onnx")
    for token in (3, 36, 0):
        np.testing.assert_allclose(new.step(token), old.step(token), atol=2e-4)


@pytest.mark.parametrize("name, kept", [("Q2_K", (4, 16, True)), ("Q3_K", (4, 16)), ("Q6_K", (8, 16))])
def test_blocks_of_16_are_kept(name: str, kept: tuple[int, ...], tmp_path: Path) -> None:
    """Kinds of which the package gguf writes none: their values, in a file of floats."""
    model = random_model("Llama", SIZES | {"intermediate_size": 256})
    tensors = adjacent(tensors_of(model, "llama"), 6, 3) | {"blk.1.ffn_down.weight": random_blocks(name, 96, 256)}
    loaded = checkpoint.load(write(tmp_path / "m.gguf", "llama", rms(model.config), tensors))
    _, report = export_quantized(loaded, tmp_path / "q.onnx", ExportConfig(), EXACT)
    down = "blocks.1.parts.1.down.weight"
    assert report.kept[down] == (Run(96, *kept),)
    np.testing.assert_array_equal(dequantized(tmp_path / "q.onnx")[down], original(loaded.model, down))
    assert np.isfinite(Decoder(tmp_path / "q.onnx").step(3)).all()


def test_folded_products_are_rounded_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A converted and saved model: W_φ changes q and k, and v, o and the feed-forward stay in their blocks."""
    converted = conversion(written(tmp_path / "m.gguf").model, LinearConfig(5, positions="drop")).model
    checkpoint.save(tmp_path / "t2r.pt", converted, None, {})
    quantizing = ["--quantize", "keep:other_bits=4", "--target", "npu"]
    assert main(["export", str(tmp_path / "t2r.pt"), str(tmp_path / "q.onnx"), *quantizing]) == 0
    printed = capsys.readouterr().out
    changed = "45 rows not in blocks (float, or changed by folding), rounded to 4 bits in blocks of 32"
    assert f"2 blocks.*.parts.0.qkv.weight: {changed}; 96 rows kept in 8 bits in blocks of 32\n" in printed
    assert "2 blocks.*.parts.0.o.weight: 96 rows kept in 4 bits in blocks of 32\n" in printed
    assert Decoder(tmp_path / "q.onnx").step(3).shape == (1, 37)


def test_an_adapter_keeps_the_blocks_of_its_base(tmp_path: Path) -> None:
    """LoRA is a product of its own, in the step and in prompts, and the graph is the merged model."""
    base = written(tmp_path / "m.gguf")
    student = conversion(base.model, WindowConfig(window=5, sinks=1)).model
    lora.attach(student, rank=3, alpha=2.0, seed=5, targets="all")
    for name, factor in student.named_parameters():
        if name.endswith(".B"):
            torch.nn.init.normal_(factor, std=0.05)
    lora.merge(student)
    checkpoint.save_adapter(tmp_path / "s.adapter", replace(base, config=student.config, model=student), base)
    loaded = checkpoint.load(tmp_path / "s.adapter", base=tmp_path / "m.gguf")
    _, report = export_quantized(loaded, tmp_path / "q.onnx", ExportConfig(prefill=True), EXACT)
    kept = {name for name, runs in report.kept.items() if all(run.kept for run in runs)}
    assert len(kept) == 9 and len(report.kept) == 25  # 8 products, with A and B each, and the table
    found = dequantized(tmp_path / "q.onnx")
    for name in kept - {"blocks.0.parts.0.q_k_v.weight", "blocks.1.parts.0.q_k_v.weight"}:  # of two runs
        np.testing.assert_array_equal(found[name], original(base.model, name), err_msg=name)
    assert verify(loaded, tmp_path / "q.onnx", steps=30).passed
    export(loaded, tmp_path / "float32.onnx")
    old, new = Decoder(tmp_path / "float32.onnx"), Decoder(tmp_path / "q.onnx")
    untrained = conversion(base.model, WindowConfig(window=5, sinks=1)).model
    export(replace(base, config=untrained.config, model=untrained), tmp_path / "untrained.onnx")
    plain = Decoder(tmp_path / "untrained.onnx")
    ids = small.ids(1, 12)[0] % 37
    ours, merged, without = (each.prefill(ids) for each in (new, old, plain))
    assert np.abs(ours - merged).max() < 0.1 * np.abs(without - merged).max()


def changed_by(base: Checkpoint, student: Transformer, tmp_path: Path, **ranks: int) -> Checkpoint:
    """An adapter with random changes of a rank in the matrices of these names."""
    generator = torch.Generator().manual_seed(3)
    for name, weight in student.state_dict().items():
        for rank in (
            rank for last, rank in ranks.items() if weight.ndim == 2 and f".{name}".endswith(f".{last}.weight")
        ):
            rows, columns = (torch.randn(size, rank, generator=generator) for size in weight.shape)
            weight += 0.01 * rows @ columns.T
    checkpoint.save_adapter(tmp_path / "s.adapter", replace(base, config=student.config, model=student), base)
    return checkpoint.load(tmp_path / "s.adapter", base=tmp_path / "m.gguf")


def test_an_adapters_other_changes_are_merged(tmp_path: Path) -> None:
    """Of a table, which is no product; and of all products if folding makes one change as large as its weight."""
    base = written(tmp_path / "m.gguf")
    loaded = changed_by(base, conversion(base.model, WindowConfig(5)).model, tmp_path, embedding=2, o=2)
    assert len(loaded.unmerged) == 3
    _, report = export_quantized(loaded, tmp_path / "q.onnx", ExportConfig(), EXACT)
    assert not any(run.kept for runs in report.kept.values() for run in runs if runs[0].rows == 37)
    assert all(run.kept for run in report.kept["blocks.1.parts.0.o.weight"])
    assert "blocks.1.parts.0.o.A" in report.kept
    assert verify(loaded, tmp_path / "q.onnx", steps=20).passed
    linear = conversion(base.model, LinearConfig(5, positions="drop")).model
    _, report = export_quantized(
        changed_by(base, linear, tmp_path, q=30, v=45, o=2), tmp_path / "q.onnx", ExportConfig(), EXACT
    )
    assert not any(run.kept for run in report.kept["blocks.1.parts.0.o.weight"])
    assert "blocks.1.parts.0.o.A" not in report.kept


def test_float_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="weights in blocks of 4 or 8 bits, to keep them; received none"):
        export_quantized(small.checkpoint("learned"), tmp_path / "q.onnx", ExportConfig(), KEEP)
    assert not list(tmp_path.iterdir())
