"""Two versions in turn: which of them is the new one, and what a ratio is of."""

from __future__ import annotations

import pytest

import trees


@pytest.mark.parametrize("rounds", [1, 4])
def test_ratios_are_new_to_old_whoever_is_first(rounds: int) -> None:
    turns = []

    def old() -> float:
        turns.append("old")
        return 2.0

    def new() -> float:
        turns.append("new")
        return 3.0

    seconds, found = trees.ratios(old, new, rounds)
    assert seconds == 3
    assert found == [1.5] * rounds
    turns = turns[2:]  # the first of each is no round
    assert turns == (["new", "old", "old", "new"] * rounds)[: 2 * rounds]


def test_a_graph_is_fed_one_sequence_of_nothing() -> None:
    class Node:
        def __init__(self, name: str, shape: list[object], kind: str) -> None:
            self.name, self.shape, self.type = name, shape, kind

    class Session:
        def get_inputs(self) -> list[Node]:
            return [
                Node("input_ids", ["B", "N"], "tensor(int64)"),
                Node("past_S.0", ["B", 3, 4], "tensor(float)"),
                Node("past_k.1", ["B", 3, "T", 4], "tensor(float)"),
            ]

    feeds = trees.zeros(Session(), (7,))  # type: ignore[arg-type]
    assert {name: value.shape for name, value in feeds.items()} == {
        "input_ids": (1, 7),
        "past_S.0": (1, 3, 4),
        "past_k.1": (1, 3, 0, 4),
    }
