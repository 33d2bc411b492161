"""A model and its graph side by side: the same random states and tokens for both, and how far apart they come out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from t2r_export.graph.layout import pack, unpack
from t2r_export.model.ops import State
from t2r_export.model.transformer import Transformer
from t2r_runtime.contract.signature import StateSpec
from t2r_runtime.errors import UserError
from t2r_runtime.session.stepper import Stepper

SOURCE_TOKENS = 13  # of the longest random source
PREFIX_TOKENS = 5  # read at least before a comparison starts, so that every state is non-zero


@dataclass(frozen=True)
class Errors:
    """How far logits are apart, absolute, and states: see `state_error`."""

    logits: float = 0.0
    states: float = 0.0

    def or_worse(self, other: Errors) -> Errors:
        """The larger of each."""
        return Errors(worse(self.logits, other.logits), worse(self.states, other.states))


@dataclass(frozen=True)
class Text:
    """What both sides read: the states before it, and tokens (B,) in order."""

    states: State[Tensor]
    ids: list[Tensor] = field(default_factory=list)


@dataclass
class SideBySide:
    """Both sides, and the generator of all that is random. States are those of the unfolded model.

    `begin` and `restart` start a text; what was read since the last `compared` is kept for t2r_export.proof.rounding.
    """

    model: Transformer  # unfolded
    decoder: Stepper
    specs: Sequence[StateSpec]  # of the folded model's states, which the graph keeps in its own layout
    generator: torch.Generator
    states: State[Tensor] = field(default_factory=dict)  # the model's now
    worst: Errors = field(default_factory=Errors)
    texts: list[Text] = field(default_factory=list)

    def begin(self, states: State[Tensor]) -> None:
        """Put both sides into the same states."""
        self.states = states
        self.texts.append(Text(states))
        self.decoder.set_state(self.packed(states))

    def restart(self, batch: int) -> None:
        """Put both sides at the start of a text, each into what it takes for that (B = batch)."""
        if self.model.encoder is not None:
            return self.begin(self.initial(batch))
        self.states = self.model.init_state(batch)
        self.texts.append(Text(self.states))
        self.decoder.reset(batch=batch)

    def step(self, ids: Tensor) -> tuple[Tensor, np.ndarray]:
        """One token (B,) on both sides: logits (1, B, vocabulary), of the model, and of the graph."""
        self.texts[-1].ids.append(ids)
        expected, self.states = self.model.step(ids, self.states)
        logits = self.decoder.step(ids.numpy())
        self.compare(logits, expected)
        return expected[None], logits[None]

    def write(self, ids: Tensor, count: int) -> tuple[Tensor, np.ndarray]:
        """`count` tokens, the first of them `ids` (B,), each other one drawn from the graph's logits before it.

        The model reads them at once, which takes a fraction of the time of its steps, and states are compared after the
        last. Only where another order of sums is none of what is measured: in float64.

        Returns:
            Logits (count, B, vocabulary), of the model, and of the graph.
        """
        rows = []
        for n in range(count):
            self.texts[-1].ids.append(ids)
            rows.append(self.decoder.step(ids.numpy()))
            if n + 1 < count:
                ids = self.drawn(torch.from_numpy(rows[-1]))
        expected, self.states = self.model.prefill(torch.stack(self.texts[-1].ids[-count:], 1), self.states)
        logits, expected = np.stack(rows), expected.transpose(0, 1)
        self.compare(logits, expected)
        return expected, logits

    def drawn(self, logits: Tensor) -> Tensor:
        """A token (B,) for logits (B, vocabulary), by chance; any, where they are not finite."""
        noise = -torch.empty(logits.shape).exponential_(generator=self.generator).log()  # Gumbel's
        return (logits + noise).argmax(-1)

    def compare(self, logits: np.ndarray, expected: Tensor) -> None:
        """The graph's logits (…, vocabulary) with the model's, and the states that both have now."""
        received = unpack(self.decoder.state(), self.specs)
        self.worst = self.worst.or_worse(
            Errors(logit_error(logits, expected), state_error(received, arrays(self.model, self.states)))
        )

    def compared(self) -> tuple[Errors, list[Text]]:
        """The worst errors since this was asked last, and what was read for them."""
        worst, texts = self.worst, self.texts
        self.worst, self.texts = Errors(), []
        return worst, texts

    def initial(self, batch: int) -> State[Tensor]:
        """The states before a text: of a translator, of translations of random sources."""
        if self.model.encoder is None:
            return self.model.init_state(batch)
        return self.model.start(*self.random_sources(batch))

    def random_sources(self, batch: int) -> tuple[Tensor, Tensor]:
        """Tokens (B, M), int64, and lengths (B,): the first row full, the others shorter where they can be."""
        encoder = self.model.encoder
        assert encoder is not None
        known = self.decoder.signature.source
        most = None if known is None else known.max_source
        longest = SOURCE_TOKENS if most is None else min(SOURCE_TOKENS, most)
        lengths = torch.randint(1, longest + 1, (batch,), generator=self.generator)
        lengths[0] = longest
        shape = (batch, longest if known is None else known.source_length or longest)
        return torch.randint(0, self.model.config.source_vocab_size, shape, generator=self.generator), lengths

    def random_state(self, batch: int) -> State[Tensor]:
        """States after a few random tokens, every number of them then scaled by its own factor from 0.5 to 1.5.

        So all are non-zero, none is like another, and their size is one that the model can meet. The position is kept.
        Of a model in float64, too, they are numbers of float32, which the graph can start from.
        """
        ids = self.random_ids((batch, self.prefix))
        _, states = self.model.prefill(ids, self.initial(batch))
        return {
            name: (value.float() * (0.5 + torch.rand(value.shape, generator=self.generator))).to(value.dtype)
            if value.is_floating_point()
            else value
            for name, value in states.items()
        }

    def random_ids(self, shape: tuple[int, ...]) -> Tensor:
        """Tokens (shape), int64."""
        return torch.randint(0, self.model.config.vocab_size, shape, generator=self.generator)

    def packed(self, states: State[Tensor]) -> dict[str, np.ndarray]:
        """The model's states as the decoder takes them."""
        exact = arrays(self.model, states)
        narrow = {name: x.astype(np.float32) if x.dtype == np.float64 else x for name, x in exact.items()}
        return pack(narrow, self.decoder.signature.states)

    @property
    def prefix(self) -> int:
        """Tokens read for a random state: as many as the longest memory needs, up to half of what fits."""
        wanted = max(mixer.memory_length() for block in self.model.blocks for mixer in block.mixers)
        end = self.model.reach
        return max(PREFIX_TOKENS, wanted if end is None else min(wanted, end // 2))

    def room(self, used: int, wanted: int) -> int:
        """How many of the wanted tokens fit behind the used ones, where positions end."""
        end = self.model.reach
        if end is None:
            return wanted
        if end <= used:
            raise UserError(f"a model that reaches past {used} positions", f"max_positions {end}", "nothing to verify")
        return min(wanted, end - used)


def arrays(model: Transformer, states: State[Tensor]) -> dict[str, np.ndarray]:
    """The model's states by name as the folded model, and so its graph, keeps them."""
    return {name: value.numpy() for name, value in model.fold_states(states).items()}


def logit_error(received: np.ndarray, expected: Tensor) -> float:
    """Largest absolute difference."""
    return float(np.abs(received - expected.numpy()).max())


def state_error(received: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """Largest difference of any state, relative to the largest absolute value of that state."""
    worst = 0.0
    for name, value in expected.items():
        assert received[name].shape == value.shape, (name, received[name].shape, value.shape)
        difference = np.abs(received[name].astype(np.float64) - value).max(initial=0.0)
        worst = worse(worst, float(difference / max(np.abs(value).max(initial=0.0), np.finfo(np.float32).tiny)))
    return worst


def worse(a: float, b: float) -> float:
    """The larger one, and NaN if either is: max() would lose it."""
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)
