"""LSTM and GRU layers, as baselines."""

from __future__ import annotations

from torch import nn

from t2r_export.config.parts import PartConfig
from t2r_export.model.ops import Ops, State, T
from t2r_export.model.parts.base import Part, Site
from t2r_export.model.step import Step
from t2r_runtime.contract.state_spec import BATCH, StateSpec


class Recurrent(Part):
    """Base of LSTM and GRU with D units; each state is (B, D)."""

    rnn: nn.LSTM | nn.GRU
    states: tuple[str, ...]

    def forward(self, x: T, state: State[T], step: Step[T]) -> tuple[T, State[T]]:
        return (self._many if step.ops.many else self._one)(x, state, step.ops)

    def _one(self, x: T, state: State[T], ops: Ops[T]) -> tuple[T, State[T]]:
        """One token of each sequence."""
        raise NotImplementedError

    def _many(self, x: T, state: State[T], ops: Ops[T]) -> tuple[T, State[T]]:
        """T tokens of each sequence."""
        raise NotImplementedError

    def _arguments(self, x: T, h: T, ops: Ops[T]) -> tuple[T, T]:
        """Gate contributions (B, gates · D) of x and h (B, D)."""
        of_x, of_h, bias_x, bias_h = self.rnn.all_weights[0]
        return ops.linear(x, of_x, bias_x), ops.linear(h, of_h, bias_h)

    def state_spec(self) -> list[StateSpec]:
        return [StateSpec(name, "float32", (BATCH, self.width)) for name in self.states]


class LSTM(Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber 1997) with a forget gate (Gers et al. 2000).

    i, f, o = σ(W x + U h + b)      g = tanh(W x + U h + b)      c_t = f · c_{t-1} + i · g      h_t = o · tanh(c_t)
    """

    states = ("h", "c")

    def __init__(self, site: Site, config: PartConfig) -> None:
        super().__init__(site, config)
        self.rnn = nn.LSTM(site.width, site.width, batch_first=True)

    def _one(self, x: T, state: State[T], ops: Ops[T]) -> tuple[T, State[T]]:
        gates = ops.add(*self._arguments(x, state["h"], ops))
        i, f, g, o = ops.split(gates, [self.width] * 4)
        kept = ops.mul(ops.sigmoid(f), state["c"])
        c = ops.add(kept, ops.mul(ops.sigmoid(i), ops.tanh(g)))
        h = ops.mul(ops.sigmoid(o), ops.tanh(c))
        return h, {"h": h, "c": c}

    def _many(self, x: T, state: State[T], ops: Ops[T]) -> tuple[T, State[T]]:
        y, h, c = ops.lstm(x, state["h"], state["c"], self.rnn.all_weights[0])
        return y, {"h": h, "c": c}


class GRU(Recurrent):
    """Gated recurrent unit (Cho et al. 2014, arXiv 1406.1078), with the reset gate after the product, as in cuDNN.

    r, z = σ(W x + U h + b)      n = tanh(W x + b + r · (U h + b'))      h_t = n + z · (h_{t-1} - n)
    """

    states = ("h",)

    def __init__(self, site: Site, config: PartConfig) -> None:
        super().__init__(site, config)
        self.rnn = nn.GRU(site.width, site.width, batch_first=True)

    def _one(self, x: T, state: State[T], ops: Ops[T]) -> tuple[T, State[T]]:
        D, h = self.width, state["h"]
        of_x, of_h = self._arguments(x, h, ops)
        (gates_x, new_x), (gates_h, new_h) = (ops.split(part, [2 * D, D]) for part in (of_x, of_h))
        r, z = ops.split(ops.sigmoid(ops.add(gates_x, gates_h)), [D, D])
        n = ops.tanh(ops.add(new_x, ops.mul(r, new_h)))
        h = ops.add(n, ops.mul(z, ops.sub(h, n)))
        return h, {"h": h}

    def _many(self, x: T, state: State[T], ops: Ops[T]) -> tuple[T, State[T]]:
        y, h = ops.gru(x, state["h"], self.rnn.all_weights[0])
        return y, {"h": h}
