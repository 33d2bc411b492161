"""The Transformer: `sequence` over T tokens, `step` for one, the same weights and the same numbers.

Blocks of token mixers and a feed-forward. The model never asks which of them a layer has: it hands each mixer its own
states, named `<state>.<layer>` outside ("S.3"), and counts the position where anything asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import torch
from torch import Tensor, nn

from t2r_export.config.model import ModelConfig
from t2r_export.model.attention import build_mixer, rotations
from t2r_export.model.feed_forward import build_feed_forward
from t2r_export.model.mixers.base import Mixer
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.positions import Rope, build_positions
from t2r_export.model.step import Step
from t2r_export.model.torch_ops import TorchOps
from t2r_runtime.errors import UserError
from t2r_runtime.signature import BATCH, MAX_STATE_BYTES, POSITION, StateSpec, require_bounded, wrap_length


class Norm(nn.Module):
    """Layer norm (weight and bias), RMS norm (weight), or none: x as it is."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.weight = nn.Parameter(torch.ones(config.width)) if config.norm != "none" else None
        self.bias = nn.Parameter(torch.zeros(config.width)) if config.norm == "layer" else None

    def forward(self, x: T, ops: Ops[T]) -> T:
        if self.weight is None:
            return x
        if self.bias is None:
            return ops.rms_norm(x, self.weight, self.eps)
        return ops.layer_norm(x, self.weight, self.bias, self.eps)


class Block(nn.Module):
    """x + mixer(norm(x)) for each of its mixers, then x + ffn(norm(x)); a sum is its second term where the config has
    no residual. Norms may also stand behind a sum (`norm_position` post), or on both sides of a part (both), and all
    parts may see the same x (`parallel`)."""

    mixers: Sequence[Mixer]  # an nn.ModuleList, as is
    norms: Sequence[Norm]

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.residual, self.norm_position, self.parallel = config.residual, config.norm_position, config.parallel
        mixers = [build_mixer(config, layer)]
        self.norms = nn.ModuleList(Norm(config) for _ in mixers)  # type: ignore[assignment]
        self.mixers = nn.ModuleList(mixers)  # type: ignore[assignment]
        ffn = build_feed_forward(config, config.feed_forward(layer))
        self.ffn_norm = None if ffn is None else Norm(config)
        self.ffn = ffn
        if config.norm_position == "both":
            self.norms_after: Sequence[Norm] = nn.ModuleList(Norm(config) for _ in mixers)  # type: ignore[assignment]
            self.ffn_norm_after = None if self.ffn is None else Norm(config)

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        """Rows x (N, D) and the block's states before -> rows and the states after."""
        trace = self.trace(x, state, step)
        return trace.output, trace.after

    def trace(self, x: T, state: State[T], step: Step[T]) -> BlockTrace[T]:
        """`forward`, with what is on its way."""
        after: State[T] = {}
        input = normed = mixed = x
        ops, post = step.ops, self.norm_position == "post"
        for n, (norm, mixer) in enumerate(zip(self.norms, self.mixers, strict=True)):
            normed = x if post else norm(input if self.parallel else x, ops)
            mixed, new = mixer(normed, {s.name: state[s.name] for s in mixer.state_spec()}, step)
            after |= new
            x = self._added(x, mixed, norm, self.norms_after[n] if self.norm_position == "both" else None, ops)
        if self.ffn is not None and self.ffn_norm is not None:
            y = self.ffn(x if post else self.ffn_norm(input if self.parallel else x, ops), ops)
            x = self._added(x, y, self.ffn_norm, self.ffn_norm_after if self.norm_position == "both" else None, ops)
        return BlockTrace(input, normed, mixed, x, after)

    def _added(self, x: T, y: T, norm: Norm, norm_after: Norm | None, ops: Ops[T]) -> T:
        """The residual stream x with what a part gave, y."""
        y = y if norm_after is None else norm_after(y, ops)
        x = ops.add(x, y) if self.residual else y
        return norm(x, ops) if self.norm_position == "post" else x

    def state_spec(self) -> list[StateSpec]:
        """Of all its mixers, whose states have different names."""
        return [spec for mixer in self.mixers for spec in mixer.state_spec()]


@dataclass(frozen=True)
class BlockTrace(Generic[T]):
    """What a block got, what its last mixer got and gave, and what came out: rows (N, D)."""

    input: T
    normed: T
    mixed: T
    output: T
    after: State[T]


class Transformer(nn.Module):
    """A decoder whose layers each keep their own kind of state."""

    blocks: Sequence[Block]  # an nn.ModuleList, as is
    ropes: Sequence[Rope]

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.positions = build_positions(config)
        ropes = [Rope(rotary, size) for rotary, size in rotations(config)]
        self.ropes = nn.ModuleList(ropes)  # type: ignore[assignment]
        self.blocks = nn.ModuleList(Block(config, n) for n in range(len(config.layers)))  # type: ignore[assignment]
        self.norm = Norm(config)
        self.head = nn.Linear(config.width, config.vocab_size, bias=config.head_bias)
        if config.tied_head:
            self.head.weight = self.embedding.weight
        asked = any(mixer.needs_position for block in self.blocks for mixer in block.mixers)
        self.counts = config.position != "none" or config.rotates or asked

    def end_positions(self, past_end: str) -> None:
        """Choose what is beyond the model's last position: one of t2r_runtime.signature.PAST_ENDS.

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

    @property
    def reach(self) -> int | None:
        """The most tokens that a text can have; None where there is no end."""
        return self.config.max_positions if self.positions.past_end == "refuse" else None

    # -- torch

    def forward(self, ids: Tensor, states: State[Tensor] | None = None) -> Tensor:
        """ids (B, T) int64, the states before them (default: the initial ones) -> logits (B, T, vocabulary)."""
        return self.prefill(ids, self.init_state(len(ids)) if states is None else states)[0]

    def prefill(self, ids: Tensor, states: State[Tensor]) -> tuple[Tensor, State[Tensor]]:
        """ids (B, T) int64, states -> logits (B, T, vocabulary) and the states after the last token."""
        ops = self.ops(ids.shape[1])
        x, after = self._run(ids, states, ops)
        return self._logits(x, ops).view(*ids.shape, -1), after

    def step(self, ids: Tensor, states: State[Tensor]) -> tuple[Tensor, State[Tensor]]:
        """ids (B,) int64, states -> logits (B, vocabulary) and the states after this token."""
        return self.run(ids, states, self.ops(None))

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

    def _logits(self, x: T, ops: Ops[T]) -> T:
        logits = ops.linear(self.norm(x, ops), self.head.weight, self.head.bias)
        if self.config.logit_scale != 1.0:
            logits = ops.mul(logits, self.config.logit_scale)
        return ops.soft_cap(logits, self.config.logit_softcap)

    def _run(self, ids: T, states: State[T], ops: Ops[T]) -> tuple[T, State[T]]:
        """Rows behind the last block (N, D), and the states after the last token."""
        step = self.context(states, ops)
        x = self.embed(ids, step)
        after = {POSITION: step.after} if self.counts else {}
        for layer, trace in enumerate(self.trace(x, states, step)):
            x = trace.output
            after |= _named(trace.after, layer)
        return x, after

    def context(self, states: State[T], ops: Ops[T]) -> Step[T]:
        """What the layers may ask while tokens are read from these states on."""
        return Step(ops, states[POSITION] if self.counts else None, self.ropes, self.positions.wrap)

    def embed(self, ids: T, step: Step[T]) -> T:
        """What the first block sees: rows (N, D)."""
        ops = step.ops
        x = ops.flatten_tokens(ops.embedding(ids, self.embedding.weight))
        if self.config.embedding_scale != 1.0:
            x = ops.mul(x, self.config.embedding_scale)
        if self.config.position != "none":
            x = self.positions.embed(x, ops.reshape(step.place, (-1,)), ops)
        return x

    def trace(self, x: T, states: State[T], step: Step[T]) -> Iterator[BlockTrace[T]]:
        """The one walk over the blocks, from the first one's rows x (N, D)."""
        for layer, block in enumerate(self.blocks):
            trace = block.trace(x, self.layer_state(states, layer), step)
            x = trace.output
            yield trace

    # -- states

    def layer_state(self, states: State[Any], layer: int) -> State[Any]:
        """One layer's states under the names that its mixers use."""
        return {s.name: states[f"{s.name}.{layer}"] for s in self.blocks[layer].state_spec()}

    def fold_states(self, states: State[Tensor]) -> State[Tensor]:
        """Every state as the model with its layers folded keeps it (`t2r_export.fold`)."""
        after = {name: value for name, value in states.items() if name == POSITION}
        for layer, block in enumerate(self.blocks):
            state = self.layer_state(states, layer)
            for mixer in block.mixers:
                after |= _named(mixer.fold_state({s.name: state[s.name] for s in mixer.state_spec()}), layer)
        return after

    def state_spec(self, max_state_bytes: int = MAX_STATE_BYTES) -> list[StateSpec]:
        """Every state of the model: the layers' in order, then the position where it is used.

        Raises:
            UserError: they take more than that at batch 1: a config of a few bytes can ask for any window.
        """
        specs = [
            StateSpec(f"{s.name}.{layer}", s.dtype, s.shape, s.initial)
            for layer, block in enumerate(self.blocks)
            for s in block.state_spec()
        ]
        if self.counts:
            specs.append(StateSpec(POSITION, "int32", (BATCH,)))
        require_bounded(specs, max_state_bytes)
        return specs

    def init_state(self, batch: int) -> State[Tensor]:
        """The states before the first token, on the model's device; float states in the model's precision."""
        weight = self.embedding.weight
        wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
        return {
            s.name: torch.full(
                s.dims(batch), s.initial, device=weight.device, dtype=wide if s.dtype == "float32" else torch.int32
            )
            for s in self.state_spec()
        }


def _named(state: State[Any], layer: int) -> State[Any]:
    return {f"{name}.{layer}": value for name, value in state.items()}
