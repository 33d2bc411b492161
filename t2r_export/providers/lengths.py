"""Length test: whether a graph predicts a text far from the start as well as at the start.

A page generates without end, so a model that degrades beyond its training length would write noise there. No text is
needed: the model samples short ones, each from the initial state, where it is reliable. Concatenated, they are a long
text like those that the model knows; the last of them are also read from the initial state.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from t2r_runtime import Decoder, Sampling
from t2r_runtime.decode.score import score
from t2r_runtime.errors import UserError

TEXTS, LENGTH, COMPARED = 8, 250, 2  # 2,000 tokens in all; 4,500 steps
MOST = 0.5  # nats/token


@dataclass(frozen=True)
class Decay:
    """Nats per token of the same texts."""

    near: float  # from the initial state
    far: float  # after the preceding texts
    tokens: int  # in all texts

    @property
    def nats(self) -> float:
        return self.far - self.near


def decay(graph: Path) -> Decay:
    """Loss increase of a decoder within TEXTS · LENGTH tokens, or within its positions if it has fewer.

    The difference estimates the Kullback-Leibler divergence of its predictions there from those at the start.
    """
    decoder = Decoder(graph)
    limit = decoder.signature.max_positions or TEXTS * LENGTH
    length = min(LENGTH, limit // TEXTS)
    texts = [_written(decoder, seed, length) for seed in range(TEXTS)]
    together = score(decoder, np.concatenate(texts))
    near = np.concatenate([score(decoder, text) for text in texts[-COMPARED:]])
    # the first token of each is read and not scored
    far = np.concatenate([together[n * length : (n + 1) * length - 1] for n in range(TEXTS - COMPARED, TEXTS)])
    return Decay(-float(near.mean()), -float(far.mean()), TEXTS * length)


def check_lengths(graph: Path) -> None:
    """Raise UserError if the model decays within 2,000 tokens."""
    found = decay(graph)
    if not found.nats <= MOST:
        raise UserError(
            f"a model for a page that loses at most {MOST} nats/token within {found.tokens:,} tokens",
            f"one that loses {found.nats:.2f}",
            "train it on longer texts or convert it with a gate, or pack it all the same with --force",
        )


def _written(decoder: Decoder, seed: int, length: int) -> NDArray[np.int64]:
    """Sample a text of `length` tokens from the initial state."""
    signature = decoder.signature
    first = next((token for token in (signature.bos_token, *signature.eos_tokens) if token is not None), 0)
    decoder.reset()
    new = decoder.generate([first], length - 1, Sampling(temperature=1.0, seed=seed, stop_tokens=()))
    return np.array([first, *new], np.int64)
