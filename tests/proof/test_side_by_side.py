"""Error measures. test_verify tests the detection of faults."""

from __future__ import annotations

import math

import numpy as np
import pytest

from t2r_export.proof.side_by_side import Errors, state_error


def test_worse_errors_are_kept() -> None:
    one, other = Errors(logits=0.5, states=math.nan), Errors(logits=0.25, states=9.0)
    for worst in (one.or_worse(other), other.or_worse(one)):  # max() would lose a NaN in one of its arguments
        assert worst.logits == 0.5
        assert math.isnan(worst.states)


def test_state_error() -> None:
    expected = {"S": np.array([[4.0, -8.0]], np.float32), "position": np.array([3], np.int32)}
    assert state_error(expected, expected) == 0
    assert state_error(expected | {"S": np.array([[4.0, -7.0]], np.float32)}, expected) == 1 / 8
    assert state_error(expected | {"position": np.array([4], np.int32)}, expected) == 1 / 3
    assert np.isnan(state_error(expected | {"S": np.array([[np.nan, -8.0]], np.float32)}, expected))
    assert state_error({"S": np.zeros((1, 0))}, {"S": np.zeros((1, 0))}) == 0
    with pytest.raises(AssertionError, match="S"):
        state_error({"S": np.zeros((2, 1))}, {"S": np.zeros((1, 2))})
