"""Write files of the current version, which later versions must open: python tests/versions/make.py

Run it once for a version, before it is released, and never again.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path[:0] = [str(Path(__file__).parents[1])]

import small  # noqa: E402
from t2r_export.checkpoints import checkpoint  # noqa: E402
from t2r_export.config.mixers import LinearConfig  # noqa: E402
from t2r_export.config.quantize import QuantizeConfig  # noqa: E402
from t2r_export.convert import convert  # noqa: E402
from t2r_export.export import export  # noqa: E402
from t2r_export.quantize import quantize  # noqa: E402
from t2r_export.version import __version__  # noqa: E402
from t2r_runtime import Decoder  # noqa: E402

MODELS = ("hybrid_gated", "gated_delta", "softmax")
HEADER = Path(__file__).parents[2] / "runtimes" / "cpp" / "include" / "t2r.h"
BASE = "softmax.pt"  # of the adapter
PROMPT, NEXT, AFTER = [1, 5, 3, 16, 7, 7, 2, 9], 4, [11, 6, 8]


def main() -> None:
    folder = Path(__file__).with_name(__version__)
    folder.mkdir()
    for name in MODELS:
        made = small.checkpoint(name)
        saved = folder / f"{name}.pt"
        checkpoint.save(saved, made.model, made.tokenizer, {"origin": {"name": name}})
        graph = folder / f"{name}.onnx"
        export(checkpoint.load(saved), graph)
        quantized = folder / f"{name}-w8.onnx"
        quantize(graph, quantized, QuantizeConfig(scheme="w8"))
        found = {each.stem: _read(each) for each in (graph, quantized)}
        (folder / f"{name}.json").write_text(json.dumps(found) + "\n")
    _adapter(folder)
    shutil.copy(HEADER, folder)


def _adapter(folder: Path) -> None:
    """A student of BASE with new maps, a change of rank 1, one of full rank, and a changed vector; and its logits."""
    base = checkpoint.load(folder / BASE)
    student = convert(base.model, LinearConfig(feature_size=3), seed=7)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        lower, full = (student.get_parameter(f"blocks.{n}.parts.0.o.weight") for n in (0, 1))
        lower += torch.outer(*(torch.randn(size, generator=generator) / 4 for size in lower.shape))
        full += torch.randn(full.shape, generator=generator) / 8
        student.norm.weight *= 1.25
    made = dataclasses.replace(base, config=student.config, model=student)
    written = checkpoint.save_adapter(folder / "student.adapter", made, base)
    assert written.low_rank and written.full_rank
    with tempfile.TemporaryDirectory() as scratch:
        graph = Path(scratch, "student.onnx")
        export(checkpoint.load(folder / "student.adapter", base=folder / BASE), graph)
        (folder / "student.json").write_text(json.dumps({"student": _read(graph)}) + "\n")


def _read(graph: Path) -> dict[str, Any]:
    """Logits after the prompt, and after a state that is saved with its next token."""
    decoder = Decoder(graph)
    prompt = decoder.prefill(PROMPT)
    decoder.save_state(graph.with_suffix(".state"), NEXT)
    after = [decoder.step([token]) for token in (NEXT, *AFTER)]
    return {"prompt": np.round(prompt, 5).tolist(), "after": np.round(after, 5).tolist()}


if __name__ == "__main__":
    main()
