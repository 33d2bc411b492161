"""Run a model and its graph on the same random states and texts, and compare them.

A text is a random token, then tokens drawn from the logits of the side that reads it by steps. At tokens that a model
would not write, it more often loses digits itself (docs/parity.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from t2r_export.graph.layout import pack, unpack
from t2r_export.model.ops import State
from t2r_export.model.torch_primitives import rounded_as
from t2r_export.model.transformer import Transformer
from t2r_runtime import Tokenizer
from t2r_runtime.contract.state_spec import ADAPTER, StateSpec
from t2r_runtime.errors import UserError
from t2r_runtime.session.stepper import Stepper

SOURCE_TOKENS = 13  # length of the longest random source
ROUNDED = "int8"  # dtype of states that are rounded
# Standard deviation of a token's logits up to which bounds of quantized graphs are absolute. In random starts, median
# and largest: the storyteller, on which bounds were measured, 3.5 and 6.3; SmolLM2 3.1 and 4.0; Gemma-3-270M up to 7.6.
SPREAD = 4.0
PREFIX_TOKENS = 5  # minimum tokens before a comparison, so that all states are non-zero


@dataclass(frozen=True)
class Errors:
    """Errors of logits, absolute, and of states, see `state_error`."""

    logits: float = 0.0
    states: float = 0.0

    def or_worse(self, other: Errors) -> Errors:
        """Elementwise maximum; NaN if either is."""
        return Errors(worse(self.logits, other.logits), worse(self.states, other.states))


@dataclass(frozen=True)
class Text:
    """Initial states and the tokens (B,), or vectors (B, input_size), read from there."""

    states: State[Tensor]
    ids: list[Tensor] = field(default_factory=list)


@dataclass
class SideBySide:
    """A model and its graph. `begin` starts a text; `compared` returns errors and texts since its last call."""

    model: Transformer  # unfolded
    decoder: Stepper
    specs: Sequence[StateSpec]  # of the folded model
    generator: torch.Generator
    states: State[Tensor] = field(default_factory=dict)  # current states of the model
    worst: Errors = field(default_factory=Errors)
    texts: list[Text] = field(default_factory=list)
    adapter: int = 0  # of the graph, that makes it this model

    def begin(self, states: State[Tensor]) -> None:
        """Set both sides to the same states of the unfolded model."""
        self.states = states
        self.texts.append(Text(states))
        self.decoder.set_state(self.packed(states))

    def step(self, ids: Tensor) -> tuple[Tensor, np.ndarray]:
        """Read one token (B,): logits (1, B, vocabulary) of model and graph."""
        self.texts[-1].ids.append(ids)
        logits = self.decoder.step(ids.numpy())
        with rounded_as(self.rounded(1)):
            expected, self.states = self.model.step(ids, self.states)
        self.compare(logits, expected)
        return expected[None], logits[None]

    @property
    def rounds(self) -> bool:
        """Whether states are rounded to integers."""
        return any(spec.dtype == ROUNDED for spec in self.specs)

    def rounded(self, count: int) -> list[Tensor]:
        """The integers that the decoder rounded at its last `count` tokens, for `rounded_as`."""
        if not self.rounds:
            return []
        states = unpack(self.decoder.state(), self.specs)
        return [torch.from_numpy(states[spec.name])[..., -count:, :] for spec in self.specs if spec.dtype == ROUNDED]

    def write(self, ids: Tensor, count: int) -> tuple[Tensor, np.ndarray]:
        """Read `count` tokens: `ids` (B,), then tokens drawn from the graph's logits.

        The model reads them at once, which is faster than steps but sums in another order: for float64 models only.
        States are compared after the last token.

        Returns:
            Logits (count, B, vocabulary) of model and graph.
        """
        tokens, rows = zip(*self.by_graph(ids, count), strict=True)
        self.texts[-1].ids.extend(tokens)
        expected, self.states = self.model.prefill(torch.stack(tokens, 1), self.states)
        logits, expected = np.stack(rows), expected.transpose(0, 1)
        self.compare(logits, expected)
        return expected, logits

    def by_graph(self, ids: Tensor, count: int) -> Iterator[tuple[Tensor, np.ndarray]]:
        """Read `count` tokens by steps of the graph: `ids` (B,), then drawn ones. Yields each with its logits."""
        for n in range(count):
            logits = self.decoder.step(ids.numpy())
            yield ids, logits
            if n + 1 < count:
                ids = self.drawn(torch.from_numpy(logits))

    def text(self, start: State[Tensor], count: int) -> Tensor:
        """A text of `count` tokens (B, count) that the graph writes from the states `start`."""
        self.decoder.set_state(self.packed(start))
        batch = len(next(iter(start.values())))
        return torch.stack([ids for ids, _ in self.by_graph(self.random_ids((batch,)), count)], 1)

    def drawn(self, logits: Tensor) -> Tensor:
        """The next tokens of texts (B,), as `read_as`, drawn from logits (B, vocabulary); arbitrary if not finite."""
        odds = logits.nan_to_num().softmax(-1)
        return self.read_as(torch.multinomial(odds, 1, generator=self.generator)[:, 0])

    def compare(self, logits: np.ndarray, expected: Tensor) -> None:
        """Compare logits (…, vocabulary) of graph and model, and their current states."""
        received = unpack(self.decoder.state(), self.specs)
        self.worst = self.worst.or_worse(
            Errors(self.logit_error(logits, expected.numpy()), state_error(received, arrays(self.model, self.states)))
        )

    def logit_error(self, received: np.ndarray, expected: np.ndarray) -> float:
        """`logit_error` of the decoder's graph."""
        return logit_error(received, expected, self.decoder.signature.quantization)

    def compared(self) -> tuple[Errors, list[Text]]:
        """Worst errors and texts since the last call."""
        worst, texts = self.worst, self.texts
        self.worst, self.texts = Errors(), []
        return worst, texts

    def initial(self, batch: int) -> State[Tensor]:
        """Initial states; for translators with random sources."""
        if self.model.encoder is None:
            return self.model.init_state(batch)
        return self.model.start(*self.random_sources(batch))

    def random_sources(self, batch: int) -> tuple[Tensor, Tensor]:
        """Random sources (B, M) int64 and lengths (B,); the first source has the full length."""
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
        """States after a few random tokens, with each value scaled by a random factor from 0.5 to 1.5.

        All values are non-zero, distinct, of realistic size, and exact in float32. Positions are not scaled.
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
        """Random int64 tokens (shape), converted by `read_as`."""
        return self.read_as(torch.randint(0, self.model.config.vocab_size, shape, generator=self.generator))

    def first_ids(self, batch: int) -> Tensor:
        """First tokens of texts (B,): random; of a quantized graph the token that its tokenizer puts there, if any.

        Activations after first tokens that a model has never read can lose more by rounding than all that it reads.
        """
        signature = self.decoder.signature
        if signature.quantization == "none" or signature.tokenizer is None:
            return self.random_ids((batch,))
        first = Tokenizer.of(signature).encode("a")[0]
        return self.read_as(torch.full((batch,), first)) if first == signature.bos_token else self.random_ids((batch,))

    def read_as(self, ids: Tensor) -> Tensor:
        """Model inputs for tokens: the tokens, or float32 vectors (their embeddings, or noise without embeddings)."""
        model = self.model
        if model.input_size is None:
            return ids
        if model.config.input_size is None:
            return model.embedding.weight[ids].float()
        return torch.randn(*ids.shape, model.input_size, generator=self.generator)

    def packed(self, states: State[Tensor]) -> dict[str, np.ndarray]:
        """States of the model in the layout of the decoder."""
        exact = arrays(self.model, states)
        narrow = {name: x.astype(np.float32) if x.dtype == np.float64 else x for name, x in exact.items()}
        if self.decoder.signature.adapters is not None:
            narrow[ADAPTER] = np.full(len(next(iter(narrow.values()))), self.adapter, np.int32)
        return pack(narrow, self.decoder.signature.states)

    @property
    def prefix(self) -> int:
        """Tokens read for a random state: the longest memory of a mixer, at most half of the positions."""
        wanted = max(mixer.memory_length() for block in self.model.blocks for mixer in block.mixers)
        end = self.model.reach
        return max(PREFIX_TOKENS, wanted if end is None else min(wanted, end // 2))

    def room(self, used: int, wanted: int) -> int:
        """Number of `wanted` tokens that fit after `used` positions."""
        end = self.model.reach
        if end is None:
            return wanted
        if end <= used:
            raise UserError(f"a model with more than {used} positions", f"max_positions {end}", "nothing to verify")
        return min(wanted, end - used)


def arrays(model: Transformer, states: State[Tensor]) -> dict[str, np.ndarray]:
    """States by name in the form of the folded model."""
    return {name: value.numpy() for name, value in model.fold_states(states).items()}


def logit_error(received: np.ndarray, expected: np.ndarray, quantization: str = "none") -> float:
    """Largest absolute difference of logits (…, vocabulary).

    Of a quantized graph: apart from the difference that all logits of a token share, which no probability depends on,
    and relative to the spread of logits where that is larger than SPREAD.
    """
    if quantization == "none":
        return float(np.abs(received - expected).max())
    difference = received.astype(np.float64) - expected
    own = np.abs(difference - difference.mean(-1, keepdims=True)).max(-1)
    return float((own / np.maximum(1, expected.std(-1) / SPREAD)).max())


def divergence(received: np.ndarray, expected: np.ndarray) -> float:
    """The sum of KL(expected ‖ received) of next tokens over logits (…, vocabulary), in nats."""
    ours, theirs = (torch.from_numpy(each).double().log_softmax(-1) for each in (expected, received))
    return float((ours.exp() * (ours - theirs)).sum())


def state_error(received: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """Largest difference of any state, relative to the largest absolute value of that state."""
    worst = 0.0
    for name, value in expected.items():
        assert received[name].shape == value.shape, (name, received[name].shape, value.shape)
        difference = np.abs(received[name].astype(np.float64) - value).max(initial=0.0)
        worst = worse(worst, float(difference / max(np.abs(value).max(initial=0.0), np.finfo(np.float32).tiny)))
    return worst


def worse(a: float, b: float) -> float:
    """Maximum that propagates NaN, unlike max()."""
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)
