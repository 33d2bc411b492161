"""Reference results: the eager model in float64, or, of a quantized graph, ONNX Runtime on a CPU."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.model.transformer import Transformer
from t2r_runtime import Decoder
from t2r_runtime.contract.state_spec import StateSpec

Array = NDArray[Any]
States = dict[str, Array]


class Computed(Protocol):
    """A step from states to states."""

    vocab_size: int
    specs: list[StateSpec]  # of its input and output states

    def initial(self, batch: int) -> States:
        """The states at the start of a text."""
        ...

    def step(self, ids: Array, states: Mapping[str, Array]) -> tuple[Array, States]:
        """Tokens (B,) -> logits (B, vocabulary) and the states after them."""
        ...


class Eager:
    """A model with weights in float64; the frequencies of its positions stay float32, as in every runtime."""

    def __init__(self, golden: Checkpoint, past_end: str = "refuse") -> None:
        self.model: Transformer = copy.deepcopy(golden.model)
        self.model.end_positions(past_end)
        for weight in self.model.parameters():
            weight.data = weight.data.double()
        self.vocab_size, self.specs = golden.config.vocab_size, self.model.state_spec()

    def initial(self, batch: int) -> States:
        return {name: value.numpy() for name, value in self.model.init_state(batch).items()}

    @torch.no_grad()
    def step(self, ids: Array, states: Mapping[str, Array]) -> tuple[Array, States]:
        before = {name: torch.from_numpy(np.array(value)) for name, value in states.items()}
        logits, after = self.model.step(torch.from_numpy(np.array(ids, np.int64)), before)
        return logits.numpy(), {name: after[name].numpy() for name in states}


class AsRun:
    """A graph in ONNX Runtime: no eager model has its quantized weights."""

    def __init__(self, path: Path) -> None:
        self._decoder = Decoder(path, threads=1)
        self.vocab_size, self.specs = self._decoder.signature.vocab_size, list(self._decoder.signature.states)

    def initial(self, batch: int) -> States:
        self._decoder.reset(batch)
        return self._decoder.state()

    def step(self, ids: Array, states: Mapping[str, Array]) -> tuple[Array, States]:
        dtypes = {spec.name: spec.dtype for spec in self.specs}
        self._decoder.set_state({name: value.astype(dtypes[name]) for name, value in states.items()})
        return self._decoder.step(ids), self._decoder.state()
