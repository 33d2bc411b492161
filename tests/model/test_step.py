"""Positions, rotations and values that layers share in a step are computed once."""

from __future__ import annotations

import pytest
import torch

from small import B, T, model
from t2r_export.model.step import Step
from t2r_export.model.torch_ops import TorchOps

START = torch.tensor([3, 8], dtype=torch.int32)


def step(tokens: int | None = T, name: str = "rotary_keep") -> Step[torch.Tensor]:
    return Step(TorchOps(tokens), START, model(name).ropes)


@pytest.mark.parametrize("tokens", [None, 1, T])
def test_positions_go_on_from_what_was_read(tokens: int | None) -> None:
    made, count = step(tokens), tokens or 1
    assert torch.equal(made.start, START)
    assert torch.equal(made.position, START[:, None] + torch.arange(count, dtype=torch.int32))
    assert torch.equal(made.after, START + count)
    assert made.position.dtype == made.after.dtype == torch.int32
    assert made.numbers.shape == (B, 1, count, 1)
    assert torch.equal(made.numbers[:, 0, :, 0], made.position.float())


def test_who_counts_nothing_has_no_position() -> None:
    made = Step(TorchOps(), None, ())
    with pytest.raises(AssertionError, match="layers that use positions must set needs_position"):
        _ = made.position


def test_what_is_shared_is_computed_once() -> None:
    made, asked = step(), []
    first, again, other = (made.shared(key, lambda key=key: asked.append(key) or [key]) for key in ("a", "a", "b"))
    assert asked == ["a", "b"]
    assert first is again
    assert (first, other) == (["a"], ["b"])


def test_shared_rotation_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    made = step()
    asked: list[torch.Tensor] = []
    right = type(made.ropes[0]).rotate
    monkeypatch.setattr(
        type(made.ropes[0]), "rotate", lambda self, place, ops: asked.append(place) or right(self, place, ops)
    )
    assert made.rotation(0) is made.rotation(0)
    assert made.rotation(0, last=9) is made.rotation(0, last=9)
    assert [place.max() for place in asked] == [8 + T - 1, 9]
    assert made.rotation(0).cos.shape == (B, 1, T, made.ropes[0].table.shape[1] // 2)


def test_known_rotations_are_shared_by_their_ends() -> None:
    made = step()
    assert made.rotation_between(0, 0, 5) is made.rotation_between(0, 0, 5)
    assert made.rotation_between(0, 0, 5).cos.shape[0] == 5
    assert made.rotation_between(0, 1, 5) is not made.rotation_between(0, 0, 5)


def test_borrow_returns_last_lent() -> None:
    made = step()
    first, second, other = torch.zeros(1), torch.ones(1), torch.ones(2)
    made.lend("weights", first)
    made.lend("others", other)
    assert made.borrowed("weights") is first
    made.lend("weights", second)
    assert made.borrowed("weights") is second
    assert made.borrowed("others") is other


def test_another_step_computes_anew() -> None:
    assert step().rotation(0) is not step().rotation(0)
