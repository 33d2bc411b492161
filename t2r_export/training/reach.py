"""How far back a teacher's attention looks, so that a student's gates start there.

A decay g forgets in 1 / -log g tokens. Gates that start nearly open remember hundreds, and training leaves most of them
there; attention of small models looks back a few dozen.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from t2r_export.data.batch import Batch
from t2r_export.model.mixers.gates import Gates
from t2r_export.model.ops import State
from t2r_export.model.parts.attention import Attention
from t2r_export.model.parts.base import Part
from t2r_export.model.step import Step
from t2r_export.model.transformer import Transformer


def attended_distance(part: Attention, x: Tensor, state: State[Tensor], step: Step[Tensor]) -> Tensor:
    """Mean distance between a query and what it attends to, Σ_j a_ij (i - j), of the later half of a window's queries.

    Args:
        part: softmax attention. x: its input, rows (B·T, D). state: before the window.

    Returns:
        One number for each kv head, mean over its query heads, (G,).
    """
    heads = part.project(x, step)
    _, G, T, _ = heads.v.shape
    places = torch.arange(T, device=x.device, dtype=heads.v.dtype).view(-1, 1)
    # the output for values that are places is the mean place that is attended to
    seen, _ = part.inner(dataclasses.replace(heads, v=places.expand_as(heads.v).contiguous()), state, step)
    distances = (places[:, 0] - seen[..., 0])[..., T // 2 :]  # (B, H, T - T // 2)
    of_heads: Tensor = distances.mean((0, 2)).unflatten(0, (G, -1)).mean(1)
    return of_heads


@torch.no_grad()
def start_gates(student: Transformer, teacher: Transformer, batch: Batch) -> None:
    """Start the student's untrained gates at the distances of the teacher's attention in `batch` of windows."""
    places = [
        (n, m, gates, softmax)
        for n, (ours, theirs) in enumerate(zip(student.blocks, teacher.blocks, strict=True))
        for m, (part, other) in enumerate(zip(ours.parts, theirs.parts, strict=False))
        if (gates := _gates(part)) is not None and (softmax := _softmax(other)) is not None
    ]
    if not places:
        return  # and no teacher is read
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
    """The gates of a student's part, if they are computed from the token."""
    gates = getattr(getattr(part, "inner", None), "gates", None)
    return gates if isinstance(gates, Gates) and gates.config.gates else None


def _softmax(part: Part) -> Attention | None:
    """The part, if its outputs are weighted means of its tokens' values alone."""
    if not isinstance(part, Attention) or not part.config.inside.scored:
        return None
    remembers: bool = getattr(part.config.inside, "memory", 0) > 0
    return None if remembers else part
