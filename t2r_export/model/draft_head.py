"""Draft heads: multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2) as a decoder of its own.

Let e_t be the embedding of token t, and h_t what the trunk's head reads after it, the output of the last norm. A draft
head predicts token t+2 from e_{t+1} and h_t:

    x_t = W [norm(e_{t+1}), norm(h_t)]      h'_t = norm(layers(x_t))      logits = head(h'_t)

h'_t stands for h_{t+1} where the trunk has not read token t+1 yet, so the head can go on alone. The vector is therefore
a state, `hidden`: a step replaces it with h'_t, and whoever knows h_t writes it there first. The graph is a step graph
like any other.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from t2r_export.config.draft_head import DraftHeadConfig
from t2r_export.config.model import ModelConfig
from t2r_export.model.block import BlockNorm
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.step import Step
from t2r_export.model.transformer import Transformer
from t2r_runtime.contract.state_spec import BATCH, HIDDEN_STATE, MAX_STATE_BYTES, StateSpec


class DraftHead(Transformer):
    """A draft head. It reads one token at a time, since each may need the vector of the one before."""

    config: DraftHeadConfig

    def __init__(self, config: DraftHeadConfig) -> None:
        super().__init__(config)
        self.token_norm = BlockNorm(config.hidden_norm, config.width)
        self.hidden_norm = BlockNorm(config.hidden_norm, config.width)
        self.joined = nn.Linear(2 * config.width, config.width, bias=False)

    def prefill(self, ids: Tensor, states: State[Tensor]) -> tuple[Tensor, State[Tensor]]:
        logits = []
        for token in ids.unbind(1):
            row, states = self.step(token, states)
            logits.append(row)
        return torch.stack(logits, 1), states

    def hidden(self, ids: T, states: State[T], ops: Ops[T]) -> tuple[T, State[T]]:
        x, after = super().hidden(ids, states, ops)
        return x, {**after, HIDDEN_STATE: x}

    def context(self, states: State[T], ops: Ops[T]) -> Step[T]:
        step = super().context(states, ops)
        step.lend(HIDDEN_STATE, states[HIDDEN_STATE])
        return step

    def placed(self, x: T, step: Step[T]) -> T:
        token, before = self.token_norm(super().placed(x, step), step.ops), step.borrowed(HIDDEN_STATE)
        both = step.ops.concat([token, self.hidden_norm(before, step.ops)])
        return step.ops.linear(both, self.joined.weight, None)

    def fold_states(self, states: State[Tensor]) -> State[Tensor]:
        return {**super().fold_states(states), HIDDEN_STATE: states[HIDDEN_STATE]}

    def state_spec(self, max_state_bytes: int = MAX_STATE_BYTES) -> list[StateSpec]:
        return [*super().state_spec(max_state_bytes), StateSpec(HIDDEN_STATE, "float32", (BATCH, self.config.width))]


def model_of(config: ModelConfig) -> Transformer:
    """An untrained model with this config."""
    return DraftHead(config) if isinstance(config, DraftHeadConfig) else Transformer(config)
