"""The Transformer: one definition for single steps and for sequences of T tokens.

States are named `<state>.<layer>`, such as S.3. The position is a state if any part needs it.
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
from t2r_export.model.stack import Stack, rotations
from t2r_export.model.step import EMBEDDING, Step
from t2r_export.model.torch_ops import TorchOps
from t2r_runtime.contract.signature import wrap_length
from t2r_runtime.contract.state_spec import (
    BATCH,
    MAX_STATE_BYTES,
    POSITION,
    SOURCE,
    SOURCE_LENGTH_STATE,
    StateSpec,
    require_bounded,
)
from t2r_runtime.errors import UserError


class Transformer(Stack):
    """A decoder; with an encoder, a translator."""

    config: ModelConfig

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, config.width, config.vocab_size if config.input_size is None else None)
        projects = config.input_size not in (None, config.width)
        self.projection = nn.Linear(config.input_size, config.width) if projects else None  # type: ignore[arg-type]
        self.head = nn.Linear(config.width, config.vocab_size, bias=config.head_bias)
        if config.tied_head:
            self.head.weight = self.embedding.weight
        parts = [part for block in self.blocks for part in block.parts]
        self.counts = config.positions is not None or config.rotates or any(part.needs_position for part in parts)
        self.encoder = None if config.encoder is None else Encoder(config.encoder, config.width)
        self.end = config.max_positions
        self.turned = min((end for rotary, _ in rotations(config) if (end := rotary.end) is not None), default=None)
        self.input_size = config.input_size
        self.asks_lengths = any(part.needs_lengths for part in parts)

    def end_positions(self, past_end: str, end: int | None = None) -> None:
        """Set the last position, and the behavior past it: one of t2r_runtime.contract.signature.PAST_ENDS.

        Args:
            end: number of positions, at most those of the model; None: all of them.

        Raises:
            UserError: wrap:N with N beyond a learned table; any but refuse if rotary frequencies change with length.
        """
        wrap, table = wrap_length(past_end), self.config.max_positions
        if wrap is not None and table is not None and wrap > table:
            expected = f"past_end wrap:N with N of at most {table}, where this model's positions end"
            raise UserError(expected, past_end, "choose a smaller N")
        if past_end != "refuse" and self.turned is not None:
            expected = f"past_end refuse, since texts of more than {self.turned} tokens have other frequencies"
            raise UserError(expected, past_end, "leave it out, or use --context N for texts of N tokens")
        self.positions.past_end = past_end
        self.end = table if end is None else end

    def read_vectors(self) -> None:
        """Read vectors (…, D) in place of token ids: embeddings before scale, positions and norm.

        Raises:
            UserError: a translator, which needs its token embedding for start tokens.
        """
        if self.encoder is not None:
            raise UserError("a decoder alone, to read vectors", "a translator", "leave out inputs_embeds")
        self.input_size = self.config.input_size or self.config.width

    def require_tokens(self, what: str) -> None:
        """Raise UserError for a model that reads vectors. Args: what: the reason."""
        if self.config.input_size is not None:
            received = f"one that reads vectors of {self.config.input_size} elements"
            raise UserError(f"a model that reads token ids, {what}", received, "pass it its vectors in Python")

    def require_decoder(self, what: str, do: str) -> None:
        """Raise UserError for a translator, or a model that reads vectors. Args: what: the reason; do: the advice."""
        if self.encoder is not None:
            raise UserError(f"a decoder alone, {what}", "a translator", do)
        self.require_tokens(what)

    @property
    def reach(self) -> int | None:
        """Maximum number of tokens; None: unlimited."""
        return self.end if self.positions.past_end == "refuse" else None

    # -- torch

    # ids are int64, or floating-point vectors with one more axis if the model reads vectors (`input_size`)

    def forward(self, ids: Tensor, states: State[Tensor] | None = None) -> Tensor:
        """ids (B, T) and states (default: initial) -> logits (B, T, vocabulary)."""
        return self.prefill(ids, self.init_state(len(ids)) if states is None else states)[0]

    def start(self, source_ids: Tensor, source_lengths: Tensor) -> State[Tensor]:
        """The initial states of a translation. Args: source_ids (B, M) int64, left-aligned; source_lengths (B,)."""
        encoded = self.encode(source_ids, source_lengths, self.ops(source_ids.shape[1]))
        return self._initial(len(source_ids)) | encoded

    def prefill(self, ids: Tensor, states: State[Tensor]) -> tuple[Tensor, State[Tensor]]:
        """ids (B, T) and states -> logits (B, T, vocabulary) and the states after."""
        ops = self.ops(ids.shape[1])
        x, after = self._run(self.given(ids), states, ops)
        return self._logits(x, ops).view(*ids.shape[:2], -1), after

    def step(self, ids: Tensor, states: State[Tensor]) -> tuple[Tensor, State[Tensor]]:
        """ids (B,) and states -> logits (B, vocabulary) and the states after."""
        return self.run(self.given(ids), states, self.ops(None))

    def rows(self, ids: Tensor, states: State[Tensor]) -> Tensor:
        """Output rows (B·T, D) of the last block for ids (B, T), for `logits_of`."""
        return self._run(self.given(ids), states, self.ops(ids.shape[1]))[0]

    def traces(self, ids: Tensor, states: State[Tensor] | None = None) -> list[BlockTrace[Tensor]]:
        """Intermediate values (rows (B·T, D)) of every block for ids (B, T) and states (default: initial)."""
        states = self.init_state(len(ids)) if states is None else states
        step = self.context(states, self.ops(ids.shape[1]))
        return list(self.trace(self.embed(self.given(ids), step), states, step))

    def outputs(self, ids: Tensor, states: State[Tensor]) -> Iterator[Tensor]:
        """Output rows (B·T, D) of every block for ids (B, T), one at a time."""
        step = self.context(states, self.ops(ids.shape[1]))
        return (trace.output for trace in self.trace(self.embed(self.given(ids), step), states, step))

    def logits_of(self, rows: Tensor) -> Tensor:
        """Logits (N, vocabulary) of output rows (N, D)."""
        return self._logits(rows, self.ops(len(rows)))

    def ops(self, tokens: int | None) -> TorchOps:
        """Torch operators for T tokens, or a step (None)."""
        return TorchOps(tokens, self.head.weight)

    def given(self, ids: Tensor) -> Tensor:
        """Token ids, or vectors in the precision of the weights."""
        return ids if self.input_size is None else ids.to(self.head.weight)

    # -- any operators

    def run(self, ids: T, states: State[T], ops: Ops[T]) -> tuple[T, State[T]]:
        """Run with any operators.

        Args:
            ids: (B,) for a step, (B, T) for operators over many tokens; vectors with one more axis.

        Returns:
            Logits (B, vocabulary) after the last token, and the states after it.
        """
        x, after = self.hidden(ids, states, ops)
        return self.head_of(x, ops), after

    def hidden(self, ids: T, states: State[T], ops: Ops[T]) -> tuple[T, State[T]]:
        """`run` without the head: normalized rows (B, D) of the last token, and the states."""
        x, after = self._run(ids, states, ops)
        return self.normed(ops.last_token(x), ops), after

    def embed(self, ids: T, step: Step[T], table: nn.Embedding | None = None) -> T:
        """Token ids, or vectors, as rows (N, D)."""
        if self.input_size is None:
            return super().embed(ids, step, table)
        x = step.ops.flatten_tokens(ids)
        if self.projection is not None:
            x = step.ops.linear(x, self.projection.weight, self.projection.bias)
        return self.placed(x, step)

    def placed(self, x: T, step: Step[T]) -> T:
        """Input rows (N, D) of the first layer from embedded rows x; parts of any layer may borrow them."""
        rows = super().placed(x, step)
        step.lend(EMBEDDING, rows)
        return rows

    def encode(self, source_ids: T, source_lengths: T, ops: Ops[T]) -> State[T]:
        """Source ids (B, M) and lengths (B,), at least 1 -> constant and initial states. Args: ops: for M tokens."""
        assert self.encoder is not None, "the model has no encoder"
        lengths = ops.cast(source_lengths, "int32")
        x, step = self.encoder.run(source_ids, lengths, self.embedding, ops)
        states: State[T] = {SOURCE_LENGTH_STATE: lengths} if self.asks_lengths else {}
        for layer, block in enumerate(self.layers):
            for part, names in block.readers:
                states |= _named({names[own]: value for own, value in part.read(x, step).items()}, layer)
        return states

    @property
    def start_states(self) -> list[str]:
        """Names of non-constant states that the source initializes: sums of merged layers."""
        found = ((n, names) for n, block in enumerate(self.layers) for part, names in block.readers if part.starts)
        return [f"{name}.{n}" for n, names in found for name in names.values()]

    def _logits(self, x: T, ops: Ops[T]) -> T:
        return self.head_of(self.normed(x, ops), ops)

    def head_of(self, x: T, ops: Ops[T]) -> T:
        """Logits (N, vocabulary) of normalized rows x (N, D)."""
        logits = ops.linear(x, self.head.weight, self.head.bias)
        if self.config.logit_scale != 1.0:
            logits = ops.mul(logits, self.config.logit_scale)
        return ops.soft_cap(logits, self.config.logit_softcap)

    def _run(self, ids: T, states: State[T], ops: Ops[T]) -> tuple[T, State[T]]:
        """Output rows (N, D) of the last block, and the states after."""
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
        """The layers' context for tokens that follow these states."""
        start, lengths = states[POSITION] if self.counts else None, states.get(SOURCE_LENGTH_STATE)
        if self.turned is not None and isinstance(ops, TorchOps) and isinstance(start, Tensor) and not start.is_meta:
            self._check_turned(int(start.max()) + (ops.tokens or 1))
        return Step(ops, start, self.ropes, self.positions.wrap, lengths)

    def _check_turned(self, tokens: int) -> None:
        """Raise UserError for more tokens than the rotary frequencies are valid for."""
        if self.turned is not None and tokens > self.turned:
            raise UserError(
                f"at most {self.turned} tokens, since longer texts have other rotary frequencies",
                str(tokens),
                "export with a longer --context, whose graph has these",
            )

    def trace(self, x: T, states: State[T], step: Step[T]) -> Iterator[BlockTrace[T]]:
        """Run all blocks on rows x (N, D), one trace each."""
        for layer, block in enumerate(self.layers):
            trace = block.trace(self.entered(x, layer, step), self.layer_state(states, layer), step)
            x = trace.output
            yield trace

    # -- states

    def layer_state(self, states: State[Any], layer: int) -> State[Any]:
        """The states of a layer by block-level name."""
        names = [name for stage in self.layers[layer].stages for part in stage for name in part.values()]
        return {name: states[f"{name}.{layer}"] for name in names}

    def fold_states(self, states: State[Tensor]) -> State[Tensor]:
        """Convert states to those of the folded model (`t2r_export.fold`)."""
        after = {name: value for name, value in states.items() if name in (POSITION, SOURCE_LENGTH_STATE)}
        for layer, block in enumerate(self.layers):
            after |= _named(block.fold_state(self.layer_state(states, layer)), layer)
        return after

    def state_spec(self, max_state_bytes: int = MAX_STATE_BYTES) -> list[StateSpec]:
        """All states: those of the layers in order, the position if used, then constant states.

        Raises:
            UserError: more than `max_state_bytes` at batch 1, which untrusted configs can request.
        """
        layers = enumerate(self.layers)
        specs = [replace(spec, name=f"{spec.name}.{layer}") for layer, block in layers for spec in block.state_spec()]
        if self.counts:
            specs.append(StateSpec(POSITION, "int32", (BATCH,)))
        if self.asks_lengths:
            specs.append(StateSpec(SOURCE_LENGTH_STATE, "int32", (BATCH,), constant=True))
        specs.sort(key=lambda spec: spec.constant)
        require_bounded(specs, max_state_bytes)
        return specs

    def init_state(self, batch: int) -> State[Tensor]:
        """The initial states on the model's device; floating-point states are float64 in a float64 model.

        Raises:
            UserError: the model is a translator; use `start`.
        """
        if self.encoder is not None:
            raise UserError("a source for a translator", "none", "take the states from its start()")
        return self._initial(batch)

    def _initial(self, batch: int) -> State[Tensor]:
        weight = self.head.weight
        wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
        kinds = {"float32": wide, "int32": torch.int32, "int8": torch.int8}
        return {
            s.name: torch.full(s.dims(batch), s.initial, device=weight.device, dtype=kinds[s.dtype])
            for s in self.state_spec()
            if not s.constant
        }


def _named(state: State[Any], layer: int) -> State[Any]:
    return {f"{name}.{layer}": value for name, value in state.items()}
