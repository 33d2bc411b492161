"""A policy with gated residuals that remembers where to turn in a maze: training, export, and acting with the graph.

`python policy.py`, in an empty folder. docs/vectors.md describes it; tests/test_vectors.py runs it.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from t2r_export.checkpoints import checkpoint
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.gate import ResidualGateConfig
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.export import export
from t2r_export.model.transformer import Transformer
from t2r_runtime import Decoder

LENGTH = 6
random = np.random.default_rng(0)


def walk(goals: NDArray[np.int64]) -> NDArray[np.float32]:
    """Goals (B,) of -1 or 1 -> observations (B, LENGTH, 3): the sign, whether this is the junction, and noise."""
    seen = np.zeros((len(goals), LENGTH, 3), np.float32)
    seen[:, 0, 0], seen[:, -1, 1] = goals, 1
    seen[:, :, 2] = random.normal(0, 0.3, (len(goals), LENGTH))
    return seen


config = UniformConfig(
    input_size=3,
    vocab_size=2,  # left, right
    width=12,
    layers=(LinearConfig(6, update_rule="gated", gate="data"),) * 2,
    attention=HeadsConfig(heads=2, kv_heads=2, head_size=6),
    ffn_size=24,
    position="none",
    tied_head=False,
    residual_gate=ResidualGateConfig(bias=1.0),
).build()
torch.manual_seed(0)
policy = Transformer(config)
optimizer = torch.optim.AdamW(policy.parameters(), 1e-2)
rewards = []
for _ in range(60):
    goals = random.choice([-1, 1], 64)
    chances = policy(torch.from_numpy(walk(goals)))[:, -1].softmax(-1)
    right = torch.from_numpy((goals > 0).astype(np.int64))
    reward = chances.gather(1, right[:, None]).mean()  # expected: 1 for the turn of the sign
    optimizer.zero_grad()
    (-reward).backward()
    optimizer.step()
    rewards.append(reward.item())

checkpoint.save("policy.pt", policy.eval(), None, {})
export(checkpoint.load("policy.pt"), "policy.onnx")
actor, goals = Decoder("policy.onnx"), np.array([1, -1, -1])
actor.reset(batch=3)
for observed in walk(goals).swapaxes(0, 1):  # (B, 3) per step
    turn = actor.step(observed).argmax(-1) * 2 - 1
