"""Initialize a student's gates from the distances that the teacher's attention looks back.

A decay g forgets in 1 / -log g tokens. Gates initialized nearly open remember hundreds of tokens, and most stay there
in training; attention of small models looks back a few dozen.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from t2r_export.batches.batch import Batch
from t2r_export.model.mixers.gates import Gates
from t2r_export.model.ops import State
from t2r_export.model.parts.attention import Attention
from t2r_export.model.parts.base import Part
from t2r_export.model.step import Step
from t2r_export.model.transformer import Transformer


def attended_distance(part: Attention, x: Tensor, state: State[Tensor], step: Step[Tensor]) -> Tensor:
    """Mean attention distance Σ_j a_ij (i - j) over the second half of a window's queries.

    Args:
        part: softmax attention. x: its input, rows (B·T, D). state: before the window.

    Returns:
        Mean over the query heads of each kv head, (G,).
    """
    heads = part.project(x, step)
    _, G, T, _ = heads.v.shape
    places = torch.arange(T, device=x.device, dtype=heads.v.dtype).view(-1, 1)
    # with positions as values, the output is the mean attended position
    seen, _ = part.inner(dataclasses.replace(heads, v=places.expand_as(heads.v).contiguous()), state, step)
    distances = (places[:, 0] - seen[..., 0])[..., T // 2 :]  # (B, H, T - T // 2)
    of_heads: Tensor = distances.mean((0, 2)).unflatten(0, (G, -1)).mean(1)
    return of_heads


@torch.no_grad()
def start_gates(student: Transformer, teacher: Transformer, batch: Batch) -> None:
    """Initialize the student's untrained gates from the teacher's mean attention distances on a batch of windows."""
    places = [
        (n, m, gates, softmax)
        for n, (ours, theirs) in enumerate(zip(student.blocks, teacher.blocks, strict=True))
        for m, (part, other) in enumerate(zip(ours.parts, theirs.parts, strict=False))
        if (gates := _gates(part)) is not None and (softmax := _softmax(other)) is not None
    ]
    if not places:
        return  # without running the teacher
    found: list[list[Tensor]] = [[] for _ in places]
    for one in batch.split(1):
        states = teacher.init_state(1)
        step = teacher.context(states, teacher.ops(one.ids.shape[1]))
        traces = teacher.traces(one.ids, states)
        for distances, (n, m, _, softmax) in zip(found, places, strict=True):
            state = teacher.blocks[n].own(m, teacher.layer_state(states, n))
            distances.append(attended_distance(softmax, traces[n].parts[m].normed, state, step))
    for distances, (*_, gates, _) in zip(found, places, strict=True):
        if len(distances[0]) == gates.heads:
            gates.start_at(torch.stack(distances).mean(0))


def _gates(part: Part) -> Gates | None:
    """The gates of a student's part, if data-dependent."""
    gates = getattr(getattr(part, "inner", None), "gates", None)
    return gates if isinstance(gates, Gates) and gates.config.gates else None


def _softmax(part: Part) -> Attention | None:
    """The part, if its outputs are weighted means of only the tokens' values."""
    if not isinstance(part, Attention) or not part.config.inside.scored:
        return None
    remembers: bool = getattr(part.config.inside, "memory", 0) > 0
    return None if remembers else part
