"""The contract's noise: its integer definition, its distribution, and independence of its counters."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from t2r_runtime.contract.noise import gumbel, mix, word

LAST = 2**32 - 1


def mixed(x: int) -> int:
    """The mixing function of runtimes/contract/generation.md."""
    x ^= x >> 16
    x = x * 0x85EBCA6B & LAST
    x ^= x >> 13
    x = x * 0xC2B2AE35 & LAST
    return x ^ x >> 16


@given(seed=st.integers(0, LAST), draw=st.integers(0, 2**40), token=st.integers(0, 2**20))
def test_definition(seed: int, draw: int, token: int) -> None:
    h = mixed(mixed(mixed(seed + 0x9E3779B9 & LAST) + draw & LAST) + token & LAST)
    (received,) = gumbel(seed, draw, np.array([token]))
    assert received == pytest.approx(-math.log(-math.log((h + 0.5) / 2**32)), rel=1e-12, abs=1e-12)
    assert -3.13 <= received <= 22.9


def test_known_values() -> None:
    """0 maps to 0, and 1 to the value of every MurmurHash3."""
    assert mix(np.array([0, 1, LAST], np.uint32)).tolist() == [0, 0x514E28B7, mixed(LAST)]


def test_distribution() -> None:
    """Mean is Euler's constant and variance π²/6; neighbouring seeds, draws and tokens are uncorrelated."""
    noise = np.array([[gumbel(seed, draw, np.arange(500)) for draw in range(40)] for seed in range(5)])
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=4 * 1.28 / math.sqrt(noise.size))
    assert noise.var() == pytest.approx(math.pi**2 / 6, rel=0.03)
    for axis in range(3):
        a, b = np.moveaxis(noise, axis, 0)[:-1], np.moveaxis(noise, axis, 0)[1:]
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / math.sqrt(a.size)


def test_seeds_of_any_size() -> None:
    assert [word(seed) for seed in (0, 1, LAST)] == [0, 1, LAST]
    others = [word(seed) for seed in (2**32, 2**32 + 1, 2**33, 2**64, 2**200 + 5)]
    assert all(0 <= seed <= LAST for seed in others)
    assert len({0, 1, *others}) == 7
