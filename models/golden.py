"""The golden models of models/tiny: graphs of a few kilobytes and what they must compute, for runtimes in any language.

    python models/golden.py models/tiny

Each graph has a trace: tokens, a random non-zero state to start from, the logits after every token and the states after
the last, and a greedy continuation from the initial state. The numbers are the eager model's in float64, so that every
runtime is compared with the same truth and none with another's rounding. Weights are multiples of 1/256, which makes
the folded weights exact and the files the same wherever they are made.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.attention import AttentionConfig, RotaryConfig
from t2r_export.config.mixers import Guard, LinearConfig, SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.export import export
from t2r_export.files import write_bytes
from t2r_export.model.ops import State
from t2r_export.model.transformer import Transformer
from t2r_export.proof.tolerances import tolerance

BATCH, STEPS, CACHED = 2, 24, 3
PROMPTS = {"tiny": (1, 3, 14), "tiny-hybrid": (1, 7, 0)}  # chosen for many different tokens, and for their margin
GREEDY = 32
MARGIN = 1e-2  # of every greedy choice over the next best token, so that rounding cannot change it
GRID = 256

_TINY = ModelConfig(
    vocab_size=17,
    width=8,
    ffn_size=11,
    layers=(
        LinearConfig(feature_size=5, guard=Guard("clamp", 1e-2)),
        LinearConfig(feature_size=5, query_scale=0.5, guard=Guard("add", 2**-8)),
        LinearConfig(feature_size=5, guard=Guard("clamp", 1e-2)),
    ),
    position="sinusoidal",
    bos_token=1,
    eos_tokens=(2,),
    attention=AttentionConfig(heads=6, kv_heads=3, head_size=4),
)
MODELS = {
    # states of constant size alone: three folded layers and the position
    "tiny": _TINY,
    # one layer unfolded for its rotary positions, one with a cache that grows, one folded
    "tiny-hybrid": dataclasses.replace(
        _TINY.with_attention(qkv_bias=False, output_bias=False, rotary=RotaryConfig()),
        layers=(
            LinearConfig(feature_size=5, guard=Guard("clamp", 1e-2)),
            SoftmaxConfig(),
            LinearConfig(feature_size=5, positions="drop", guard=Guard("add", 2**-8)),
        ),
        position="none",
        norm="rms",
        activation="silu",
        gated_ffn=True,
        tied_head=False,
        ffn_bias=False,
    ),
}


def checkpoint(name: str) -> Checkpoint:
    """The golden model `name` with its seeded weights."""
    config = MODELS[name]
    model = Transformer(config).eval()
    random = np.random.default_rng(list(name.encode()))
    digest = hashlib.sha256(json.dumps(config.to_dict(), sort_keys=True).encode())
    for key, weight in model.named_parameters():
        scale = "norm" in key and key.endswith("weight")
        values = scale + random.integers(-GRID // 2, GRID // 2 + 1, tuple(weight.shape)) / GRID
        weight.data = torch.from_numpy(values.astype(np.float32))
        digest.update(weight.data.numpy().tobytes())
    return Checkpoint(config, model, None, {}, digest.hexdigest())


@torch.no_grad()
def trace(golden: Checkpoint, name: str) -> dict[str, Any]:
    """What the graph of the golden model `name` must compute, as plain JSON data.

    Arrays are a shape and their numbers in row-major order.
    """
    model = _in_float64(golden.model)
    random = np.random.default_rng(list(f"{name} trace".encode()))
    ids = torch.from_numpy(random.integers(0, model.config.vocab_size, (BATCH, STEPS)))
    start = _start(model, random)
    states, rows = start, []
    for column in ids.T:
        logits, states = model.step(column, states)
        rows.append(logits)
    bound = tolerance("cpu", "none")
    return {
        "graph": f"{name}.onnx",
        "tolerance": {"logits_absolute": bound.logits, "state_relative_to_its_largest": bound.states},
        "ids": _array(ids),  # (B, T)
        "start": {name: _array(value) for name, value in start.items()},
        "logits": _array(torch.stack(rows, 1)),  # (B, T, vocabulary): [:, t] after token t
        "end": {name: _array(states[name]) for name in start},
        "greedy": {"prompt": list(PROMPTS[name]), "tokens": _greedy(model, PROMPTS[name])},
    }


def _in_float64(model: Transformer) -> Transformer:
    """A copy with weights in float64; the frequencies of its positions stay float32, as in every runtime."""
    wide = copy.deepcopy(model)
    for weight in wide.parameters():
        weight.data = weight.data.double()
    return wide


def _start(model: Transformer, random: np.random.Generator) -> State[Tensor]:
    """Random states, none of them zero: z between 1 and 2, positions that differ, caches of `CACHED` tokens."""
    states: State[Tensor] = {}
    for spec in model.state_spec():
        shape = spec.dims(BATCH, CACHED)
        if spec.dtype == "int32":
            states[spec.name] = torch.arange(CACHED, CACHED + 8 * BATCH, 8, dtype=torch.int32)
        else:
            low = GRID if spec.name.startswith("z") else -GRID
            states[spec.name] = torch.from_numpy((random.integers(low, 2 * GRID, shape) + 0.5) / GRID)
    return states


def _greedy(model: Transformer, prompt: tuple[int, ...]) -> list[int]:
    """The tokens that follow `prompt` in a new text, without regard to end tokens."""
    tokens, states = list(prompt), model.init_state(1)
    for place in range(len(prompt) + GREEDY - 1):
        logits, states = model.step(torch.tensor([tokens[place]]), states)
        if place >= len(prompt) - 1:
            best, second = logits[0].topk(2).values.tolist()
            assert best - second > MARGIN, "choose another prompt"
            tokens.append(int(logits[0].argmax()))
    return tokens[len(prompt) :]


def _array(values: Tensor) -> dict[str, Any]:
    """Nine digits are enough to give every float32 back."""
    whole = not values.is_floating_point()
    numbers = [int(x) if whole else float(f"{x:.9g}") for x in values.flatten().tolist()]
    return {"shape": list(values.shape), "data": numbers}


def write(folder: Path) -> None:
    """Write NAME.onnx and NAME.json for every golden model."""
    for name in MODELS:
        golden = checkpoint(name)
        export(golden, folder / f"{name}.onnx")
        entries = [f'"{key}": {json.dumps(value)}' for key, value in trace(golden, name).items()]
        write_bytes(folder / f"{name}.json", ("{\n" + ",\n".join(entries) + "\n}\n").encode())


if __name__ == "__main__":
    write(Path(sys.argv[1]))
