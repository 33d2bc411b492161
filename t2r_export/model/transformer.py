"""The eager Transformer: `forward` over a sequence, `step` for one token, the same weights and the same numbers.

Pre-norm blocks of one token mixer and one feed-forward. The model never asks which of them a layer has: it hands each
mixer its own states, named `<state>.<layer>` outside ("S.3"), and counts the position where positions are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from t2r_export.config.model import ModelConfig
from t2r_export.model.feed_forward import build_feed_forward
from t2r_export.model.mixers import Mixer, State, build_mixer
from t2r_export.model.ops import TORCH, TorchOps
from t2r_export.model.positions import Positions, Rotary, build_positions
from t2r_runtime.signature import BATCH, POSITION, StateSpec


class Norm(nn.Module):
    """Layer norm (weight and bias), RMS norm (weight), or none: x as it is."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.eps = config.norm_eps
        self.weight = nn.Parameter(torch.ones(config.width)) if config.norm != "none" else None
        self.bias = nn.Parameter(torch.zeros(config.width)) if config.norm == "layer" else None

    def forward(self, x: Any, ops: TorchOps = TORCH) -> Any:
        if self.weight is None:
            return x
        if self.bias is None:
            return ops.rms_norm(x, self.weight, self.eps)
        return ops.layer_norm(x, self.weight, self.bias, self.eps)


class Block(nn.Module):
    """x + mixer(norm1(x)), then x + ffn(norm2(x)); a sum is its second term where the config has no residual."""

    mixer: Mixer

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.residual = config.residual
        self.norm1 = Norm(config)
        self.mixer = build_mixer(config, config.layers[layer])
        ffn = build_feed_forward(config, config.feed_forward(layer))
        if ffn is not None:
            self.norm2 = Norm(config)
        self.ffn = ffn

    def forward(self, x: Tensor, state: State, rotary: Rotary | None) -> tuple[Tensor, State]:
        y, state = self.mixer(self.norm1(x), state, rotary)
        return self.after_mixer(x, y), state

    def step(self, x: Any, state: State, rotary: Rotary | None, ops: TorchOps = TORCH) -> tuple[Any, State]:
        y, state = self.mixer.step(self.norm1(x, ops), state, rotary, ops)
        return self.after_mixer(x, y, ops), state

    def after_mixer(self, x: Any, y: Any, ops: TorchOps = TORCH) -> Any:
        """The block's output, from its input x and what its mixer gave, y: all (…, D)."""
        x = ops.add(x, y) if self.residual else y
        if self.ffn is None:
            return x
        y = self.ffn(self.norm2(x, ops), ops)
        return ops.add(x, y) if self.residual else y


class Transformer(nn.Module):
    """A decoder whose layers each keep their own kind of state."""

    positions: Positions
    blocks: Sequence[Block]  # an nn.ModuleList

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.positions = build_positions(config)
        blocks = nn.ModuleList(Block(config, layer) for layer in range(len(config.layers)))
        self.blocks = blocks  # type: ignore[assignment]
        self.norm = Norm(config)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        if config.tied_head:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor, states: State | None = None) -> Tensor:
        """ids (B, T) int64, the states before them (default: the initial ones) -> logits (B, T, vocabulary)."""
        return self.prefill(ids, self.init_state(len(ids)) if states is None else states)[0]

    def prefill(self, ids: Tensor, states: State) -> tuple[Tensor, State]:
        """ids (B, T) int64, states -> logits (B, T, vocabulary) and the states after the last token."""
        x, rotary, position = self.embed(ids, states)
        after: State = {}
        for layer, block in enumerate(self.blocks):
            x, state = block(x, self.layer_state(states, layer), rotary)
            after.update(_named(state, layer))
        if position is not None:
            after[POSITION] = position
        return self.head(self.norm(x)), after

    def embed(self, ids: Tensor, states: State) -> tuple[Tensor, Rotary | None, Tensor | None]:
        """What the first block sees: x (B, T, D), cos and sin (B, T, 1, d/2) or None, and the position after ids."""
        x = self.embedding(ids)
        if not self.positions.needs_state:
            return x, None, None
        start = states[POSITION]
        position = start[:, None] + torch.arange(ids.shape[1], device=ids.device, dtype=start.dtype)  # (B, T)
        return self.positions.embed(x, position), self.positions.rotary(position), start + ids.shape[1]

    def step(self, ids: Any, states: State, ops: TorchOps = TORCH) -> tuple[Any, State]:
        """ids (B,), states -> logits (B, vocabulary) and the states after this token.

        Or ids (B, T), where `parallel_obstacle` names none: T tokens of each sequence, and the logits after the last.
        """
        x = ops.rows(ops.embedding(ids, self.embedding.weight))
        after: State = {}
        rotary = None
        if self.positions.needs_state:
            position, after[POSITION] = ops.positions(states[POSITION], x)
            x = self.positions.embed(x, position, ops)
            rotary = self.positions.rotary(position, ops)
        for layer, block in enumerate(self.blocks):
            x, state = block.step(x, self.layer_state(states, layer), rotary, ops)
            after.update(_named(state, layer))
        return ops.linear(self.norm(ops.last(x, ids), ops), self.head.weight, None), after

    def parallel_obstacle(self) -> str | None:
        """Why `step` takes one token at a time, or None if it also takes many: by the first layer that cannot."""
        obstacles = ((layer, block.mixer.parallel_obstacle()) for layer, block in enumerate(self.blocks))
        return next((f"layer {layer}: {why}" for layer, why in obstacles if why is not None), None)

    def layer_state(self, states: State, layer: int) -> State:
        """One layer's states under the names that its mixer uses."""
        return {s.name: states[f"{s.name}.{layer}"] for s in self.blocks[layer].mixer.state_spec()}

    def fold_states(self, states: State) -> State:
        """Every state as the model with its layers folded keeps it (`t2r_export.fold`)."""
        after = {name: value for name, value in states.items() if name == POSITION}
        for layer, block in enumerate(self.blocks):
            after |= _named(block.mixer.fold_state(self.layer_state(states, layer)), layer)
        return after

    def state_spec(self) -> list[StateSpec]:
        """Every state of the model: the layers' in order, then the position where it is used."""
        specs = [
            StateSpec(f"{s.name}.{layer}", s.dtype, s.shape, s.initial)
            for layer, block in enumerate(self.blocks)
            for s in block.mixer.state_spec()
        ]
        if self.positions.needs_state:
            specs.append(StateSpec(POSITION, "int32", (BATCH,)))
        return specs

    def init_state(self, batch: int) -> State:
        """The states before the first token, on the model's device; float states in the model's precision."""
        weight = self.embedding.weight
        wide = torch.float64 if weight.dtype == torch.float64 else torch.float32
        return {
            s.name: torch.full(
                s.dims(batch), s.initial, device=weight.device, dtype=wide if s.dtype == "float32" else torch.int32
            )
            for s in self.state_spec()
        }


def _named(state: State, layer: int) -> State:
    return {f"{name}.{layer}": value for name, value in state.items()}
