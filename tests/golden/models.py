"""The golden models: one for each possible fault of a runtime, with seeded weights and sizes that all differ.

Weights are multiples of 1/256, so that folded weights are exact and the files are the same on every machine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.export import ExportConfig
from t2r_export.config.generation import GenerationOptions
from t2r_export.config.mixers import Guard, LinearConfig, SoftmaxConfig, WindowConfig
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.config.uniform import NoFeedForward, UniformConfig
from t2r_export.export import export
from t2r_export.model.transformer import Transformer
from t2r_export.quantize import export_quantized

GRID = 256
# seed name -> digest of its checkpoint when first made, kept while the spelling of configs changes
DIGESTS = json.loads((Path(__file__).parent / "digests.json").read_text())
CLAMP = Guard("clamp", 1e-2)

SMALLEST = UniformConfig(
    vocab_size=5,
    width=2,
    ffn_size=1,
    layers=(LinearConfig(feature_size=2, normalizer="none"),),
    feed_forwards=(NoFeedForward(),),
    norm="none",
    position="none",
    bos_token=1,
    eos_tokens=(2,),
    attention=HeadsConfig(heads=1, kv_heads=1, head_size=3, qkv_bias=False, output_bias=False),
)
_TINY = UniformConfig(
    vocab_size=17,
    width=8,
    ffn_size=11,
    layers=(
        LinearConfig(feature_size=5, guard=CLAMP),
        LinearConfig(feature_size=5, query_scale=0.5, guard=Guard("add", 2**-8)),
        LinearConfig(feature_size=5, guard=CLAMP),
    ),
    position="sinusoidal",
    bos_token=1,
    eos_tokens=(2,),
    attention=HeadsConfig(heads=6, kv_heads=3, head_size=4),
)
_LLAMA = dataclasses.replace(
    _TINY.with_attention(qkv_bias=False, output_bias=False, positions=RotaryConfig()),
    position="none",
    norm="rms",
    activation="silu",
    gated_ffn=True,
    tied_head=False,
    ffn_bias=False,
)
PLAIN = dataclasses.replace(_TINY, position="none", tied_head=False)
_WIDE = dataclasses.replace(PLAIN, width=32, layers=PLAIN.layers[:2])  # a block of w4 has 16 weights
WINDOW = WindowConfig(window=3, sinks=2)


@dataclass(frozen=True)
class GoldenModel:
    """A model, its export options and the prompt of its greedy text, if any; chosen for many distinct tokens."""

    config: UniformConfig
    prompt: tuple[int, ...] | None
    options: ExportConfig = ExportConfig()
    quantized: QuantizeConfig | None = None


MODELS = {
    # only states of constant size: three folded layers and the position
    "tiny": GoldenModel(_TINY, (1, 3, 14)),
    # one layer unfolded for its rotary positions, one with a cache that grows, one folded
    "tiny-hybrid": GoldenModel(
        dataclasses.replace(
            _LLAMA,
            layers=(
                LinearConfig(feature_size=5, guard=CLAMP),
                SoftmaxConfig(),
                LinearConfig(feature_size=5, positions="drop", guard=Guard("add", 2**-8)),
            ),
        ),
        (1, 7, 0),
    ),
    # a ring buffer, and sink tokens that never leave it
    "window": GoldenModel(
        dataclasses.replace(PLAIN, layers=(WINDOW, LinearConfig(feature_size=5, guard=CLAMP))), (1, 8, 13)
    ),
    # states that decay, by token and by head
    "gated": GoldenModel(
        dataclasses.replace(
            PLAIN,
            layers=(
                LinearConfig(feature_size=5, update_rule="gated", gate="data", guard=CLAMP),
                LinearConfig(feature_size=5, update_rule="gated", gate="fixed", moving_average=True, guard=CLAMP),
            ),
        ),
        (1, 4, 8),
    ),
    # packed states of all layers
    "packed": GoldenModel(PLAIN, (1, 15, 0), ExportConfig(state_layout="packed")),
    # the largest logits beside all logits
    "top3": GoldenModel(PLAIN, (1, 11, 15), ExportConfig(top_k=3)),
    # a prefill graph, with growing states and others
    "prefill": GoldenModel(
        dataclasses.replace(PLAIN, layers=(LinearConfig(feature_size=5, guard=CLAMP), SoftmaxConfig(), WINDOW)),
        (1, 14, 10),
        ExportConfig(prefill=True),
    ),
    # generation options, which hold unless a caller gives others
    "options": GoldenModel(
        dataclasses.replace(
            PLAIN,
            layers=PLAIN.layers[:1],
            generation=GenerationOptions(
                temperature=0.8, top_k=9, top_p=0.9, min_p=0.05, repetition_penalty=1.3, no_repeat_ngram=3
            ),
        ),
        None,
    ),
    "int8": GoldenModel(_WIDE, (1, 0, 5), quantized=QuantizeConfig(scheme="int8")),
    "w8": GoldenModel(_WIDE, (1, 9, 4), quantized=QuantizeConfig(scheme="w8", block_size=16, accuracy_level=1)),
    "w4": GoldenModel(_WIDE, (1, 2, 7), quantized=QuantizeConfig(scheme="w4", block_size=16, accuracy_level=1)),
    # limited positions, and a fixed batch size
    "ends": GoldenModel(
        dataclasses.replace(_TINY, position="learned", max_positions=40, layers=_TINY.layers[:1]),
        None,
        ExportConfig(batch=2),
    ),
    # fewer positions than the trace has tokens: the last one is repeated, or they wrap
    "clamp": GoldenModel(
        dataclasses.replace(_TINY, position="learned", max_positions=13, layers=_TINY.layers[:1]),
        (1, 4, 8),
        ExportConfig(past_end="clamp"),
    ),
    "wrap": GoldenModel(
        dataclasses.replace(_TINY, position="learned", max_positions=13, layers=_TINY.layers[:1]),
        (1, 5, 9),
        ExportConfig(past_end="wrap:11"),
    ),
}
# seeds that are not the model's name, chosen for texts of many tokens
SEEDS = {
    **{name: f"{name} a" for name in ("window", "top3", "w8", "w4")},
    **{name: f"{name} b" for name in ("gated", "int8", "clamp")},
}


def checkpoint(name: str) -> Checkpoint:
    """The golden model `name` with its seeded weights."""
    return seeded(SEEDS.get(name, name), MODELS[name].config)


def seeded(name: str, config: UniformConfig, tokenizer: str | None = None) -> Checkpoint:
    """A model of random weights, the same for the same name."""
    made = config.build()
    model = Transformer(made).eval()
    random = np.random.default_rng(list(name.encode()))
    digest = hashlib.sha256(name.encode())
    for key, weight in _in_order(model):
        scale = "norm" in key and key.endswith("weight")
        values = scale + random.integers(-GRID // 2, GRID // 2 + 1, tuple(weight.shape)) / GRID
        weight.data = torch.from_numpy(values.astype(np.float32))
        digest.update(weight.data.numpy().tobytes())
    return Checkpoint(made, model, tokenizer, {}, DIGESTS.get(name) or digest.hexdigest())


def _in_order(model: Transformer) -> list[tuple[str, nn.Parameter]]:
    """A model's weights by name, those of a block in an order that does not depend on its lists of parts and norms."""
    lists = ("norms", "norms_sum", "parts", "norms_after")
    stacks = {"": model, "encoder.": model.encoder}
    found = list(model.named_parameters())
    first: dict[str, int] = {}  # place of a block's first weight

    def place(number: int, name: str) -> tuple[int, bool, int, int, int]:
        match = re.fullmatch(r"(encoder\.|)blocks\.(\d+)\.(\w+)\.(\d+)\..+", name)
        if match is None:
            return number, False, 0, 0, 0
        stack, block, which, part = stacks[match[1]], int(match[2]), lists.index(match[3]), int(match[4])
        assert stack is not None
        feeds = not stack.config.layers[block].parts[part].mixes  # mixing parts come first
        return first.setdefault(f"{match[1]}{block}", number), feeds, which, part, number

    return [found[number] for number in sorted(range(len(found)), key=lambda n: place(n, found[n][0]))]


def write_graph(name: str, folder: Path) -> Path:
    """Write the graph of the golden model `name`, with its weights and companions."""
    golden, path = MODELS[name], folder / f"{name}.onnx"
    if golden.quantized is None:
        export(checkpoint(name), path, golden.options)
    else:
        export_quantized(checkpoint(name), path, golden.options, golden.quantized)
    return path
