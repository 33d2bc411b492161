"""Repetition measure, and the sampling of the demo."""

from __future__ import annotations

import pytest

from repetition import SETTINGS, repeated
from t2r_export.cli.demo import TEMPERATURE, TOP_P
from t2r_runtime import Sampling


@pytest.mark.parametrize(
    "tokens, share",
    [([], 0), ([1, 2, 3], 0), ([1, 2, 3, 4], 0), ([1, 2, 3, 4, 1, 2, 3, 4], 1 / 5), ([7] * 8, 4 / 5)],
)
def test_repeated_share(tokens: list[int], share: float) -> None:
    assert repeated(tokens) == pytest.approx(share)


def test_demo_sampling_is_measured() -> None:
    assert Sampling(TEMPERATURE, top_p=TOP_P) in SETTINGS
