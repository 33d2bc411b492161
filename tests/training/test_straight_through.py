"""A model trained with rounding equals its quantized graph."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from torch.nn.utils import parametrize

import small
import texts
from runs import resumed, stop_at
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.config.stages import parse_plan
from t2r_export.export import export
from t2r_export.finetune import finetune
from t2r_export.fold import fold
from t2r_export.graph.nodes import initializers
from t2r_export.model.transformer import Transformer
from t2r_export.quantize import export_quantized
from t2r_export.quantizers.base import projections
from t2r_export.quantizers.blocks import in_blocks, restored
from t2r_export.quantizers.experts import expert_nodes
from t2r_export.quantizers.tables import rounded_table
from t2r_export.training.straight_through import attach, products, settled
from t2r_export.verify import verify
from t2r_runtime.errors import UserError

W4 = QuantizeConfig(scheme="w4", block_size=16, accuracy_level=0)
# tied or not, folded or not, gates with own products
NAMES = ("learned", "rotary_keep", "gated_rotary", "conv_after", "pair", "hybrid_token", "mixed", "lstm", "moe")


def rounded(made: Transformer, config: QuantizeConfig = W4) -> Transformer:
    folded, _ = fold(made)
    attach(folded, config)
    return folded


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 70), st.integers(1, 9), st.sampled_from([4, 8]), st.sampled_from([16, 32]), st.integers(0, 1 << 20)
)
def test_rounding_is_idempotent(rows: int, columns: int, bits: int, size: int, seed: int) -> None:
    matrix = np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)
    once = restored(matrix, bits, size, False)
    np.testing.assert_array_equal(restored(once, bits, size, False), once)


@pytest.mark.parametrize("name", NAMES)
def test_rounded_weights_are_graph_products(name: str, tmp_path: Path) -> None:
    made, _ = fold(small.model(name))
    export(Checkpoint(made.config, made, None, {}, "0" * 64), tmp_path / "g.onnx", ExportConfig())
    graph = onnx.load(tmp_path / "g.onnx")
    kept = initializers(graph)
    names = {node.input[1] for node in projections(graph)}
    names |= {name for _, experts in expert_nodes(graph) for name in experts}
    sizes = sum(int(np.prod(kept[name].dims)) for name in names)
    assert sum(getattr(module, weight).numel() for module, weight in products(made)) == sizes


@pytest.mark.parametrize("name", NAMES)
def test_export_of_settled_model_is_lossless(name: str, tmp_path: Path) -> None:
    """Every product's quantized weights are those of the settled model, which computes the same as with rounding."""
    made = rounded(small.model(name))
    ids = small.ids()
    with torch.no_grad(), parametrize.cached():
        expected = made(ids)
    found = settled(made)
    assert list(found.state_dict()) == list(fold(small.model(name))[0].state_dict())
    if not found.config.tied_head:  # an untied table is rounded at export
        found.embedding.weight.data = torch.from_numpy(rounded_table(found.embedding.weight.detach().numpy()))
    with torch.no_grad():
        torch.testing.assert_close(found(ids), expected)
    for weight, bits in numbers(found):
        np.testing.assert_array_equal(restored(weight, bits, 16, False), weight)


def numbers(made: Transformer) -> list[tuple[np.ndarray, int]]:
    """Every product's matrix (in, out) and its bits."""
    found = [(getattr(module, name), 8 if module is made.head else 4) for module, name in products(made)]
    return [(np.ascontiguousarray(weight.detach().flatten(0, -2).numpy().T), bits) for weight, bits in found]


def test_graph_has_trained_weights(tmp_path: Path) -> None:
    made = rounded(small.model("conv_after"))
    made = settled(made)
    export_quantized(Checkpoint(made.config, made, None, {}, "0" * 64), tmp_path / "q.onnx", ExportConfig(), W4)
    graph = onnx.load(tmp_path / "q.onnx")
    kept = initializers(graph)
    nodes = [node for node in graph.graph.node if node.op_type == "MatMulNBits"]
    whole = b"".join(numpy_helper.to_array(kept[node.input[1]]).tobytes() for node in nodes)
    expected = [in_blocks(weight, bits, 16, False)[0].tobytes() for weight, bits in numbers(made)]
    assert len(whole) == sum(map(len, expected))  # several of the model's products may be one in the graph
    assert all(part in whole for part in expected)


@pytest.mark.parametrize("gate", ["data", "pair"])
def test_graph_computes_the_rounded_model(gate: str, tmp_path: Path) -> None:
    """Within float32 rounding: any other error that `verify` finds in a quantized graph comes from weight rounding."""
    layer = small.linear(6, positions="after", update_rule="gated", gate=gate)
    made = settled(rounded(small.checkpoint(small.with_layers(small.LLAMA, layer, layer, tied_head=True)).model))
    checkpoint = Checkpoint(made.config, made, None, {}, "0" * 64)
    export_quantized(checkpoint, tmp_path / "q.onnx", ExportConfig(), W4)
    report = verify(checkpoint, tmp_path / "q.onnx", steps=50)
    assert report.greedy_agreement == 1
    assert all(check.worst < 1e-4 for check in report.checks), report.checks


def test_straight_through_gradients() -> None:
    made = rounded(small.model("learned"))
    made(small.ids()).square().sum().backward()
    plain, _ = fold(small.model("learned"))
    names = [name for name, _ in made.named_parameters()]
    assert len(names) == len(list(plain.parameters()))
    assert all(p.grad is not None and bool(p.grad.any()) for p in made.parameters())


@pytest.fixture
def config(tmp_path: Path) -> FinetuneConfig:
    return texts.run(tmp_path, parse_plan("round", "12", "0.01"), rounding=W4, validate_every=6)


@pytest.mark.slow
def test_round_stage_resume_is_bit_identical(config: FinetuneConfig, tmp_path: Path) -> None:
    report = finetune(config)
    assert report.kept[0].step > 0  # better in validation than plain rounding
    assert report.teacher is not None  # the student before any rounding
    saved = checkpoint.load(config.output)
    assert saved.provenance["finetune"][-1]["for"] == {"scheme": "w4", "block_size": 16, "accuracy_level": 0}
    assert saved.config == fold(checkpoint.load(config.model).model)[0].config
    for weight, bits in numbers(saved.model):
        np.testing.assert_array_equal(restored(weight, bits, 16, False), weight)
    again = dataclasses.replace(config, output=tmp_path / "again.pt")
    stop_at(again, 8)
    assert resumed(again) == config.output.read_bytes()


@pytest.mark.parametrize("stages, scheme", [("round", None), ("distill", "w4"), ("distill,round", "w4")])
def test_scheme_requires_round_stage(stages: str, scheme: str | None) -> None:
    rounding = None if scheme is None else QuantizeConfig(scheme=scheme)
    with pytest.raises(UserError, match="expected --for with --stages round and no other stage"):
        FinetuneConfig(model=Path("a"), output=Path("b"), data=(), plan=parse_plan(stages), rounding=rounding)


def test_scheme_must_be_block_wise() -> None:
    with pytest.raises(UserError, match="expected --for w8 or w4; received fp16"):
        FinetuneConfig(
            model=Path("a"),
            output=Path("b"),
            data=(),
            plan=parse_plan("round"),
            rounding=QuantizeConfig(scheme="fp16"),
        )


def test_round_takes_the_losses_of_distill(tmp_path: Path) -> None:
    """A teacher of another depth has no hidden states to compare."""
    config = texts.run(tmp_path, parse_plan("round", "2", "0.01"), rounding=W4, hidden=0.0, kl_top=3)
    teacher = dataclasses.replace(texts.TEACHER, layers=texts.TEACHER.layers[:1])
    finetune(dataclasses.replace(config, teacher=texts.write_teacher(tmp_path / "teacher.pt", teacher)))
    assert config.output.exists()
