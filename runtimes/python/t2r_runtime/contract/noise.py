"""Random numbers that need no memory: a hash of seed, draw and token, so that every runtime makes the same ones.

The usual way is a generator whose state moves on with each number (numpy's PCG64), which no ONNX graph has. A counter
and a hash (Salmon et al. 2011) are five operators on whole numbers, here MurmurHash3's finalizer (Appleby), and the
number of any token in any draw is there without those before it. One draw chooses one token.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

GOLDEN = 0x9E3779B9  # 2^32 over the golden ratio, so that seed 0 is like any other
FACTORS = (0x85EBCA6B, 0xC2B2AE35)
SHIFTS = (16, 13, 16)
WORD = 1 << 32


def word(seed: int) -> int:
    """A seed of any size as one of 32 bits; itself if it is less than 2^32."""
    words = [seed >> shift & (WORD - 1) for shift in range(0, max(seed.bit_length(), 1), 32)]
    return functools.reduce(lambda rest, digit: _mix_one(rest) ^ digit, reversed(words), 0)


def gumbel(seed: int, draw: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise of some tokens: the largest of log p + noise is a draw from p (Gumbel 1954).

    Args:
        seed: 0 … 2^32 - 1.
        draw: the number of draws made with this seed before.
        tokens: int64 (N,).

    Returns:
        float64 (N,), from -3.13 to 22.9: a token e^26 times less probable than another is never drawn before it.
    """
    key = _mix_one((_mix_one((seed + GOLDEN) % WORD) + draw) % WORD)
    noise = (mix((tokens + key).astype(np.uint32)) + 0.5) / WORD  # uniform
    for _ in range(2):  # in place: new memory would take longer than the logarithm of a whole vocabulary
        np.log(noise, out=noise)
        np.negative(noise, out=noise)
    return noise


def mix(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """MurmurHash3's finalizer: a bijection of 32 bits in which each bit of x turns half of the others."""
    for shift, factor in zip(SHIFTS, FACTORS, strict=False):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return np.asarray(x ^ (x >> np.uint32(SHIFTS[-1])))


def _mix_one(x: int) -> int:
    return int(mix(np.array([x], np.uint32))[0])
