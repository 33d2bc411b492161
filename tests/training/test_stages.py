from __future__ import annotations

import dataclasses
import pkgutil
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import small
import texts
from t2r_export.batches.batch import window_batch as read
from t2r_export.batches.batch import window_batches
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.stages import STAGES
from t2r_export.convert import convert
from t2r_export.lab.config.span import SpanConfig
from t2r_export.model.ops import State
from t2r_export.model.step import Step
from t2r_export.model.transformer import Transformer
from t2r_export.quality.evaluate import evaluate
from t2r_export.training import losses
from t2r_export.training.layerwise import Align, Transfer
from t2r_export.training.losses import CrossEntropy, Divergence, divergence, divergence_target
from t2r_export.training.stages import Distill, LossWeights, Stage, Task
from t2r_runtime.errors import UserError

PIECES = pytest.mark.parametrize("piece", [1, 21, 1 << 20])  # one row of 7 tokens at a time, three of 5 rows, all


def pair(layers: str = "all") -> tuple[Transformer, Transformer]:
    teacher = small.model(texts.TEACHER)
    return convert(teacher, LinearConfig(small.K), layers), teacher


def windows(seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(texts.TEACHER.vocab_size, (small.B, small.T + 1), generator=generator)


def nats(model: Transformer, rows: torch.Tensor) -> float:
    return evaluate(model, window_batches(rows)).nats


def start(model: Transformer) -> tuple[State[Tensor], Step[Tensor]]:
    """States and context for windows of T tokens."""
    states = model.init_state(small.B)
    return states, model.context(states, model.ops(small.T))


@pytest.mark.parametrize("name", STAGES)
def test_stage_table_names_classes(name: str) -> None:
    stage = pkgutil.resolve_name(STAGES[name].stage)
    assert issubclass(stage, Stage)
    assert stage.__name__.lower() == name
    student, teacher = pair()
    assert stage(student, teacher if STAGES[name].needs_teacher else None)(read(windows())).isfinite()


@pytest.mark.parametrize("layers, expected", [("all", (0, 1, 2)), ("1", (1,))])
def test_transfer_trains_only_feature_maps(layers: str, expected: tuple[int, ...]) -> None:
    student, teacher = pair(layers)
    stage = Transfer(student, teacher)
    stage(read(windows())).backward()
    touched = {name for name, p in student.named_parameters() if p.grad is not None and bool(p.grad.any())}
    maps = [f"inner.maps.{x}.{part}" for x in "qk" for part in ("weight", "bias")]
    assert touched == set(stage.trainable()) == {f"blocks.{i}.parts.0.{name}" for i in expected for name in maps}
    assert all(p.grad is None for p in teacher.parameters())


def test_transfer_loss() -> None:
    student, teacher = pair("0,2")
    rows = windows()
    stage = Transfer(student, teacher)
    stage.measure(read(rows))
    expected = 0.0
    with torch.no_grad():
        (states, step), (own, own_step) = start(teacher), start(student)
        x = teacher.embed(rows[:, :-1], step)
        for layer, block in enumerate(teacher.blocks):
            normed = block.norms[0](x, step.ops)
            target, _ = block.mixers[0](normed, teacher.layer_state(states, layer), step)
            if layer != 1:
                y, _ = student.blocks[layer].mixers[0](normed, student.layer_state(own, layer), own_step)
                variance = target.var(0, unbiased=False).mean()
                expected += float(F.mse_loss(y, target) / variance)
            x, _ = block(x, teacher.layer_state(states, layer), step)
    assert float(stage(read(rows)).detach()) == pytest.approx(expected, rel=1e-5)


def test_transfer_loss_is_scale_invariant() -> None:
    student, teacher = pair()
    for model in (student, teacher):
        with torch.no_grad():
            model.blocks[1].mixers[0].o.weight.mul_(100)
            model.blocks[2].norms[0].weight.mul_(0.01)
    stage = Transfer(student, teacher)
    plain = float(stage(read(windows())).detach())
    stage.measure(read(windows()))
    assert plain > 1000  # before `measure`, only the second layer counts
    assert float(stage(read(windows())).detach()) < 100
    assert stage.variance[1] > 1e3 * stage.variance[0]


def test_transfer_refuses_mismatched_models() -> None:
    student, teacher = pair()
    with pytest.raises(UserError, match="convert the model first"):
        Transfer(teacher, small.model(texts.TEACHER))
    short = small.model(dataclasses.replace(texts.TEACHER, layers=(small.SOFTMAX,)))
    with pytest.raises(UserError, match="1 layers of width 10 for 3 of 10"):
        Transfer(student, short)


def test_align_trains_only_new_mixers() -> None:
    student, teacher = pair("0,2")
    stage = Align(student, teacher)
    stage(read(windows())).backward()
    touched = {name for name, p in student.named_parameters() if p.grad is not None and bool(p.grad.any())}
    expected = {n for n, _ in student.named_parameters() if n.startswith(("blocks.0.parts.0.", "blocks.2.parts.0."))}
    assert touched == set(stage.trainable()) == expected
    assert all(p.grad is None for p in teacher.parameters())


def test_align_loss() -> None:
    student, teacher = pair("0,2")
    rows = windows()
    stage = Align(student, teacher)
    stage.measure(read(rows))
    expected = 0.0
    with torch.no_grad():
        (states, step), (own, own_step) = start(teacher), start(student)
        x = teacher.embed(rows[:, :-1], step)
        for layer, block in enumerate(teacher.blocks):
            target, _ = block(x, teacher.layer_state(states, layer), step)
            if layer != 1:
                y, _ = student.blocks[layer](x, student.layer_state(own, layer), own_step)
                added = (target - x).var(0, unbiased=False).mean()
                expected += float(F.mse_loss(y, target) / added)
            x = target
    assert float(stage(read(rows)).detach()) == pytest.approx(expected, rel=1e-5)


def test_align_refuses_mismatched_models() -> None:
    student, teacher = pair()
    with pytest.raises(UserError, match="convert the model first, or leave align out"):
        Align(teacher, small.model(texts.TEACHER))
    with pytest.raises(UserError, match="1 layers of width 10 for 3 of 10; .* leave align out"):
        Align(student, small.model(dataclasses.replace(texts.TEACHER, layers=(small.SOFTMAX,))))


def test_self_distillation_loss_is_zero() -> None:
    student, _ = pair()
    same = convert(small.model(texts.TEACHER), LinearConfig(small.K))
    loss = Distill(student, same, LossWeights(hidden=1.0))(read(windows()))
    loss.backward()
    assert abs(float(loss.detach())) < 1e-6
    gradients = [p.grad for p in student.parameters() if p.grad is not None]
    assert len(gradients) == len(list(student.parameters()))
    assert max(float(g.abs().max()) for g in gradients) < 1e-5


def test_distill_cross_entropy_weight() -> None:
    student, teacher = pair()
    batch = read(windows())
    plain, mixed = (Distill(student, teacher, LossWeights(cross_entropy=w))(batch) for w in (0.0, 0.25))
    assert float((mixed - plain).detach()) == pytest.approx(0.25 * nats(student, windows()), rel=1e-5)


def test_distill_hidden_weight() -> None:
    student, teacher = pair()
    rows = windows()
    plain, mixed = Distill(student, teacher), Distill(student, teacher, LossWeights(hidden=3.0))
    for stage in (plain, mixed):
        stage.measure(read(rows))
    shares = []
    with torch.no_grad():
        for ours, theirs in zip(*(model.traces(rows[:, :-1]) for model in (student, teacher)), strict=True):
            spread = theirs.output.var(0, unbiased=False).mean()
            shares.append(float(F.mse_loss(ours.output, theirs.output) / spread))
        assert float(mixed(read(rows)) - plain(read(rows))) == pytest.approx(
            sum(shares), rel=1e-4
        )  # three layers, weight three
    other = small.model(dataclasses.replace(texts.TEACHER, layers=(small.SOFTMAX,)))
    Distill(student, other)(read(rows))
    with pytest.raises(UserError, match="set the weight of hidden states to 0"):
        Distill(student, other, LossWeights(hidden=1.0))


@pytest.mark.parametrize("kind", ["hybrid", "learned", "sinusoidal"])
def test_traces_equal_forward(kind: str) -> None:
    model, ids = small.model(kind), windows()[:, :-1]
    logits = model.logits_of(model.traces(ids)[-1].output).view(*ids.shape, -1)
    torch.testing.assert_close(logits, model(ids), rtol=0, atol=0)


def test_task_loss_is_cross_entropy() -> None:
    student, _ = pair()
    assert float(Task(student, None)(read(windows())).detach()) == pytest.approx(nats(student, windows()), rel=1e-6)


@PIECES
def test_divergence_value_and_gradient(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "PIECE", piece)
    generator = torch.Generator().manual_seed(0)
    q, p = (torch.randn(5, 7, dtype=torch.float64, generator=generator) * 3 for _ in range(2))
    q.requires_grad_()
    expected = F.kl_div(F.log_softmax(q, -1), F.log_softmax(p, -1), log_target=True, reduction="batchmean")
    found: Any = Divergence.apply(q, p)
    torch.testing.assert_close(found, expected)
    assert torch.autograd.gradcheck(lambda q: 3 * Divergence.apply(q, p), (q,))


@pytest.mark.parametrize("of", [Divergence, CrossEntropy])
def test_losses_of_bfloat16_are_computed_in_float32(of: type[torch.autograd.Function]) -> None:
    q = torch.randn(5, 7).bfloat16().requires_grad_()
    target: tuple[Any, ...] = (torch.randn(5, 7).bfloat16(),) if of is Divergence else (torch.arange(5), 0.25)
    loss: Any = of.apply(q, *target)
    loss.backward()
    assert loss.dtype == torch.float32
    assert q.grad is not None
    assert q.grad.dtype == torch.bfloat16
    wide = [value.float() if isinstance(value, Tensor) and value.is_floating_point() else value for value in target]
    torch.testing.assert_close(loss, of.apply(q.float(), *wide))


@PIECES
@pytest.mark.parametrize("smoothing", [0.0, 0.25])
def test_cross_entropy_value_and_gradient(piece: int, smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "PIECE", piece)
    logits = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.tensor([6, 0, 3, 3, 1])
    found: Any = CrossEntropy.apply(3 * logits, labels, smoothing)
    torch.testing.assert_close(found, F.cross_entropy(3 * logits, labels, label_smoothing=smoothing))
    assert torch.autograd.gradcheck(lambda q: 3 * CrossEntropy.apply(q, labels, smoothing), (logits,))


@pytest.mark.parametrize("tied", [False, True])
def test_loss_in_pieces_has_the_same_gradients(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(texts.TEACHER, tied_head=tied)
    teacher, student = small.model(config, seed=1), small.model(config, seed=2)
    stages = Distill(student, teacher, LossWeights(hidden=2.0, cross_entropy=0.5, kl_top=3)), Task(student, None)
    found = []
    for rows in (100, 7):  # B·T = 10 rows: at once; 7 and 3
        monkeypatch.setattr(losses, "LEAST_ROWS", rows)
        monkeypatch.setattr(losses, "LOGITS", 1)
        for stage in stages:
            loss = stage(read(windows()))
            (3 * loss).backward()
            with torch.no_grad():
                assert stage(read(windows())) == pytest.approx(float(loss.detach()), rel=1e-6)
            found.append([loss.detach(), *(p.grad.clone() for p in student.parameters() if p.grad is not None)])
            student.zero_grad()
    for whole, pieces in zip(found[:2], found[2:], strict=True):
        for one, other in zip(whole, pieces, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-5)


def test_span_penalty_shortens_spans() -> None:
    teacher = small.model(texts.TEACHER)
    student = convert(teacher, SpanConfig(span=6, ramp=2, span_loss=0.5))
    rows = windows()
    for stage in (Distill(student, teacher), Task(student, None)):
        plain = sum(float(block.mixers[0].penalty().detach()) for block in student.blocks)
        assert plain > 0
        assert float(stage.penalty().detach()) == pytest.approx(plain)
        stage(read(rows)).backward()
    without = convert(teacher, SpanConfig(span=6, ramp=2, span_loss=0.0))
    losses = [float(Task(model, None)(read(rows)).detach()) for model in (student, without)]
    assert losses[0] - losses[1] == pytest.approx(plain, rel=1e-4)


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), vocabulary=st.integers(2, 40), scale=st.sampled_from([0.1, 3.0, 30.0]))
def test_top_divergence_of_all_tokens_is_kl(seed: int, vocabulary: int, scale: float) -> None:
    """Values and gradients, also for K above the vocabulary size."""
    generator = torch.Generator().manual_seed(seed)
    q, p = (torch.randn(3, vocabulary, dtype=torch.float64, generator=generator) * scale for _ in range(2))
    found = []
    for top in (0, vocabulary, vocabulary + 5):
        logits = q.clone().requires_grad_()
        loss = divergence(logits, divergence_target(p, top))
        loss.backward()
        assert logits.grad is not None
        found.append((loss.detach(), logits.grad))
    for loss, gradient in found[1:]:
        torch.testing.assert_close(loss, found[0][0])
        torch.testing.assert_close(gradient, found[0][1], rtol=1e-6, atol=1e-12)


@settings(max_examples=60)
@given(seed=st.integers(0, 10**6), top=st.integers(1, 8))
def test_top_divergence_value_and_gradient(seed: int, top: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, p = (torch.randn(4, 9, dtype=torch.float64, generator=generator) * 2 for _ in range(2))
    q.requires_grad_()
    order = p.argsort(-1, descending=True)
    buckets = [torch.softmax(x, -1).gather(-1, order) for x in (q, p)]
    mine, theirs = (torch.cat([x[:, :top], x[:, top:].sum(-1, keepdim=True)], -1) for x in buckets)
    expected = F.kl_div(mine.log(), theirs.log(), log_target=True, reduction="batchmean")
    found = divergence(q, divergence_target(p, top))
    torch.testing.assert_close(found, expected)
    assert float(found.detach()) <= float(divergence(q, divergence_target(p, 0)).detach()) + 1e-12
    assert torch.autograd.gradcheck(lambda q: 3 * divergence(q, divergence_target(p, top)), (q,))


def test_top_divergence_with_empty_bucket_is_finite() -> None:
    q = torch.tensor([[200.0, 0.0, 0.0]], requires_grad=True)
    loss = divergence(q, divergence_target(torch.zeros(1, 3), 1))
    loss.backward()
    assert loss.isfinite()
    assert q.grad is not None and bool(q.grad.isfinite().all())


def test_distill_kl_top() -> None:
    student, teacher = pair()
    rows = windows()
    plain, top, all_of_them = (
        float(Distill(student, teacher, LossWeights(kl_top=n))(read(rows)).detach())
        for n in (0, 2, texts.TEACHER.vocab_size)
    )
    assert 0 < top < plain
    assert all_of_them == pytest.approx(plain, rel=1e-5)
