"""How far float32 itself is from what a model means: the measure of what a graph may add.

An untrained model can divide by a sum that is nearly zero, and makes much of the last digit there. Which digit comes
last depends on the order in which a processor adds, so no fixed bound holds on all of them. What float32 costs a model
is known on any: the same states and tokens in float64. One run may meet the worst step with a lucky rounding (26 times
less than in the graph beside it was seen), so nine are made, as rows of one batch: the model's own, and eight in which
every number that a norm hands on is the next one of float32, up or down.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from t2r_export.model.block import BlockNorm
from t2r_export.model.ops import State
from t2r_export.model.transformer import Transformer
from t2r_export.proof.side_by_side import Errors, Text, arrays, logit_error, state_error

RUNS = 9


@torch.inference_mode()
def own_rounding(model: Transformer, texts: Sequence[Text], piece: int = 1) -> Errors:
    """The worst error of float32 against float64 at any step of the texts, in any of the runs.

    Args:
        model: float32, unfolded. It is left as it was; a copy in float64 is made.
        piece: tokens that the copy reads at once. States are compared after each piece, logits at every step.
    """
    exact, worst = copy.deepcopy(model).double(), Errors()
    with _nudged(model):
        for text in texts:
            wide = _in(torch.float64, text.states)
            states = _repeated(_in(torch.float32, text.states))
            for start in range(0, len(text.ids), piece):
                tokens, rows = text.ids[start : start + piece], []
                for ids in tokens:
                    logits, states = model.step(ids.repeat(RUNS), states)
                    rows.append(logits)
                expected, wide = _read(exact, tokens, wide)
                error = logit_error(torch.stack(rows).numpy(), expected.repeat(1, RUNS, 1))
                repeated = arrays(exact, _repeated(wide))
                worst = worst.or_worse(Errors(error, state_error(arrays(model, states), repeated)))
    return worst


def _read(model: Transformer, tokens: Sequence[Tensor], states: State[Tensor]) -> tuple[Tensor, State[Tensor]]:
    """Tokens, each (B,), and the states before them -> logits (tokens, B, vocabulary) and the states after."""
    if len(tokens) == 1:
        logits, states = model.step(tokens[0], states)
        return logits[None], states
    logits, states = model.prefill(torch.stack(list(tokens), 1), states)
    return logits.transpose(0, 1), states


@contextlib.contextmanager
def _nudged(model: Transformer) -> Iterator[None]:
    """Within, all rows of a batch but those of the first run go through the model with other last digits."""
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
