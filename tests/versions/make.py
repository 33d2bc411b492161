"""Write files of the current version, which later versions must open: python tests/versions/make.py

Run it once for a version, before it is released, and never again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1])]

import small  # noqa: E402
from t2r_export.checkpoints import checkpoint  # noqa: E402
from t2r_export.config.quantize import QuantizeConfig  # noqa: E402
from t2r_export.export import export  # noqa: E402
from t2r_export.quantize import quantize  # noqa: E402
from t2r_export.version import __version__  # noqa: E402
from t2r_runtime import Decoder  # noqa: E402

MODELS = ("hybrid_gated", "gated_delta", "softmax")
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


def _read(graph: Path) -> dict[str, Any]:
    """Logits after the prompt, and after a state that is saved with its next token."""
    decoder = Decoder(graph)
    prompt = decoder.prefill(PROMPT)
    decoder.save_state(graph.with_suffix(".state"), NEXT)
    after = [decoder.step([token]) for token in (NEXT, *AFTER)]
    return {"prompt": np.round(prompt, 5).tolist(), "after": np.round(after, 5).tolist()}


if __name__ == "__main__":
    main()
