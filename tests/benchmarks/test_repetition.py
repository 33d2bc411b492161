"""The repetition measure and the demo's sampling."""

from __future__ import annotations

import pytest

from repetition import SETTINGS, repeated, unknown
from t2r_export.cli.demo import TEMPERATURE, TOP_P
from t2r_runtime import Sampling


@pytest.mark.parametrize(
    "tokens, share",
    [([], 0), ([1, 2, 3], 0), ([1, 2, 3, 4], 0), ([1, 2, 3, 4, 1, 2, 3, 4], 1 / 5), ([7] * 8, 4 / 5)],
)
def test_repeated_share(tokens: list[int], share: float) -> None:
    assert repeated(tokens) == pytest.approx(share)


@pytest.mark.parametrize(
    "text, share",
    [("", 0), ("...", 0), ("The hen's red.", 0), ("The hens", 1 / 2), ("Zzz 12 zzz_the", 2 / 3)],
)
def test_share_of_unknown_words(text: str, share: float) -> None:
    assert unknown(text, {"the", "hen's", "red"}) == pytest.approx(share)


def test_demo_sampling_is_measured() -> None:
    assert Sampling(TEMPERATURE, top_p=TOP_P) in SETTINGS
