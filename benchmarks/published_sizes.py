"""Export and steps of recurrent families at published sizes, with random weights, beside transformers' own ONNX export.

    python benchmarks/published_sizes.py [granite-h-350m] [lfm2-350m] … [--rounds 7] [--limit SECONDS]

Speed and memory do not depend on the values of weights. For each size: a folder of float32 weights that transformers
writes; `t2r export` and `t2r quantize --scheme w4` as whole processes, and `t2r verify` of the float32 graph, which
must pass; steps of both graphs after 16 and 8,192 tokens, the caches of softmax layers filled with random numbers, in
w4 also on our own execution provider (runtimes/provider). Beside them the decode graph of transformers' OnnxExporter
(pip install onnxscript), in float32, whose export is given up after --limit seconds. Graphs take turns in one process,
and each turn continues its text; each figure is a median over rounds. A limit is what the weights and states that a
step reads take at the measured bandwidth.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from comparison.bandwidth import bandwidth, token_bytes
from comparison.timing import machine, run
from t2r_export.providers.bench import turns
from t2r_export.python import ARGUMENTS
from t2r_runtime import Decoder

# class in transformers, and config values that differ from its defaults; from the config.json of each model
SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "granite-h-350m": (
        "GraniteMoeHybrid",
        {
            "vocab_size": 100352,
            "hidden_size": 768,
            "intermediate_size": 2048,
            "shared_intermediate_size": 2048,
            "num_hidden_layers": 32,
            "layer_types": ["attention" if layer in (10, 13, 17, 27) else "mamba" for layer in range(32)],
            "num_attention_heads": 12,
            "num_key_value_heads": 4,
            "mamba_n_heads": 48,
            "mamba_d_head": 32,
            "mamba_d_state": 128,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "position_embedding_type": "nope",
            "embedding_multiplier": 12.0,
            "residual_multiplier": 0.246,
            "attention_multiplier": 0.015625,
            "logits_scaling": 3.0,
            "tie_word_embeddings": True,
        },
    ),
    "lfm2-350m": (
        "Lfm2",
        {
            "hidden_size": 1024,
            "intermediate_size": 6656,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        },
    ),
    "mamba2-130m": (
        "Mamba2",
        {
            "vocab_size": 50288,
            "hidden_size": 768,
            "num_hidden_layers": 24,
            "num_heads": 24,
            "n_groups": 1,
            "tie_word_embeddings": True,
        },
    ),
    "qwen3.5-0.8b": (
        "Qwen3_5",
        {
            "hidden_size": 1024,
            "intermediate_size": 3584,
            "num_hidden_layers": 24,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "linear_num_value_heads": 16,
            "tie_word_embeddings": True,
        },
    ),
}
TEXT_CONFIGS = {"Qwen3_5": "Qwen3_5Text"}
TAPS = {"GraniteMoeHybrid": 4, "Lfm2": 3, "Mamba2": 4, "Qwen3_5": 4}  # of the convolutions
CONTEXTS = (16, 8192)
STEPS, WARM_UP = 16, 3
VERIFIED = 8  # steps
THEIRS = Path(__file__).with_name("comparison") / "transformers_export.py"
HEAD = ["size", "parameters", "graph", "export, s", "peak memory", *(f"step after {n:,}, ms (limit)" for n in CONTEXTS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", help=f"of {', '.join(SIZES)}; all by default")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--limit", type=int, default=900, help="seconds that an export of transformers may take")
    arguments = parser.parse_args()
    print(machine())
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    for name in arguments.sizes or SIZES:
        with tempfile.TemporaryDirectory() as folder:
            rows(name, Path(folder), arguments.rounds, arguments.limit)


def rows(name: str, folder: Path, rounds: int, limit: int) -> None:
    """Measure and print the rows of one size."""
    count = write_folder(name, folder / "model")
    ours, small, theirs = folder / "ours.onnx", folder / "w4.onnx", folder / "theirs.onnx"
    costs: dict[str, tuple[float, int] | str] = {
        "t2r float32": whole("export", folder / "model", ours, "--prefill"),
        "t2r w4": whole("quantize", ours, small, "--scheme", "w4"),
        "t2r w4, own provider": " | ",
        "transformers float32": their_cost(folder / "model", theirs, limit),
    }
    whole("verify", folder / "model", ours, "--steps", VERIFIED)
    graphs: dict[str, Ours | Theirs] = {
        "t2r float32": Ours(ours),
        "t2r w4": Ours(small),
        "t2r w4, own provider": Ours(small, "t2r"),
    }
    if isinstance(costs["transformers float32"], tuple):
        graphs["transformers float32"] = Theirs(theirs, TAPS[SIZES[name][0]])
    found = {at: measured(graphs, at, rounds) for at in CONTEXTS}
    for graph, cost in costs.items():
        spent = cost if isinstance(cost, str) else f"{cost[0]:.0f} | {cost[1] / (4 * count):.1f} × weights"
        steps = " | ".join(step(graphs[graph], found[at][graph], at) if graph in graphs else "" for at in CONTEXTS)
        print(f"| {name} | {count / 1e6:.0f} M | {graph} | {spent} | {steps} |", flush=True)


def step(graph: Ours | Theirs, seconds: float, context: int) -> str:
    """The cell of a step, with its bandwidth limit."""
    limit = f" ({graph.bytes(context) / bytes_per_second() * 1e3:.1f})" if isinstance(graph, Ours) else ""
    return f"{seconds * 1e3:.1f}{limit}"


@lru_cache
def bytes_per_second() -> float:
    return bandwidth(len(os.sched_getaffinity(0))).bytes_per_second


def write_folder(name: str, folder: Path) -> int:
    """Write a folder of a model with random weights; returns the number of parameters."""
    model = random_model(name)
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def random_model(name: str) -> Any:
    """A model of transformers with random weights."""
    import torch
    import transformers

    family, changes = SIZES[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{TEXT_CONFIGS.get(family, family)}Config")(**changes)
    return getattr(transformers, f"{family}ForCausalLM")(config)


def whole(*arguments: Any) -> tuple[float, int]:
    """Seconds and peak bytes of a t2r command in its own process."""
    return run([*ARGUMENTS, "-m", "t2r_export", *map(str, arguments)])


def their_cost(folder: Path, out: Path, limit: int) -> tuple[float, int] | str:
    """Seconds and peak bytes of transformers' export, or why it failed."""
    command = [*ARGUMENTS, str(THEIRS), str(folder), str(out)]
    try:
        return run([shutil.which("timeout") or "timeout", str(limit), *command])
    except Exception as error:  # the export can fail in any way
        return f"none: {' '.join(str(error).split()[-3:])}, limit {limit} s | "


class Ours:
    """A t2r graph in t2r_runtime."""

    def __init__(self, path: Path, provider: str = "cpu") -> None:
        self._path = path
        self._decoder = Decoder(path, provider)

    def place(self, context: int) -> None:
        """Set states of a text of `context` tokens to random values, which do not affect speed."""
        draw = np.random.default_rng(0)
        states = {}
        for spec in self._decoder.signature.states:
            shape = spec.dims(1, context)
            integer = spec.dtype.startswith("int")  # of a position
            states[spec.name] = (np.full(shape, context) if integer else draw.normal(0, 0.1, shape)).astype(spec.dtype)
        self._decoder.set_state(states, context)

    def step(self, token: int) -> None:
        self._decoder.step(token)

    def bytes(self, context: int) -> int:
        """Bytes that a step reads and writes: weights and caches once, states of fixed size twice."""
        states = sum(spec.bytes(1, context) * (1 if spec.grows else 2) for spec in self._decoder.signature.states)
        return token_bytes(self._path).weights + states


class Theirs:
    """A decode graph of transformers in ONNX Runtime, its outputs fed back by name."""

    def __init__(self, path: Path, taps: int) -> None:
        import onnxruntime

        self._taps = taps  # width of a convolution's state, a free dimension of the graph
        self._session = onnxruntime.InferenceSession(path)
        self._outputs = [found.name for found in self._session.get_outputs()]

    def place(self, context: int) -> None:
        draw = np.random.default_rng(0)
        self._feeds: dict[str, Any] = {}
        for given in self._session.get_inputs():
            free = {"conv": self._taps, "mask": context + 1}
            length = next((n for part, n in free.items() if part in given.name), context)
            shape = [int(n) if str(n).isdigit() else length for n in given.shape]
            if "float" in given.type:
                self._feeds[given.name] = draw.normal(0, 0.1, shape).astype(np.float32)
            else:
                self._feeds[given.name] = np.ones(shape, np.int64)
        for name in self._feeds:
            if name.endswith(("input_ids", "position_ids")):
                self._feeds[name] = np.full((1, 1), context, np.int64)

    def step(self, token: int) -> None:
        found = dict(zip(self._outputs, self._session.run(None, self._feeds), strict=True))
        for name, value in found.items():
            before = name.replace("output.", "input.")
            if before != name and before in self._feeds:
                self._feeds[before] = value
        for name, value in self._feeds.items():
            if name.endswith("attention_mask"):
                self._feeds[name] = np.ones((1, value.shape[-1] + 1), np.int64)
            elif name.endswith("position_ids"):
                self._feeds[name] = value + 1


def measured(graphs: dict[str, Ours | Theirs], context: int, rounds: int) -> dict[str, float]:
    """Seconds per step of each graph, from `context` tokens on."""
    seconds: dict[str, list[float]] = {name: [] for name in graphs}
    for graph in graphs.values():
        graph.place(context)
    for name in turns(list(graphs), rounds):
        for token in range(WARM_UP + STEPS):
            start = time.perf_counter()
            graphs[name].step(5 + token)
            if token >= WARM_UP:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in seconds.items()}


if __name__ == "__main__":
    main()
