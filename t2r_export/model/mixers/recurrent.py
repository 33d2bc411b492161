"""LSTM and GRU layers: the recurrent networks that linear attention is measured against, behind the same interface.

`forward` is torch's own kernel over the sequence; `step` is the same formula in ordinary operators, on its weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from t2r_export.config.mixers import MixerConfig
from t2r_export.config.model import ModelConfig
from t2r_export.model.mixers.base import Mixer, State
from t2r_export.model.ops import TORCH, TorchOps
from t2r_export.model.positions import Rotary
from t2r_runtime.signature import BATCH, StateSpec


class RecurrentMixer(Mixer):
    """What the two have in common: D units a layer, each state (B, D)."""

    rnn: nn.LSTM | nn.GRU
    states: tuple[str, ...]

    def _arguments(self, x: Any, h: Any, ops: TorchOps) -> tuple[Any, Any]:
        """What x and what h (B, D) contribute to the gates, each (B, gates · D)."""
        of_x, of_h, bias_x, bias_h = self.rnn.all_weights[0]
        return ops.linear(x, of_x, bias_x), ops.linear(h, of_h, bias_h)

    def _run(self, x: Tensor, states: Any) -> tuple[Tensor, Any]:
        """torch's kernel over x (B, T, D) from states of one layer, (1, B, D) each: in the weights' own precision,
        because a state is carried through the whole text."""
        with torch.autocast(x.device.type, enabled=False):
            y, after = self.rnn(x.to(self.rnn.all_weights[0][0].dtype), states)
        return y.to(x.dtype), after

    def state_spec(self) -> list[StateSpec]:
        return [StateSpec(name, "float32", (BATCH, self.width)) for name in self.states]

    def fold_obstacle(self) -> str | None:
        return "a recurrent layer has no feature map to fold"


class LSTMMixer(RecurrentMixer):
    """Long short-term memory (Hochreiter and Schmidhuber 1997) with a forget gate (Gers et al. 2000).

    i, f, o = σ(W x + U h + b)      g = tanh(W x + U h + b)      c_t = f · c_{t-1} + i · g      h_t = o · tanh(c_t)
    """

    states = ("h", "c")

    def __init__(self, model: ModelConfig, config: MixerConfig) -> None:
        super().__init__(model, config)
        self.rnn = nn.LSTM(model.width, model.width, batch_first=True)

    def forward(self, x: Tensor, state: State, rotary: Rotary | None) -> tuple[Tensor, State]:
        y, (h, c) = self._run(x, (state["h"][None].contiguous(), state["c"][None].contiguous()))
        return y, {"h": h[0], "c": c[0]}

    def step(self, x: Any, state: State, rotary: Rotary | None, ops: TorchOps = TORCH) -> tuple[Any, State]:
        gates = ops.add(*self._arguments(x, state["h"], ops))
        i, f, g, o = ops.split(gates, [self.width] * 4)
        kept = ops.mul(ops.sigmoid(f), state["c"])
        c = ops.add(kept, ops.mul(ops.sigmoid(i), ops.tanh(g)))
        h = ops.mul(ops.sigmoid(o), ops.tanh(c))
        return h, {"h": h, "c": c}


class GRUMixer(RecurrentMixer):
    """Gated recurrent unit (Cho et al. 2014, arXiv 1406.1078), the reset gate behind the product as in cuDNN.

    r, z = σ(W x + U h + b)      n = tanh(W x + b + r · (U h + b'))      h_t = n + z · (h_{t-1} - n)
    """

    states = ("h",)

    def __init__(self, model: ModelConfig, config: MixerConfig) -> None:
        super().__init__(model, config)
        self.rnn = nn.GRU(model.width, model.width, batch_first=True)

    def forward(self, x: Tensor, state: State, rotary: Rotary | None) -> tuple[Tensor, State]:
        y, h = self._run(x, state["h"][None].contiguous())
        return y, {"h": h[0]}

    def step(self, x: Any, state: State, rotary: Rotary | None, ops: TorchOps = TORCH) -> tuple[Any, State]:
        D, h = self.width, state["h"]
        of_x, of_h = self._arguments(x, h, ops)
        (gates_x, new_x), (gates_h, new_h) = (ops.split(part, [2 * D, D]) for part in (of_x, of_h))
        r, z = ops.split(ops.sigmoid(ops.add(gates_x, gates_h)), [D, D])
        n = ops.tanh(ops.add(new_x, ops.mul(r, new_h)))
        h = ops.add(n, ops.mul(z, ops.sub(h, n)))
        return h, {"h": h}
