"""Gates between the mixers of each layer: what a budget leaves them, what they learn, and what is chosen by them."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import small
import texts
from t2r_export.config.mixers import LinearConfig, SoftmaxConfig, WindowConfig
from t2r_export.convert import convert
from t2r_export.data.corpus import Corpus, Windows
from t2r_export.errors import CheckFailed
from t2r_export.model.transformer import Transformer
from t2r_export.training.joint_choice import Mixture, mixed, train_gates, within
from t2r_export.training.layer_choice import Choice, Trial, choose
from t2r_runtime.errors import UserError

TRIAL = Trial(steps=20, jointly=True, batch=2, window=8, valid=4)
WIDE, LINEAR = WindowConfig(7, 1), LinearConfig(small.K)
LENGTH = 20


def corpus() -> Corpus:
    tokens = small.ids(1, 400, vocabulary=texts.TEACHER.vocab_size)[0].int()
    return Corpus(tokens[:300], tokens[300:], tokens[:0])


def ruined(mixer: LinearConfig | WindowConfig, *layers: int) -> tuple[Transformer, Transformer]:
    """A teacher, and its conversion, in which these layers say the opposite."""
    teacher = small.model(texts.TEACHER)
    student = convert(teacher, mixer)
    for layer in layers:
        student.blocks[layer].mixers[0].o.weight.data.mul_(-3.0)  # type: ignore[operator, union-attr]
    return teacher, student


@given(
    st.lists(st.lists(st.tuples(st.integers(1, 10**6), st.floats(-9, 9)), min_size=3, max_size=3), min_size=1),
    st.floats(0, 1.2),
)
def test_the_budget_is_the_expectation(layers: list[list[tuple[int, float]]], share: float) -> None:
    b, gates = torch.tensor(layers, dtype=torch.float64).unbind(2)
    least, most = float(b.min(1).values.sum()), float(b.max(1).values.sum())
    room = int(least + share * (most - least))
    shares = within(gates, b, room)
    torch.testing.assert_close(shares.sum(1), torch.ones(len(b), dtype=torch.float64))
    expected, free = float((shares * b).sum()), torch.softmax(gates, 1)
    if float((free * b).sum()) <= room:
        assert torch.equal(shares, free)
    elif room > least:
        assert expected == pytest.approx(room, rel=1e-5)
    else:
        assert expected == pytest.approx(least, rel=1e-5)


@torch.no_grad()
def test_one_branch_alone_is_that_model_and_the_teacher_comes_back() -> None:
    teacher, student = ruined(LINEAR)
    ids = small.ids(length=9, vocabulary=texts.TEACHER.vocab_size)
    before, expected = teacher(ids), student(ids)
    mixtures = [Mixture(layer, [teacher, student]) for layer in range(3)]
    contexts = [(m.init_state(len(ids)), m.context(m.init_state(len(ids)), m.ops(9))) for m in (teacher, student)]
    for mixture in mixtures:
        mixture.contexts = contexts
    for shares, same in (((1.0, 0.0), before), ((0.0, 1.0), expected)):
        for mixture in mixtures:
            mixture.shares = torch.tensor(shares)
        with mixed(teacher, mixtures):
            torch.testing.assert_close(teacher(ids), same)
    assert torch.equal(teacher(ids), before)
    with pytest.raises(ZeroDivisionError), mixed(teacher, mixtures):
        raise ZeroDivisionError
    assert torch.equal(teacher(ids), before)


def test_gates_find_the_layer_that_must_stay() -> None:
    teacher, student = ruined(WIDE, 1)
    sizes = torch.tensor([[100.0, 10.0]] * 3, dtype=torch.float64)
    before = {name: weight.clone() for name, weight in student.state_dict().items()}
    learned, shares = train_gates(teacher, [student], sizes, 120, Windows(corpus().train, 8, 4, 0), range(60))
    wanted = (learned[:, 1] - learned[:, 0]).tolist()
    assert wanted[1] < min(wanted[0], wanted[2]) - 1
    assert float((shares * sizes).sum()) == pytest.approx(120)
    assert all(torch.equal(weight, before[name]) for name, weight in student.state_dict().items())


def chosen(budget: int, *layers: int, trial: Trial = TRIAL) -> Choice:
    teacher, student = ruined(WIDE, *layers)
    return choose(teacher, [student], corpus(), budget, LENGTH, trial)


def test_the_choice_follows_the_gates_and_is_the_same_again() -> None:
    row = 2 * small.G * small.V * 4
    budget = row * LENGTH + 2 * row * 8 + 4  # one layer may stay; 4: the position
    found = chosen(budget, 1)
    assert [type(option.mixer) for option in found.chosen] == [WindowConfig, SoftmaxConfig, WindowConfig]
    assert found.model.config.layers == tuple(option.config for option in found.chosen)
    assert found.bytes == budget
    for layer in range(3):
        gates = [option.gate for option in found.options if option.layer == layer]
        assert None not in gates and sum(gates) == pytest.approx(1)  # type: ignore[arg-type]
    assert found.tokens == 20 * 2 * 8  # the gates'; a window learns nothing
    assert found.options == chosen(budget, 1).options
    other = chosen(budget, 1, trial=dataclasses.replace(TRIAL, seed=1))
    assert found.options != other.options
    (last,) = [o.layer for o in chosen(budget, 2).chosen if isinstance(o.mixer, SoftmaxConfig)]
    assert last == 2


def test_what_cannot_be_chosen_jointly() -> None:
    with pytest.raises(UserError, match="a budget of at least"):
        chosen(100)
    teacher, student = ruined(WIDE)
    torch.nn.init.constant_(student.blocks[1].mixers[0].v.weight, 3e38)  # type: ignore[arg-type, union-attr]
    with pytest.raises(CheckFailed, match="gates between the layers' mixers are not finite"):
        choose(teacher, [student], corpus(), 1 << 20, LENGTH, TRIAL)
