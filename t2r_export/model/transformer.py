"""The Transformer: `sequence` over T tokens, `step` for one, the same weights and the same numbers.

Blocks of parts. The model never asks which of them a layer has: it hands each part its own
states, named `<state>.<layer>` outside ("S.3"), and counts the position where anything asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from t2r_export.config.model import ModelConfig
from t2r_export.model.block import BlockTrace
from t2r_export.model.encoder import Encoder
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.stack import Stack
from t2r_export.model.step import Step
from t2r_export.model.torch_ops import TorchOps
from t2r_runtime.contract.signature import (
    BATCH,
    MAX_STATE_BYTES,
    POSITION,
    SOURCE,
    SOURCE_LENGTH_STATE,
    StateSpec,
    require_bounded,
    wrap_length,
)
from t2r_runtime.errors import UserError


class Transformer(Stack):
    """A decoder whose layers each keep their own kind of state; with an encoder, a translator."""

    config: ModelConfig

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, config.width, config.vocab_size)
        self.head = nn.Linear(config.width, config.vocab_size, bias=config.head_bias)
        if config.tied_head:
            self.head.weight = self.embedding.weight
        parts = [part for block in self.blocks for part in block.parts]
        self.counts = config.positions is not None or config.rotates or any(part.needs_position for part in parts)
        self.encoder = None if config.encoder is None else Encoder(config.encoder, config.width)
        self.asks_lengths = any(part.needs_lengths for part in parts)

    def end_positions(self, past_end: str) -> None:
        """Choose what is beyond the model's last position: one of t2r_runtime.contract.signature.PAST_ENDS.

        Raises:
            UserError: a wrap past the end of a learned table.
        """
        wrap, end = wrap_length(past_end), self.config.max_positions
        if wrap is not None and end is not None and wrap > end:
            raise UserError(
                f"past_end wrap:N with N of at most {end}, where this model's positions end",
                past_end,
                "choose a smaller N",
            )
        self.positions.past_end = past_end

    def require_decoder(self, what: str, do: str) -> None:
        """Raise UserError, with what to do, where this is a translator and `what` is for decoders alone."""
        if self.encoder is not None:
            raise UserError(f"a decoder alone, {what}", "a translator", do)

    @property
    def reach(self) -> int | None:
        """The most tokens that a text can have; None where there is no end."""
        return self.config.max_positions if self.positions.past_end == "refuse" else None

    # -- torch

    def forward(self, ids: Tensor, states: State[Tensor] | None = None) -> Tensor:
        """ids (B, T) int64, the states before them (default: the initial ones) -> logits (B, T, vocabulary)."""
        return self.prefill(ids, self.init_state(len(ids)) if states is None else states)[0]

    def start(self, source_ids: Tensor, source_lengths: Tensor) -> State[Tensor]:
        """The states before a translation of sources (B, M) int64, of which row b has the first source_lengths[b]."""
        encoded = self.encode(source_ids, source_lengths, self.ops(source_ids.shape[1]))
        return self._initial(len(source_ids)) | encoded

    def prefill(self, ids: Tensor, states: State[Tensor]) -> tuple[Tensor, State[Tensor]]:
        """ids (B, T) int64, states -> logits (B, T, vocabulary) and the states after the last token."""
        ops = self.ops(ids.shape[1])
        x, after = self._run(ids, states, ops)
        return self._logits(x, ops).view(*ids.shape, -1), after

    def step(self, ids: Tensor, states: State[Tensor]) -> tuple[Tensor, State[Tensor]]:
        """ids (B,) int64, states -> logits (B, vocabulary) and the states after this token."""
        return self.run(ids, states, self.ops(None))

    def rows(self, ids: Tensor, states: State[Tensor]) -> Tensor:
        """What stands behind the last block for ids (B, T), from `states`: rows (B·T, D), for `logits_of`."""
        return self._run(ids, states, self.ops(ids.shape[1]))[0]

    def traces(self, ids: Tensor, states: State[Tensor] | None = None) -> list[BlockTrace[Tensor]]:
        """What happens inside every block for ids (B, T), from `states` (default: the initial ones): rows (B·T, D)."""
        states = self.init_state(len(ids)) if states is None else states
        step = self.context(states, self.ops(ids.shape[1]))
        return list(self.trace(self.embed(ids, step), states, step))

    def logits_of(self, rows: Tensor) -> Tensor:
        """Logits (N, vocabulary) behind rows (N, D) that left the last block."""
        return self._logits(rows, self.ops(len(rows)))

    def ops(self, tokens: int | None) -> TorchOps:
        """torch's operators for this model: T tokens, or None for a step."""
        return TorchOps(tokens, self.embedding.weight)

    # -- any operators

    def run(self, ids: T, states: State[T], ops: Ops[T]) -> tuple[T, State[T]]:
        """A step, ids (B,), or where the operators read many tokens a sequence, ids (B, T): logits after the last token
        (B, vocabulary), and the states after it."""
        x, after = self._run(ids, states, ops)
        return self._logits(ops.last_token(x), ops), after

    def encode(self, source_ids: T, source_lengths: T, ops: Ops[T]) -> State[T]:
        """Sources (B, M), their lengths (B,), at least 1, and operators that read M tokens -> what comes of them."""
        assert self.encoder is not None, "the model is a decoder alone"
        lengths = ops.cast(source_lengths, "int32")
        x, step = self.encoder.run(source_ids, lengths, self.embedding, ops)
        states: State[T] = {SOURCE_LENGTH_STATE: lengths} if self.asks_lengths else {}
        for layer, block in enumerate(self.blocks):
            for part, names in block.readers:
                states |= _named({names[own]: value for own, value in part.read(x, step).items()}, layer)
        return states

    @property
    def start_states(self) -> list[str]:
        """Names of the states that a source starts, which a step then changes: those of merged layers that are sums."""
        found = ((n, names) for n, block in enumerate(self.blocks) for part, names in block.readers if part.starts)
        return [f"{name}.{n}" for n, names in found for name in names.values()]

    def _logits(self, x: T, ops: Ops[T]) -> T:
        logits = ops.linear(self.normed(x, ops), self.head.weight, self.head.bias)
        if self.config.logit_scale != 1.0:
            logits = ops.mul(logits, self.config.logit_scale)
        return ops.soft_cap(logits, self.config.logit_softcap)

    def _run(self, ids: T, states: State[T], ops: Ops[T]) -> tuple[T, State[T]]:
        """Rows behind the last block (N, D), and the states after the last token."""
        step = self.context(states, ops)
        x = self.embed(ids, step)
        after = {name: value for name, value in states.items() if name.startswith(SOURCE)}
        if self.counts:
            after[POSITION] = step.after
        for layer, trace in enumerate(self.trace(x, states, step)):
            x = trace.output
            after |= _named(trace.after, layer)
        return x, after

    def context(self, states: State[T], ops: Ops[T]) -> Step[T]:
        """What the layers may ask while tokens are read from these states on."""
        start, lengths = states[POSITION] if self.counts else None, states.get(SOURCE_LENGTH_STATE)
        return Step(ops, start, self.ropes, self.positions.wrap, lengths)

    def trace(self, x: T, states: State[T], step: Step[T]) -> Iterator[BlockTrace[T]]:
        """The one walk over the blocks, from the first one's rows x (N, D)."""
        for layer, block in enumerate(self.blocks):
            trace = block.trace(x, self.layer_state(states, layer), step)
            x = trace.output
            yield trace

    # -- states

    def layer_state(self, states: State[Any], layer: int) -> State[Any]:
        """One layer's states by their names in its block."""
        return {name: states[f"{name}.{layer}"] for names in self.blocks[layer].names for name in names.values()}

    def fold_states(self, states: State[Tensor]) -> State[Tensor]:
        """Every state as the model with its layers folded keeps it (`t2r_export.fold`)."""
        after = {name: value for name, value in states.items() if name in (POSITION, SOURCE_LENGTH_STATE)}
        for layer, block in enumerate(self.blocks):
            after |= _named(block.fold_state(self.layer_state(states, layer)), layer)
        return after

    def state_spec(self, max_state_bytes: int = MAX_STATE_BYTES) -> list[StateSpec]:
        """Every state of the model: the layers' in order, the position where it is used, and what is constant.

        Raises:
            UserError: they take more than that at batch 1: a config of a few bytes can ask for any window.
        """
        specs = [
            replace(s, name=f"{s.name}.{layer}") for layer, block in enumerate(self.blocks) for s in block.state_spec()
        ]
        if self.counts:
            specs.append(StateSpec(POSITION, "int32", (BATCH,)))
        if self.asks_lengths:
            specs.append(StateSpec(SOURCE_LENGTH_STATE, "int32", (BATCH,), constant=True))
        specs.sort(key=lambda spec: spec.constant)
        require_bounded(specs, max_state_bytes)
        return specs

    def init_state(self, batch: int) -> State[Tensor]:
        """The states before the first token, on the model's device; float states in the model's precision.

        Raises:
            UserError: a translator, whose states a source starts: `start`.
        """
        if self.encoder is not None:
            raise UserError("a source for a translator", "none", "take the states from its start()")
        return self._initial(batch)

    def _initial(self, batch: int) -> State[Tensor]:
        weight = self.embedding.weight
        wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
        return {
            s.name: torch.full(
                s.dims(batch), s.initial, device=weight.device, dtype=wide if s.dtype == "float32" else torch.int32
            )
            for s in self.state_spec()
            if not s.constant
        }


def _named(state: State[Any], layer: int) -> State[Any]:
    return {f"{name}.{layer}": value for name, value in state.items()}
