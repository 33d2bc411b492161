"""The names of a graph that writes by itself, and what goes into it and comes out: runtimes/CONTRACT.md, "Writing"."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.sampling import Sampler

MAX_TOKENS = "max_tokens"  # int64 (): the most that are written
STOP_TOKENS = "stop_tokens"  # int64 (any number): the text ends with the first of them
TEMPERATURE = "temperature"  # float64 (): 0 is greedy
TOP_K = "top_k"  # int64 (): draw from that many of the largest logits, 0 from all
TOP_P = "top_p"  # float64 (): of those, from the most probable that together reach it, 1 from all
SEED = "seed"  # int64 (): of the noise, 0 … 2^32 - 1
DRAWN = "drawn"  # int64 (): tokens that were chosen with this seed before
WRITTEN = "tokens"  # int64 (N,): what was written


def feeds(sampler: Sampler, max_tokens: int, stop_tokens: Iterable[int]) -> dict[str, NDArray[Any]]:
    """What a loop takes beside the token and the states."""
    sampling = sampler.sampling
    numbers = {MAX_TOKENS: max_tokens, TOP_K: sampling.top_k, SEED: sampler.seed, DRAWN: sampler.draws}
    return {
        **{name: np.array(number, np.int64) for name, number in numbers.items()},
        TEMPERATURE: np.array(sampling.temperature, np.float64),
        TOP_P: np.array(sampling.top_p, np.float64),
        STOP_TOKENS: np.array(sorted(stop_tokens), np.int64),
    }
