"""Rounding error of a model in float32, measured against float64: the reference for errors of graphs.

An untrained model may divide by sums near zero and amplify the last digit, which depends on the processor's order of
additions; no fixed bound holds on all processors. A single run may underestimate the worst step (an error 26 times
smaller than the graph's was measured), so nine runs are rows of one batch: the unmodified model, and eight in which
every output of a norm is rounded to the next float32 up or down.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from t2r_export.model.block import BlockNorm
from t2r_export.model.ops import State
from t2r_export.model.torch_primitives import rounded_as
from t2r_export.model.transformer import Transformer
from t2r_export.proof.side_by_side import Errors, Text, arrays, logit_error, state_error

RUNS = 9
MAX_BYTES = 1 << 29  # of the states of all runs


@torch.inference_mode()
def own_rounding(model: Transformer, texts: Sequence[Text], piece: int = 1) -> Errors:
    """Worst error of float32 against float64 over all steps of the texts and all runs.

    Sequences of a text are read together while the states of all their runs fit into `MAX_BYTES`, at least one.

    Args:
        model: float32, unfolded; not changed.
        piece: tokens that the float64 copy reads at once. States are compared after each piece, logits at every step.
    """
    exact, worst = copy.deepcopy(model).double(), Errors()
    with _nudged(model):
        for text in texts:
            for part in _parts(text):
                worst = worst.or_worse(_of_text(model, exact, part, piece))
    return worst


def _parts(text: Text) -> Iterator[Text]:
    """A text, divided by its sequences."""
    batch = len(text.ids[0]) if text.ids else 0
    together = max(1, MAX_BYTES * batch // max(1, RUNS * sum(value.nbytes for value in text.states.values())))
    for first in range(0, batch, together):
        rows = slice(first, first + together)
        yield Text({name: value[rows] for name, value in text.states.items()}, [ids[rows] for ids in text.ids])


def _of_text(model: Transformer, exact: Transformer, text: Text, piece: int) -> Errors:
    worst, wide = Errors(), _in(torch.float64, text.states)
    states = _repeated(_in(torch.float32, text.states))
    for start in range(0, len(text.ids), piece):
        tokens, rows = text.ids[start : start + piece], []
        expected, wide = _read(exact, tokens, wide)
        rounded = [x.repeat(RUNS, 1, 1, 1)[..., -1:, :] for x in wide.values() if x.dtype == torch.int8]
        for ids in tokens:
            with rounded_as(rounded):
                logits, states = model.step(torch.cat([ids] * RUNS), states)
            rows.append(logits)
        error = logit_error(torch.stack(rows).numpy(), expected.repeat(1, RUNS, 1).numpy())
        exactly = {n: np.broadcast_to(value, (RUNS, *value.shape)) for n, value in arrays(exact, wide).items()}
        received = {n: value.reshape(exactly[n].shape) for n, value in arrays(model, states).items()}
        worst = worst.or_worse(Errors(error, state_error(received, exactly)))
    return worst


def _read(model: Transformer, tokens: Sequence[Tensor], states: State[Tensor]) -> tuple[Tensor, State[Tensor]]:
    """Read tokens, each (B,): logits (tokens, B, vocabulary) and new states."""
    if len(tokens) == 1:
        logits, states = model.step(tokens[0], states)
        return logits[None], states
    logits, states = model.prefill(torch.stack(list(tokens), 1), states)
    return logits.transpose(0, 1), states


@contextlib.contextmanager
def _nudged(model: Transformer) -> Iterator[None]:
    """Context in which all runs but the first round the outputs of norms up or down."""
    generator = torch.Generator().manual_seed(0)

    def nudge(module: nn.Module, given: object, x: Tensor) -> Tensor:
        first = len(x) // RUNS
        away = torch.where(torch.rand(x[first:].shape, generator=generator) < 0.5, -torch.inf, torch.inf)
        return torch.cat([x[:first], x[first:].nextafter(away)])

    hooks = [module.register_forward_hook(nudge) for module in model.modules() if isinstance(module, BlockNorm)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _in(dtype: torch.dtype, states: State[Tensor]) -> State[Tensor]:
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in states.items()}


def _repeated(states: State[Tensor]) -> State[Tensor]:
    return {name: value.repeat(RUNS, *[1] * (value.ndim - 1)) for name, value in states.items()}
