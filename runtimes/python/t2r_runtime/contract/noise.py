"""Counter-based random numbers: a hash of seed, draw and token, equal in every runtime and in ONNX graphs.

A stateful generator such as PCG64 cannot be expressed in ONNX. A counter and a hash (Salmon et al. 2011), here
MurmurHash3's finalizer (Appleby), take five integer operators. One draw chooses one token.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

GOLDEN = 0x9E3779B9  # 2^32 / golden ratio; seed 0 would hash to 0 otherwise
FACTORS = (0x85EBCA6B, 0xC2B2AE35)
SHIFTS = (16, 13, 16)
WORD = 1 << 32


def word(seed: int) -> int:
    """Hash a seed of any size to 32 bits; seeds below 2^32 are unchanged."""
    words = [seed >> shift & (WORD - 1) for shift in range(0, max(seed.bit_length(), 1), 32)]
    return functools.reduce(lambda rest, digit: _mix_one(rest) ^ digit, reversed(words), 0)


def gumbel(seed: int, draw: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise per token: the argmax of log p + noise is a sample of p (Gumbel 1954).

    Args:
        seed: 0 … 2^32 - 1.
        draw: number of earlier draws with this seed.
        tokens: int64 (N,).

    Returns:
        float64 (N,), from -3.13 to 22.9; so a token e^26 times less likely than another is never sampled.
    """
    key = _mix_one((_mix_one((seed + GOLDEN) % WORD) + draw) % WORD)
    noise = (mix((tokens + key).astype(np.uint32)) + 0.5) / WORD  # uniform
    for _ in range(2):  # in place: allocation is slower than the logarithm
        np.log(noise, out=noise)
        np.negative(noise, out=noise)
    return noise


def mix(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """MurmurHash3's finalizer, a bijection of 32 bits in which each input bit flips half of the output bits."""
    for shift, factor in zip(SHIFTS, FACTORS, strict=False):
        x = (x ^ (x >> np.uint32(shift))) * np.uint32(factor)
    return np.asarray(x ^ (x >> np.uint32(SHIFTS[-1])))


def _mix_one(x: int) -> int:
    return int(mix(np.array([x], np.uint32))[0])
