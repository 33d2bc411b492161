"""Step time of one model in every target, on the CPU: `python benchmarks/targets.py`.

Random weights (12 layers, width 384, 6 heads on 2, K 32), batch 1, one thread. The targets take turns, in random order,
two steps at a time after one that is thrown away; the ratio is the median over rounds of a target's time against
portable's of the same round. Portable runs twice: how far its second ratio is from 1 is the noise.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from t2r_export.checkpoint import Checkpoint
from t2r_export.config import LinearConfig, ModelConfig, RotaryConfig
from t2r_export.export import ExportConfig, export
from t2r_export.model import Transformer
from t2r_runtime import Decoder

ROUNDS = 100
CONFIG = ModelConfig(
    vocab_size=4096,
    width=384,
    heads=6,
    kv_heads=2,
    head_size=64,
    ffn_size=1024,
    layers=(LinearConfig(feature_size=32, positions="drop"),) * 12,
    norm="rms",
    activation="silu",
    gated_ffn=True,
    position="rotary",
    rotary=RotaryConfig(),
    qkv_bias=False,
    output_bias=False,
    ffn_bias=False,
)


def main() -> None:
    os.environ["ALLOW_RELEASED_ONNX_OPSET_ONLY"] = "0"  # for the target standard
    torch.manual_seed(0)
    model = Transformer(CONFIG).eval()
    checkpoint = Checkpoint(CONFIG, model, None, {}, "0" * 64)
    graphs = {"portable": "portable", "again": "portable", "fused": "fused", "standard": "standard", "npu": "npu"}
    with tempfile.TemporaryDirectory() as folder:
        decoders = {}
        for name, target in graphs.items():
            export(checkpoint, Path(folder, f"{name}.onnx"), ExportConfig(batch=1, target=target))
            decoders[name] = Decoder(Path(folder, f"{name}.onnx"), threads=1)
    times: dict[str, list[float]] = {name: [] for name in graphs}
    token = np.array([7])
    for _ in range(ROUNDS):
        for name in random.sample(list(graphs), len(graphs)):
            decoders[name].step(token)
            start = time.perf_counter()
            decoders[name].step(token)
            decoders[name].step(token)
            times[name].append((time.perf_counter() - start) / 2 * 1e3)
    for name, values in times.items():
        ratios = [value / base for value, base in zip(values, times["portable"], strict=True)]
        print(f"{name:9} median {statistics.median(values):6.2f} ms, ratio {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
