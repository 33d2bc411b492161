"""Initialize a student's mixers from the attention of its teacher, on a batch of text.

Sizes that suit one model fail in another: scores, features and the share of attention beyond a window all depend on the
teacher. Each mixer sets its own weights (`AttentionMixer.start`); this module measures what they need.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from t2r_export.batches.batch import Batch
from t2r_export.model.mixers.base import Attended, Heads
from t2r_export.model.mixers.hybrid import HybridMixer
from t2r_export.model.ops import State
from t2r_export.model.parts.attention import Attention
from t2r_export.model.parts.base import Part
from t2r_export.model.step import Step
from t2r_export.model.transformer import Transformer

TOKENS = 4096  # of the batch, at most


@dataclass(frozen=True)
class Place:
    """A student's attention, and the teacher's softmax attention that it replaces."""

    layer: int
    part: int  # number in its block
    ours: Attention
    theirs: Attention | None  # None: no weighted mean of the tokens' values


@torch.no_grad()
def start(student: Transformer, teacher: Transformer, batch: Batch) -> None:
    """Initialize the student's untrained mixers; its projections are still the teacher's. Trained mixers stay.

    Translators, and students with other layers than their teacher's, stay as they are.
    """
    places = [place for place in attention_places(student, teacher, batch) if place.ours.inner.is_new()]
    generator = torch.Generator().manual_seed(0)  # batches differ by the seed of a run
    for place, rows in _inputs(places, teacher, batch):
        states = student.init_state(1)
        step = student.context(states, student.ops(batch.ids.shape[1]))
        heads = [place.ours.project(x, step) for x in rows]
        state = student.blocks[place.layer].own(place.part, student.layer_state(states, place.layer))
        distance, far = _teacher(place, rows, teacher, batch.ids.shape[1])
        place.ours.inner.start(Attended(heads, state, step, distance, far, generator))


@torch.no_grad()
def far_shares(student: Transformer, teacher: Transformer, batch: Batch) -> dict[int, float]:
    """The teacher's attention outside of the student's windows, mean over heads, by layer with such a window."""
    places = [place for place in attention_places(student, teacher, batch) if place.ours.inner.near_tokens()]
    found = {
        place.layer: _teacher(place, rows, teacher, batch.ids.shape[1])[1]
        for place, rows in _inputs(places, teacher, batch)
    }
    return {layer: float(far.mean()) for layer, far in found.items() if far is not None}


@torch.no_grad()
def input_means(student: Transformer, teacher: Transformer, batch: Batch) -> dict[str, Tensor]:
    """Mean q and k (heads, d) for the teacher's hidden states, by name of the hybrid layers' maps."""
    places = [place for place in attention_places(student, teacher, batch) if isinstance(place.ours.inner, HybridMixer)]
    found = {}
    for place, rows in _inputs(places, teacher, batch):
        step = student.context(student.init_state(1), student.ops(batch.ids.shape[1]))
        heads = [place.ours.project(x, step) for x in rows]
        for name, seen in (("q", [one.q for one in heads]), ("k", [one.k for one in heads])):
            mean = torch.cat(seen, 2)[0].float().mean(1)
            found[f"blocks.{place.layer}.parts.{place.part}.inner.maps.{name}"] = mean
    return found


def attention_places(student: Transformer, teacher: Transformer, batch: Batch) -> list[Place]:
    """The student's attention parts, with the teacher's in the same places; none if the models are not alike."""
    sizes = [(len(model.blocks), model.config.width) for model in (student, teacher)]
    if batch.source is not None or sizes[0] != sizes[1]:
        return []
    return [
        Place(n, m, part, _softmax(other))
        for n, (ours, theirs) in enumerate(zip(student.blocks, teacher.blocks, strict=True))
        for m, (part, other) in enumerate(zip(ours.parts, theirs.parts, strict=False))
        if isinstance(part, Attention)
    ]


def _inputs(places: list[Place], teacher: Transformer, batch: Batch) -> list[tuple[Place, list[Tensor]]]:
    """The teacher's inputs of each place, rows (T, D) per window."""
    rows: list[list[Tensor]] = [[] for _ in places]
    for one in batch.split(1)[: max(1, TOKENS // batch.ids.shape[1])] if places else []:
        traces = teacher.traces(one.ids, teacher.init_state(1))
        for found, place in zip(rows, places, strict=True):
            found.append(traces[place.layer].parts[place.part].normed)
    return list(zip(places, rows, strict=True))


def _teacher(place: Place, rows: list[Tensor], teacher: Transformer, length: int) -> tuple[Tensor | None, ...]:
    """Mean attention distance (G,), and attention beyond the student's window (H,), where they are defined."""
    if place.theirs is None:
        return None, None
    states = teacher.init_state(1)
    step = teacher.context(states, teacher.ops(length))
    state = teacher.blocks[place.layer].own(place.part, teacher.layer_state(states, place.layer))
    heads = [place.theirs.project(x, step) for x in rows]
    distance = torch.stack([attended_distance(place.theirs, one, state, step) for one in heads]).mean(0)
    near = place.ours.inner.near_tokens()
    if near is None or sum(near) >= length:
        return distance, None
    return distance, torch.stack([far_share(place.theirs, one, state, step, *near) for one in heads]).mean(0)


def attended_distance(part: Attention, heads: Heads[Tensor], state: State[Tensor], step: Step[Tensor]) -> Tensor:
    """Mean attention distance Σ_j a_ij (i - j) over the second half of a window's queries.

    Args:
        part: softmax attention. heads: of T tokens. state: before them.

    Returns:
        Mean over the query heads of each kv head, (G,).
    """
    _, G, T, _ = heads.v.shape
    places = torch.arange(T, device=heads.v.device, dtype=heads.v.dtype)
    # with positions as values, the output is the mean attended position
    seen = _read(part, heads, places.view(-1, 1), state, step)
    distances = (places - seen[..., 0])[..., T // 2 :]  # (B, H, T - T // 2)
    of_heads: Tensor = distances.mean((0, 2)).unflatten(0, (G, -1)).mean(1)
    return of_heads


def far_share(
    part: Attention, heads: Heads[Tensor], state: State[Tensor], step: Step[Tensor], window: int, sinks: int
) -> Tensor:
    """Attention to tokens that are neither among the last `window` nor the first `sinks`, mean per query head (H,).

    Read at evenly spaced queries, at most one per value channel. Other arguments as in `attended_distance`.
    """
    T, size = heads.v.shape[2:]
    places = torch.arange(T, device=heads.v.device)
    queries = torch.linspace(window + sinks, T - 1, size, device=places.device).round().long().unique()
    # channel c of the values is 1 for the tokens that count for the query c
    values = torch.zeros_like(heads.v[0, 0])
    values[:, : len(queries)] = ((places[:, None] >= sinks) & (places[:, None] <= queries - window)).to(values.dtype)
    seen = _read(part, heads, values, state, step)
    share: Tensor = seen[:, :, queries, torch.arange(len(queries), device=places.device)].mean((0, 2))
    return share


def _read(part: Attention, heads: Heads[Tensor], values: Tensor, state: State[Tensor], step: Step[Tensor]) -> Tensor:
    """The attention's output (B, H, T, V) for other values (T, V), or (T, 1)."""
    found: Tensor = part.inner(dataclasses.replace(heads, v=values.expand_as(heads.v).contiguous()), state, step)[0]
    return found


def _softmax(part: Part) -> Attention | None:
    """The part, if its outputs are weighted means of only the tokens' values."""
    if not isinstance(part, Attention) or not part.config.inside.scored:
        return None
    remembers: bool = getattr(part.config.inside, "memory", 0) > 0
    return None if remembers else part
