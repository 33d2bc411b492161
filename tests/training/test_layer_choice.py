from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import small
import texts
from t2r_export.batches.batch import window_batches
from t2r_export.config.mixers import LinearConfig, SoftmaxConfig, WindowConfig
from t2r_export.convert import convert
from t2r_export.data.corpus import Windows, held_out_windows
from t2r_export.data.shards import Corpus
from t2r_export.errors import CheckFailed
from t2r_export.model.transformer import Transformer
from t2r_export.quality.evaluate import evaluate
from t2r_export.training.cheapest import cheapest
from t2r_export.training.layer_choice import Choice, Option, Trial, choose, transfer
from t2r_runtime.errors import UserError

TRIAL = Trial(steps=3, batch=2, window=8, valid=4)
WIDE, NARROW, LINEAR = WindowConfig(4, 1), WindowConfig(2, 0), LinearConfig(small.K)
LENGTH = 20
ROW = 2 * small.G * small.V * 4  # bytes of one token's keys and values in a layer


def nats(model: Transformer, rows: torch.Tensor) -> float:
    return evaluate(model, window_batches(rows)).nats


def corpus() -> Corpus:
    tokens = small.ids(1, 400, vocabulary=texts.TEACHER.vocab_size)[0].int()
    return Corpus(tokens.numpy(), (300, 400))


def chosen(budget: int, *mixers: Any) -> tuple[Transformer, Choice]:
    teacher = small.model(texts.TEACHER)
    candidates = [convert(teacher, mixer) for mixer in mixers or (WIDE, NARROW, LINEAR)]
    return teacher, choose(teacher, candidates, corpus(), budget, LENGTH, TRIAL)


def test_rows_determine_the_window() -> None:
    rows = small.ids(12, 7, vocabulary=texts.TEACHER.vocab_size).int().numpy()
    teacher = small.model(texts.TEACHER)
    found = choose(teacher, [convert(teacher, NARROW)], Corpus(rows, (8, 12)), 1 << 20, LENGTH, TRIAL)
    assert found.teacher_nats == nats(teacher, torch.from_numpy(rows[8:12]).long())


def test_cost_per_layer() -> None:
    teacher, found = chosen(1 << 20)
    before = {name: weight.clone() for name, weight in small.model(texts.TEACHER).state_dict().items()}
    assert all(torch.equal(weight, before[name]) for name, weight in teacher.state_dict().items())
    assert [type(option.mixer) for option in found.options] == [
        SoftmaxConfig, WindowConfig, WindowConfig, LinearConfig
    ] * 3  # fmt: skip
    rows = held_out_windows(corpus().valid, 10, 3)  # twice what WIDE holds; in all as many tokens as TRIAL names
    assert found.teacher_nats == nats(teacher, rows)
    for option in found.options:
        if option.mixer == NARROW:
            alone = convert(teacher, NARROW, str(option.layer))
            assert option.cost == pytest.approx(nats(alone, rows) - found.teacher_nats, abs=1e-9)
        if option.mixer == SoftmaxConfig():
            assert (option.cost, option.bytes) == (0.0, ROW * LENGTH)
    assert found.tokens == 3 * 2 * 8  # windows are not trained


def test_chosen_model_fits_budget() -> None:
    budget = 2 * ROW * LENGTH + 900
    teacher, found = chosen(budget)
    assert found.bytes == sum(spec.bytes(1, LENGTH) for spec in found.model.state_spec()) <= budget
    assert found.model.config.layers == tuple(option.config for option in found.chosen)
    assert not all(option.mixer == SoftmaxConfig() for option in found.chosen)
    assert [option.layer for option in found.chosen] == [0, 1, 2]
    mine = {p.data_ptr() for p in found.model.parameters()}
    assert not mine & {p.data_ptr() for p in teacher.parameters()}
    rows = held_out_windows(corpus().valid, 10, 3)  # twice what WIDE holds; in all as many tokens as TRIAL names
    assert found.nats == pytest.approx(nats(found.model, rows), abs=1e-9)
    assert found.nats != found.teacher_nats


def test_features_that_rotate_in_another_size() -> None:
    """A layer whose features rotate after the map has its own rotation, which the teacher lacks."""
    rotated = LinearConfig(2 * small.V, positions="after")
    _, found = chosen(1 << 20, rotated)
    costs = [option.cost for option in found.options if option.mixer == rotated]
    assert len(costs) == 3 and all(cost != 0 and math.isfinite(cost) for cost in costs)


def test_large_budget_chooses_least_cost() -> None:
    _, found = chosen(1 << 20)
    assert all(option.cost <= 0 for option in found.chosen)
    linear = [option for option in found.options if option.mixer == LINEAR]
    smallest = sum(option.bytes for option in linear)
    teacher, tight = chosen(smallest + 4, LINEAR)  # 4 bytes: the position
    assert [option.mixer for option in tight.chosen] == [LINEAR] * 3
    learned = tight.model.state_dict()
    plain = convert(teacher, LINEAR).state_dict()
    moved = {name for name, weight in learned.items() if not torch.equal(weight, plain[name])}
    assert moved
    assert all(".inner.maps." in name for name in moved)


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 9), st.integers(-3, 9)), min_size=1, max_size=4), max_size=4), st.data()
)
def test_cheapest_is_optimal(sizes: list[list[tuple[int, int]]], data: Any) -> None:
    options = [
        [Option(layer, small.SOFTMAX, float(increase), count) for count, increase in offers]
        for layer, offers in enumerate(sizes)
    ]
    least = sum(min(option.bytes for option in layer) for layer in options)
    room = data.draw(st.integers(least, least + 20))
    found = cheapest(options, room, room)
    assert [option.layer for option in found] == list(range(len(options)))
    assert sum(option.bytes for option in found) <= room
    fitting = [c for c in itertools.product(*options) if sum(o.bytes for o in c) <= room]
    assert sum(o.cost for o in found) == min(sum(o.cost for o in c) for c in fitting)


def test_windows_limited_by_positions() -> None:
    teacher = small.model(dataclasses.replace(small.CONFIGS["softmax"], max_positions=6))
    found = choose(teacher, [convert(teacher, LINEAR)], corpus(), 1 << 20, LENGTH, TRIAL)
    assert found.tokens == 3 * 2 * 6


@pytest.mark.parametrize("window, length", [(3, 8), (12, 24), (70, 99)])
def test_valid_windows_are_longer_than_what_candidates_hold(window: int, length: int) -> None:
    """Twice the window, at least those of training, at most the text."""
    _, found = chosen(1 << 20, NARROW, WindowConfig(window=window, sinks=0))
    rows = held_out_windows(corpus().valid, length, max(1, TRIAL.valid * TRIAL.window // length))
    assert found.teacher_nats == nats(small.model(texts.TEACHER), rows)


def test_transfer_reduces_loss() -> None:
    teacher = small.model(texts.TEACHER)
    student = convert(teacher, LINEAR)
    windows = Windows(corpus().train, 8, 4, 0)
    first = transfer(student, teacher, windows, 10)
    last = transfer(student, teacher, windows, 60)
    assert last < 0.8 * first
    for nothing_new in (WIDE, LinearConfig(2 * small.V, feature_map="favor")):
        assert transfer(convert(teacher, nothing_new), teacher, windows, 5) == 0.0


def test_choose_refuses_bad_input() -> None:
    with pytest.raises(UserError, match="at least one mixer to try; received none"):
        choose(small.model(texts.TEACHER), (), corpus(), 1000, trial=TRIAL)
    teacher = small.model(texts.TEACHER)
    made = convert(teacher, LINEAR)
    before = {name: weight.clone() for name, weight in made.state_dict().items()}
    least = 3 * small.G * small.K * (small.V + 1) * 4 + 4
    with pytest.raises(UserError, match=f"a budget of at least {least} bytes; received {least - 1}; raise it"):
        chosen(least - 1, LINEAR)
    with pytest.raises(UserError, match=f"a budget of at least {least} bytes"):  # refused before any training
        choose(teacher, [made], corpus(), least - 1, LENGTH, TRIAL)
    assert all(torch.equal(weight, before[name]) for name, weight in made.state_dict().items())
    assert chosen(least, LINEAR)[1].bytes == least
    with pytest.raises(UserError, match="text to measure on"):
        choose(teacher, [convert(teacher, LINEAR)], corpus(), 1000, trial=dataclasses.replace(TRIAL, window=200))
    broken = small.model(texts.TEACHER)
    torch.nn.init.constant_(broken.blocks[1].mixers[0].v.weight, 3e38)
    with pytest.raises(CheckFailed, match="the loss of transfer is nan for a linear mixer; leave it out"):
        choose(broken, [convert(broken, LINEAR)], corpus(), 1 << 20, trial=TRIAL)
