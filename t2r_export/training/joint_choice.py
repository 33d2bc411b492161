"""What each layer should become, by gates that are trained in one short run (FlashMorph, arXiv 2606.30562).

Every layer gives Σ a_i · mixer_i(x): of its softmax attention and of the candidates, each as it is, in shares a that
are all that is trained, of all layers together, by the KL from the teacher. Left alone, the shares would go to the
teacher. So a layer's are softmax(l - λ b), with its trained numbers l, the bytes b of the mixers' states, and one λ ≥ 0
for all layers: the smallest with which the expected bytes are within the budget. What layers want is in l alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from t2r_export.data.corpus import Windows
from t2r_export.model.ops import State
from t2r_export.model.step import Step
from t2r_export.model.transformer import Transformer
from t2r_export.training.losses import divergence, divergence_target
from t2r_export.training.trainer import learning_rate

RATE, WARMUP = 0.1, 0.05  # of Adam on the gates
HALVINGS = 60  # of the interval that λ is in


class Mixture(nn.Module):
    """One layer's mixers in the place of its own. Keeps no states: every window starts with the initial ones."""

    def __init__(self, layer: int, branches: Sequence[Transformer]) -> None:
        super().__init__()
        self.branches = branches  # not registered: a list is no module
        self.mixers = [model.blocks[layer].mixers[-1] for model in branches]
        self.config = branches[0].blocks[layer].mixers[-1].config
        self.names = [{s.name: f"{s.name}.{layer}" for s in mixer.state_spec()} for mixer in self.mixers]
        self.contexts: list[tuple[State[Tensor], Step[Tensor]]] = []  # of each branch's model, for a batch
        self.shares: Tensor | None = None

    state_names = ()

    def state_spec(self) -> list[object]:
        return []

    def forward(self, x: Tensor, state: State[Tensor], step: Step[Tensor]) -> tuple[Tensor, State[Tensor]]:
        assert self.shares is not None
        y = torch.zeros_like(x)
        for share, mixer, names, (states, own) in zip(self.shares, self.mixers, self.names, self.contexts, strict=True):
            y = y + share * mixer(x, {name: states[full] for name, full in names.items()}, own)[0]
        return y, {}


@contextmanager
def mixed(teacher: Transformer, mixtures: Sequence[Mixture]) -> Iterator[None]:
    """Inside, the teacher's layers are these; afterwards it is unchanged."""
    own = [block.mixers[-1] for block in teacher.blocks]
    try:
        _put(teacher, mixtures)
        yield
    finally:
        _put(teacher, own)


def _put(model: Transformer, mixers: Sequence[nn.Module]) -> None:
    for block, mixer in zip(model.blocks, mixers, strict=True):
        block.parts[block.mixing[-1]] = mixer  # type: ignore[index]


def train_gates(
    teacher: Transformer, candidates: Sequence[Transformer], sizes: Tensor, room: int, windows: Windows, steps: range
) -> tuple[Tensor, Tensor]:
    """What the gates learn: l (L, 1 + candidates), the teacher's own mixer first, and their shares.

    Args:
        candidates: the teacher with another mixer in all layers; as they are.
        sizes: (L, 1 + candidates) float64, bytes of a sequence's states.
        room: bytes that all layers may have; at least the sum of each one's smallest.
        steps: which of the windows.
    """
    device = teacher.embedding.weight.device
    branches = [teacher, *candidates]
    for model in branches:
        model.requires_grad_(False).eval()
    mixtures = [Mixture(layer, branches) for layer in range(len(teacher.blocks))]
    gates = nn.Parameter(torch.zeros(sizes.shape, dtype=torch.float64))
    optimizer = torch.optim.Adam([gates], RATE)
    for number, step in enumerate(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(number, len(steps), RATE, WARMUP)
        loss = _loss(teacher, mixtures, within(gates, sizes, room), windows(step)[:, :-1].to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    learned = gates.detach()
    return learned, within(learned, sizes, room)


def _loss(teacher: Transformer, mixtures: Sequence[Mixture], shares: Tensor, ids: Tensor) -> Tensor:
    """KL of the mixtures from the teacher, mean over the tokens of ids (B, T)."""
    with torch.no_grad():
        target = divergence_target(teacher(ids).flatten(0, 1), 0)
    contexts = []
    for model in mixtures[0].branches:
        states = model.init_state(len(ids))
        contexts.append((states, model.context(states, model.ops(ids.shape[1]))))
    for mixture, of_layer in zip(mixtures, shares.to(teacher.embedding.weight), strict=True):
        mixture.contexts, mixture.shares = contexts, of_layer
    with mixed(teacher, mixtures):
        return divergence(teacher(ids).flatten(0, 1), target)


def within(gates: Tensor, sizes: Tensor, room: int) -> Tensor:
    """Shares (L, mixers) of numbers l and sizes b alike: softmax(l - λ b), whose expected bytes are at most `room`."""
    unit = float(sizes.max())

    def shares(tilt: float) -> Tensor:
        return torch.softmax(gates - tilt * sizes / unit, 1)

    @torch.no_grad()
    def fits(tilt: float) -> bool:
        return float((shares(tilt) * sizes).sum()) <= room * (1 + 1e-9)

    if fits(0.0):
        return shares(0.0)
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        if fits(high):
            break
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return shares(high)
