"""A test of length: whether a graph predicts a text as well far behind the start as at the start.

A page has no end, so a model that is lost after its training length would write noise there. No text is needed: the
model writes some itself, each from the initial state, where it is sound. Read one after the other they are a long text
of the kind that the model knows, and the last of them are read once more from the initial state.
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
    far: float  # after the others
    tokens: int  # read before the last text ends

    @property
    def nats(self) -> float:
        return self.far - self.near


def decay(graph: Path) -> Decay:
    """What a decoder loses within TEXTS · LENGTH tokens, or within its positions where it has fewer.

    The difference estimates Kullback-Leibler's divergence of what it predicts there from what it predicts at the start.
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
    """Raises UserError: a model that decays within 2,000 tokens."""
    found = decay(graph)
    if not found.nats <= MOST:
        raise UserError(
            f"a model for a page that loses at most {MOST} nats/token within {found.tokens:,} tokens",
            f"one that loses {found.nats:.2f}",
            "train it on longer texts or convert it with a gate, or pack it all the same with --force",
        )


def _written(decoder: Decoder, seed: int, length: int) -> NDArray[np.int64]:
    """A text of that many tokens from the initial state."""
    signature = decoder.signature
    first = next((token for token in (signature.bos_token, *signature.eos_tokens) if token is not None), 0)
    decoder.reset()
    new = decoder.generate([first], length - 1, Sampling(temperature=1.0, seed=seed, stop_tokens=()))
    return np.array([first, *new], np.int64)
