"""Steps of exported windows, whose rows are read once a step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime_ep_t2r as plugin
import pytest
import torch

from t2r_export.checkpoints import checkpoint
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.export import ExportConfig
from t2r_export.config.mixers import HybridConfig, MixerConfig, WindowConfig
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.export import export
from t2r_export.model.transformer import Transformer
from t2r_runtime import Decoder

CONFIGS: dict[str, tuple[MixerConfig, ...]] = {
    "int8": (WindowConfig(7, sinks=4, cache_bits=8), WindowConfig(1, cache_bits=8), WindowConfig(18, cache_bits=8)),
    "float32": (WindowConfig(7, sinks=4), WindowConfig(1), WindowConfig(18)),
    "hybrid": (HybridConfig(6, feature_size=8, cache_bits=8), HybridConfig(5, feature_size=8)),
}


def exported(folder: Path, *layers: MixerConfig) -> Path:
    torch.manual_seed(3)
    heads = HeadsConfig(heads=6, kv_heads=2, head_size=10, positions=RotaryConfig())
    config = UniformConfig(
        vocab_size=71, width=30, ffn_size=22, layers=layers, max_positions=None, position="none", attention=heads
    )
    trained = Transformer(config.build())
    for parameter in trained.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    checkpoint.save(folder / "m.pt", trained, None, {"origin": "random weights"})
    export(checkpoint.load(folder / "m.pt"), folder / "g.onnx", ExportConfig())
    return folder / "g.onnx"


@pytest.mark.parametrize("name", CONFIGS)
def test_steps_of_exported_windows(name: str, tmp_path: Path) -> None:
    """Each step from the states that ONNX Runtime has. Numbers in the middle of two levels are rounded to either."""
    path, random = exported(tmp_path, *CONFIGS[name]), np.random.default_rng(1)
    theirs, ours = Decoder(path, threads=1), Decoder(path, "t2r", threads=2)
    for decoder in (theirs, ours):
        decoder.reset(2)
    for position in range(23):
        ours.set_state(theirs.state(), position)
        ids = random.integers(0, 71, 2)
        expected, found = theirs.step(ids), ours.step(ids)
        bound = 1e-4 if name == "float32" else 2e-2
        np.testing.assert_allclose(found, expected, rtol=0, atol=bound * float(np.abs(expected).max()))
        for state, numbers in theirs.state().items():
            apart = np.abs(ours.state()[state].astype(np.float64) - numbers.astype(np.float64))
            assert apart.max() <= (1 if numbers.dtype == np.int8 else bound * max(1, float(np.abs(numbers).max()))), (
                state
            )


@pytest.mark.parametrize(
    "layer, separate",
    [
        (WindowConfig(9, sinks=4, cache_bits=8), 66),
        (WindowConfig(9), 38),
        (HybridConfig(6, feature_size=8, cache_bits=8), 68),
    ],
)
def test_exported_windows_are_recognised(layer: MixerConfig, separate: int, tmp_path: Path) -> None:
    """The operations of a layer, of which so many would be separate: 19 fewer with 8 bits, else 9."""
    counts = []
    for layers in (2, 3):
        Decoder(exported(tmp_path, *[layer] * layers), "t2r", threads=1).step([1])
        counts.append(plugin.get_operations())
    assert counts[1] - counts[0] <= separate - 9, counts
