"""A Decision Transformer (Chen et al. 2021, arXiv 2106.01345) on a line: training, export, acting with the graph.

`python decision_transformer.py`, in an empty folder. docs/vectors.md describes it; tests/test_vectors.py runs it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from t2r_export.checkpoints import checkpoint
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.export import ExportConfig
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.export import export
from t2r_export.model.transformer import Transformer
from t2r_runtime import Decoder

STEPS, WIDTH = 5, 16
random = np.random.default_rng(0)


class Embedded(torch.nn.Module):
    """Returns-to-go, states and actions (B, T) at times (T,) -> vectors (B, 3 T, WIDTH), in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.maps = torch.nn.ModuleList(torch.nn.Linear(1, WIDTH) for _ in range(3))
        self.time = torch.nn.Embedding(STEPS, WIDTH)

    def forward(self, returns: Tensor, states: Tensor, actions: Tensor, times: Tensor) -> Tensor:
        at = self.time(times)
        rows = [m(x[..., None]) + at for m, x in zip(self.maps, (returns, states, actions), strict=True)]
        return torch.stack(rows, 2).flatten(1, 2)


def trajectories(count: int) -> list[Tensor]:
    """Walks on a line towards 0 at random speeds: returns-to-go, places and moves (B, T)."""
    place, speed = random.normal(0, 1, count), random.uniform(0, 1, count)
    places, moves, rewards = [], [], []
    for _ in range(STEPS):
        places.append(place)
        moves.append(-speed * place + random.normal(0, 0.05, count))
        place = place + moves[-1]
        rewards.append(-np.abs(place))
    to_go = list(np.cumsum(np.stack(rewards)[::-1], 0)[::-1])
    return [torch.tensor(np.stack(column, 1)).float() for column in (to_go, places, moves)]


config = UniformConfig(
    input_size=WIDTH,
    vocab_size=1,  # the move itself
    width=WIDTH,
    layers=(SoftmaxConfig(),) * 2,
    attention=HeadsConfig(heads=2, kv_heads=2, head_size=8),
    ffn_size=32,
    position="none",
    tied_head=False,
).build()
torch.manual_seed(0)
front, model = Embedded(), Transformer(config)
optimizer = torch.optim.AdamW([*front.parameters(), *model.parameters()], 3e-3)
times, losses = torch.arange(STEPS), []
for _ in range(80):
    to_go, places, moves = trajectories(64)
    predicted = model(front(to_go, places, moves, times))[:, 1::3, 0]  # at each state
    loss = (predicted - moves).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

checkpoint.save("decision.pt", model.eval(), None, {})
export(checkpoint.load("decision.pt"), "decision.onnx", ExportConfig(prefill=True))

decoder, place, target, steps = Decoder("decision.onnx"), 1.0, -1.0, []
for t in range(STEPS):  # two vectors, then the model's move, then that move's vector
    with torch.no_grad():
        now, at = (torch.tensor([[target]]), torch.tensor([[place]])), times[t : t + 1]
        move = float(decoder.prefill(front(*now, torch.zeros(1, 1), at)[0, :2].numpy())[0, 0])
        decoder.step(front(*now, torch.tensor([[move]]), at)[0, 2].numpy())
    steps.append((target, place, move))
    place += move
    target += abs(place)
