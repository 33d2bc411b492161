from __future__ import annotations

import pytest
import torch

import small
from t2r_export.batches.batch import window_batch
from t2r_export.config.mixers import HybridConfig, LinearConfig
from t2r_export.training.layerwise import MAPS, Transfer
from t2r_export.training.optimizers import CombinedOptimizer, learning_rate, make_optimizer, own_rate, restore, set_rate
from t2r_export.training.stages import Task


def stepped(steps: int, restart: int | None = None, broken: int | None = None) -> dict[str, torch.Tensor]:
    """Weights after `steps` of Muon, restored from its state at `restart`; gradients count as infinite at `broken`."""
    stage = Task(small.model("hybrid"), None)
    optimizer = make_optimizer(stage.trainable(), 0.01, 0.1, "muon")
    assert isinstance(optimizer, CombinedOptimizer)
    for step in range(steps):
        if step == restart:
            state = optimizer.state_dict()
            optimizer = make_optimizer(stage.trainable(), 0.01, 0.1, "muon")
            restore(optimizer, state)
        stage(window_batch(small.ids(length=small.T + 1, seed=step))).backward()
        optimizer.found_inf = torch.tensor(float(step == broken))
        optimizer.step()
        optimizer.zero_grad()
    return stage.student.state_dict()


def test_muon_gets_block_matrices_adamw_the_rest() -> None:
    stage = Task(small.model("hybrid"), None)
    optimizer = make_optimizer(stage.trainable(), 0.01, 0.1, "muon")
    assert isinstance(optimizer, CombinedOptimizer)
    names = {id(p): name for name, p in stage.student.named_parameters()}
    adamw, muon = ({names[id(p)] for group in part.param_groups for p in group["params"]} for part in optimizer.parts)
    assert "blocks.1.parts.0.q.weight" in muon
    assert "blocks.0.parts.1.up.weight" in muon
    assert {
        "embedding.weight",
        "head.weight",
        "blocks.0.parts.0.inner.maps.q.weight",
        "blocks.0.parts.0.inner.maps.q.bias",  # (H, K)
        "blocks.0.norms.0.weight",
    } <= adamw
    assert adamw | muon == set(names.values())
    assert not adamw & muon
    assert all(group["lr"] == 0.01 * group["factor"] for group in optimizer.param_groups)


def test_muon_gets_encoder_matrices() -> None:
    stage = Task(small.model(small.translator()), None)
    optimizer = make_optimizer(stage.trainable(), 0.01, 0.1, "muon")
    assert isinstance(optimizer, CombinedOptimizer)
    names = {id(p): name for name, p in stage.student.named_parameters()}
    muon = {names[id(p)] for group in optimizer.parts[1].param_groups for p in group["params"]}
    assert {"encoder.blocks.0.parts.0.q.weight", "blocks.0.parts.2.down.weight"} <= muon
    assert not any("embedding" in name for name in muon)


def test_muon_updates_all_weights_and_resumes() -> None:
    start, whole, again = small.model("hybrid").state_dict(), stepped(4), stepped(4, restart=2)
    for name, weight in whole.items():
        assert not torch.equal(weight, start[name]), name
        assert torch.equal(weight, again[name]), name


def test_non_finite_step_is_skipped() -> None:
    once, left_out = stepped(1), stepped(2, broken=1)
    assert all(torch.equal(weight, left_out[name]) for name, weight in once.items())


def test_muon_without_block_matrices_is_adamw() -> None:
    maps = {"blocks.0.parts.0.inner.maps.q.weight": torch.nn.Parameter(torch.ones(2, 3, 4))}
    optimizer = make_optimizer(maps, 0.1, 0.0, "muon")
    assert isinstance(optimizer, CombinedOptimizer)
    assert [type(part) for part in optimizer.parts] == [torch.optim.AdamW]


def factors(width: float) -> dict[str, float]:
    """Factor on the stage's rate of every parameter of a student with a hybrid layer."""
    hybrid = HybridConfig(3, 6, merge="token", positions="after", update_rule="gated", gate="data")
    stage = Task(small.model(small.with_layers(small.LLAMA, hybrid, hybrid)), None)
    optimizer = make_optimizer(stage.trainable(), 0.01, 0.0, width=width)
    set_rate(optimizer, 1.0)
    names = {id(p): name for name, p in stage.student.named_parameters()}
    return {names[id(p)]: group["lr"] for group in optimizer.param_groups for p in group["params"]}


def test_rates_inside_mixers_follow_inputs_and_sizes() -> None:
    plain, wide = factors(64), factors(128)
    inside = "blocks.0.parts.0.inner."
    assert plain[f"{inside}gates.weight"] == plain[f"{inside}merge_weight"] == 64 / small.WIDTH
    assert plain[f"{inside}merge"] == plain[f"{inside}gates.offset"] == plain[f"{inside}maps.q.bias"] == 1
    assert {rate for name, rate in plain.items() if ".inner." not in name} == {1}
    assert all(rate == plain[name] * (2 if ".inner." in name else 1) for name, rate in wide.items())


def test_rates_of_maps_follow_their_size() -> None:
    """A step of rate 0.01 moves a map by less than a tenth of its size."""
    for size in (1e-3, 1.0, 1e2):
        for d in (4, 64):
            p = torch.nn.Parameter(torch.full((2, d, 3), size))
            rate = own_rate("blocks.0.parts.0.inner.maps.q.weight", p, 64)
            assert rate.factor == pytest.approx(size * 8 / d**0.5)
            assert 0.01 * rate.factor * d**0.5 == pytest.approx(0.08 * size)


def test_transfer_trains_maps_of_hybrids_faster_than_their_gammas() -> None:
    student = small.model(small.with_layers(small.LLAMA, HybridConfig(3, 6), LinearConfig(6)))
    stage = Transfer(student, small.model(small.with_layers(small.LLAMA, small.SOFTMAX, small.SOFTMAX)))
    found = []
    for factors in (None, stage.rate_factors()):
        optimizer = make_optimizer(stage.trainable(), 0.01, 0.0, factors=factors)
        rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
        found.append({name: rates[id(p)] for name, p in stage.trainable().items()})
    faster = {name: found[1][name] / rate for name, rate in found[0].items()}
    maps = {f"blocks.0.parts.0.inner.maps.{one}": MAPS for one in ("q.weight", "k.weight")}
    maps |= {name.replace("weight", "bias"): MAPS / 2 for name in maps}
    assert faster == pytest.approx({name: maps.get(name, 1.0) for name in faster})
    assert maps.keys() | {"blocks.0.parts.0.inner.merge", "blocks.1.parts.0.inner.maps.k.weight"} <= faster.keys()


def test_learning_rate_schedule() -> None:
    rates = [learning_rate(step, 100, 2.0, 0.1) for step in range(100)]
    assert rates[:10] == pytest.approx([0.2 * i for i in range(1, 11)])
    assert max(rates) == rates[9] == 2.0
    assert all(a > b for a, b in zip(rates[9:], rates[10:], strict=False))
    assert 0 < rates[-1] < 0.01
    assert learning_rate(54, 100, 2.0, 0.1) == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("steps, warmup", [(1, 0.0), (1, 1.0), (2, 0.5), (3, 1.0)])
def test_learning_rate_of_short_stages(steps: int, warmup: float) -> None:
    rates = [learning_rate(step, steps, 2.0, warmup) for step in range(steps)]
    assert all(0 < rate <= 2.0 for rate in rates)


def test_weight_decay_only_for_matrices() -> None:
    matrix, vector = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(3))
    matrix.grad, vector.grad = torch.zeros(2, 3), torch.zeros(3)
    biases = torch.nn.Parameter(torch.ones(2, 3))  # one vector per head
    biases.grad = torch.zeros(2, 3)
    named = {"m.weight": matrix, "v": vector, "blocks.0.maps.q.bias": biases}
    make_optimizer(named, 0.1, weight_decay=0.5).step()
    torch.testing.assert_close(matrix.detach(), torch.full((2, 3), 0.95))
    assert torch.equal(vector.detach(), torch.ones(3)) and torch.equal(biases.detach(), torch.ones(2, 3))
    assert len(make_optimizer({"m.weight": matrix}, 0.1, 0.0).param_groups) == 1
