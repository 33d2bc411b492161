"""Low-rank adapters."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import pytest
import torch

import small
from runs import changed, entry
from t2r_export.batches.batch import window_batch
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.stages import parse_plan
from t2r_export.export import export
from t2r_export.finetune import finetune
from t2r_export.model.transformer import Transformer
from t2r_export.training import lora
from t2r_export.training.stages import Task
from t2r_runtime.errors import UserError

KINDS = ["learned", "hybrid", "shared"]


def adapted(kind: str, rank: int = 2, alpha: float = 6.0) -> Transformer:
    model = small.model(kind)
    lora.attach(model, rank, alpha, seed=1)
    return model


def shake(model: Transformer) -> None:
    """Set all B to nonzero values, as after training."""
    generator = torch.Generator().manual_seed(2)
    for module in model.modules():
        if isinstance(module, lora.LowRank):
            module.B.data = 0.3 * torch.randn(module.B.shape, generator=generator)


@pytest.mark.parametrize("kind", KINDS)
def test_new_adapter_preserves_output(kind: str) -> None:
    torch.testing.assert_close(adapted(kind)(small.ids()), small.model(kind)(small.ids()), rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_merge_preserves_output(kind: str) -> None:
    model, plain = adapted(kind), small.model(kind)
    shake(model)
    before = model(small.ids())
    assert not torch.allclose(before, plain(small.ids()))
    assert lora.attached(model.state_dict())
    lora.merge(model)
    torch.testing.assert_close(model(small.ids()), before, rtol=1e-5, atol=1e-6)
    assert not lora.attached(model.state_dict())
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in plain.named_parameters()]
    assert {
        name for name, weight in model.state_dict().items() if not torch.equal(weight, plain.state_dict()[name])
    } == {f"blocks.{i}.parts.0.{name}.weight" for i in range(len(model.blocks)) for name in "qkvo"}


def test_adapter_formula() -> None:
    model = adapted("learned", rank=2, alpha=6.0)
    shake(model)
    adapter = model.blocks[1].mixers[0].k.parametrizations.weight[0]
    assert isinstance(adapter, lora.LowRank)
    assert (adapter.A.shape, adapter.B.shape) == ((2, small.WIDTH), (small.G * small.V, 2))
    expected = small.model("learned").blocks[1].mixers[0].k.weight + 3.0 * adapter.B @ adapter.A
    lora.merge(model)
    torch.testing.assert_close(model.blocks[1].mixers[0].k.weight, expected)


def test_trainable_adapters_and_feature_maps() -> None:
    model = adapted("hybrid")
    shake(model)
    stage = Task(model, None)
    stage(window_batch(small.ids(length=small.T + 1))).backward()
    touched = {name for name, p in model.named_parameters() if p.grad is not None and bool(p.grad.any())}
    expected = {
        f"blocks.{i}.parts.0.{name}.parametrizations.weight.0.{part}"
        for i in range(3)
        for name in "qkvo"
        for part in "AB"
    }
    expected |= {
        f"blocks.{i}.parts.0.inner.maps.{x}.{part}" for i in (0, 2) for x in "qk" for part in ("weight", "bias")
    }
    assert touched == set(stage.trainable()) == expected


@pytest.mark.parametrize("kind, names", [("learned", ["up", "down"]), ("rotary_keep", ["gate", "up", "down"])])
def test_feed_forwards_have_adapters_too(kind: str, names: list[str]) -> None:
    model, plain = small.model(kind), small.model(kind)
    lora.attach(model, 2, 6.0, 1, "all")
    shake(model)
    feed_forwards = {f"blocks.{i}.parts.1.{name}" for i in range(len(model.blocks)) for name in names}
    stage = Task(model, None)
    stage(window_batch(small.ids(length=small.T + 1))).backward()
    trained = {name for name, p in stage.trainable().items() if p.grad is not None and bool(p.grad.any())}
    assert trained == set(stage.trainable())
    assert {name.partition(".parametrizations")[0] for name in trained if ".parts.1." in name} == feed_forwards
    before = model(small.ids())
    lora.merge(model)
    torch.testing.assert_close(model(small.ids()), before, rtol=1e-5, atol=1e-6)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in plain.named_parameters()]
    moved = {name for name, weight in model.state_dict().items() if not torch.equal(weight, plain.state_dict()[name])}
    assert {f"{name}.weight" for name in feed_forwards} < moved


def test_adapter_seed() -> None:
    first, second = (adapted("learned").state_dict() for _ in range(2))
    assert all(torch.equal(weight, second[name]) for name, weight in first.items())


def test_model_without_projections() -> None:
    folded = dataclasses.replace(small.DROPPED, folded=True)
    model = small.model(dataclasses.replace(small.GPT2, layers=(folded,)))
    lora.attach(model, 2, 2.0, 0)  # a folded layer still has its output
    assert [name for name in lora.trainable(model) if name.endswith(".A")] == [
        "blocks.0.parts.0.o.parametrizations.weight.0.A"
    ]
    lora.merge(model)
    del model.blocks[0].mixers[0].o
    with pytest.raises(UserError, match="mixers with projections called q, k, v, o; received none"):
        lora.attach(model, 2, 2.0, 0)


def test_lora_changes_only_projections_and_feature_maps(config: FinetuneConfig) -> None:
    finetune(dataclasses.replace(config, plan=parse_plan("distill", "3", "2e-2"), lora=True, lora_rank=2))
    maps = tuple(f"inner.maps.{side}.{part}" for side in "qk" for part in ("weight", "bias"))
    names = [*(f"{name}.weight" for name in "qkvo"), *maps]
    assert changed(config.model, config.output) == {f"blocks.{i}.parts.0.{name}" for i in range(3) for name in names}
    assert (entry(config)["lora_rank"], entry(config)["lora_alpha"]) == (2, 16.0)


def test_lora_needs_distill_or_task(config: FinetuneConfig) -> None:
    with pytest.raises(UserError, match="the stage distill or task with --lora; received none; "):
        finetune(dataclasses.replace(config, plan=parse_plan("transfer", "3"), lora=True))


@pytest.mark.parametrize("mixers", [False, True])
def test_adapters_alone_are_of_low_rank(mixers: bool, tmp_path: Path) -> None:
    """Feature maps then stay as they are, so that a graph holds the result as an adapter of the model."""
    made, model = small.checkpoint("learned"), small.model("learned")
    lora.attach(model, 1, 6.0, 1, mixers=mixers)
    shake(model)
    stage = Task(model, None)
    chosen = stage.trainable()
    stage(window_batch(small.ids(length=small.T + 1))).backward()
    for weight in chosen.values():
        assert weight.grad is not None
        weight.data -= 0.1 * weight.grad
    lora.merge(model)
    before = made.model.state_dict()
    names = {name.split(".")[4] for name, weight in model.state_dict().items() if not weight.equal(before[name])}
    assert names == ({*"qkvo", "inner"} if mixers else {*"qkvo"})
    refusal = pytest.raises(UserError, match="changes of low rank in the adapter a")
    with refusal if mixers else contextlib.nullcontext():
        export(made, tmp_path / "g.onnx", adapters={"a": lambda: model.eval()})
