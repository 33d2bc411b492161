"""Initialize a student's feature maps from the keys of its teacher (`map_init=keys`).

φ(x) = relu(W x + b): columns of W are unit vectors from the mean key to keys of random tokens, and b = -Wᵀ m, with the
mean m of q or k. A feature is then positive for inputs on its token's side of the mean. docs/quality.md compares this
with random columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from t2r_export.batches.batch import Batch
from t2r_export.model.mixers.linear import LinearMixer
from t2r_export.model.parts.attention import Attention
from t2r_export.model.transformer import Transformer


@torch.no_grad()
def start_maps(student: Transformer, teacher: Transformer, batch: Batch) -> None:
    """Initialize the student's untrained maps from a batch of windows; its projections are still the teacher's."""
    places = [
        (n, m, part, mixer)
        for n, block in enumerate(student.blocks)
        for m, part in enumerate(block.parts)
        if isinstance(part, Attention) and (mixer := _to_start(part)) is not None
    ]
    if not places:
        return  # without running the teacher
    found: list[list[tuple[Tensor, Tensor]]] = [[] for _ in places]
    for one in batch.split(1):
        traces = teacher.traces(one.ids, teacher.init_state(1))
        step = student.context(student.init_state(1), student.ops(one.ids.shape[1]))
        for seen, (n, m, part, _) in zip(found, places, strict=True):
            heads = part.project(traces[n].parts[m].normed, step)
            seen.append((heads.q[0], heads.k[0]))
    generator = torch.Generator().manual_seed(0)  # batches differ by the seed of a run
    for seen, (*_, mixer) in zip(found, places, strict=True):
        q, k = (torch.cat(tokens, 1) for tokens in zip(*seen, strict=True))
        mixer.maps.start_at(q * mixer.config.query_scale, k, generator)


def _to_start(part: Attention) -> LinearMixer | None:
    """The linear mixer of a part whose maps start at keys and have not been trained."""
    mixer = part.inner
    if not isinstance(mixer, LinearMixer) or mixer.config.map_init != "keys":
        return None
    return mixer if mixer.maps.of_keys.is_new else None
