"""Export the graph that decodes one token with transformers, with the caches as inputs and outputs.

Arguments: a folder of transformers, and the .onnx to write.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.exporters.configs import OnnxConfig
from transformers.exporters.exporter_onnx import OnnxExporter
from transformers.exporters.utils import decompose_for_generation


def export(folder: Path, out: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.randint(3, 1000, (1, 12), generator=torch.Generator().manual_seed(0))
    stages = decompose_for_generation(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    step: tuple[Any, Any] = stages["decode"]
    with torch.no_grad():
        exported = OnnxExporter().export(*step, OnnxConfig(dynamic=True))
    OnnxExporter.save_program(exported.program, out)


if __name__ == "__main__":
    export(*map(Path, sys.argv[1:]))
