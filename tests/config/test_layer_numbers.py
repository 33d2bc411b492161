from __future__ import annotations

import pytest

from t2r_export.config.layer_numbers import choose_layers, ranges
from t2r_runtime.errors import UserError


@pytest.mark.parametrize(
    "text, expected",
    [
        ("all", {0, 1, 2, 3, 4, 5, 6, 7}),
        ("none", set()),
        ("every:4", {0, 1, 2, 4, 5, 6}),
        ("every:1", set()),
        ("every:9", {0, 1, 2, 3, 4, 5, 6, 7}),
        ("0,2,5", {0, 2, 5}),
        (" 7 , 7", {7}),
    ],
)
def test_choice_of_layers(text: str, expected: set[int]) -> None:
    assert choose_layers(text, [True] * 8) == expected


def test_softmax_layers_among_others() -> None:
    assert choose_layers("softmax", [False, True, False, True]) == {1, 3}


@pytest.mark.parametrize("text", ["", "some", "every:", "every:0", "every:-1", "0;1", "1,", "0-3"])
def test_unknown_choice(text: str) -> None:
    with pytest.raises(UserError) as caught:
        choose_layers(text, [True] * 8)
    assert str(caught.value) == (
        f"expected layers as all, softmax, none, every:N or 0,2,5; received {text!r}; write it in one of those forms"
    )


@pytest.mark.parametrize("text", ["8", "-1", "0,99"])
def test_a_layer_that_is_not_there(text: str) -> None:
    with pytest.raises(UserError, match=f"expected layers from 0 to 7; received {text}; choose layers that the model"):
        choose_layers(text, [True] * 8)


def test_ranges() -> None:
    assert ranges([]) == ""
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
