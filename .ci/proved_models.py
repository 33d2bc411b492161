"""Prints the measured errors of every imported family: `python .ci/proved_models.py`.

The measurements are those of tests/checkpoints/importers/proved.json, which proved.py beside it writes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parents[1] / "tests" / "checkpoints" / "importers" / "proved.json"
PROVIDERS = ("npu", "openvino", "webgpu")
HEAD = """# Measured errors of families

The errors of a model of every imported family. The models are small and random, in float32, and all sizes differ.
transformers saves each one to a folder, which this project imports. A number is the largest difference of a logit.

- **eager, prompt, step**: compared with transformers' full forward pass without a cache, over two texts of {lengths}
  tokens (as many as the model has positions for). eager: every logit of the imported PyTorch model; prompt: the logits
  after prefill; step: the logits after each step of the step graph. For prompt and step, the worse of the targets
  `portable` and `fused`.
- **w8, w4**: a graph with quantized weights compared with the imported model, over {steps} chained steps from random
  states. A random model's logits have a standard deviation near 1.
- **{providers}**: a graph on that provider compared with the imported model, over {steps} chained steps from
  random states ({fewer}), with `--context {context}` where a cache would grow and the provider does not support it. A
  dash means not run. npu is the target of that name on the CPU: fixed sizes, no loop, no Scatter. webgpu ran on a
  software Vulkan, which takes ten seconds of a core per graph, so only some models were run. Crashes: OpenVINO ends the
  process at RMS norms over rows of a few numbers, which these small models have ([providers](../providers.md)).
- **state**: bytes of state of a text after its first token; + where the state grows from there.

transformers has no class for the families of flash-linear-attention: rows of class NumPy are compared with
definitions in NumPy, in float64 (`tests/checkpoints/importers/fla_models.py`). Nor does it have RWKV-7:
`tests/checkpoints/importers/test_rwkv7.py` compares it with a definition in NumPy.

Measured by `python tests/checkpoints/importers/proved.py`, and with `--provider NAME` in that provider's environment of
tox.ini.

{versions}

"""


def page(kept: Mapping[str, Any]) -> str:
    """The page of all measurements, in Markdown."""
    providers = [name for name in PROVIDERS if name in kept["made"]]
    columns = ["eager", "prompt", "step", "w8", "w4", *providers]
    lines = ["| model | class | " + " | ".join([*columns, "state"]) + " |", "|---|---|" + "---|" * (len(columns) + 1)]
    for name, row in kept["models"].items():
        cells = ["-" if column not in row else _cell(row[column]) for column in columns]
        state = f"{row['state']:,}{' +' if row['grows'] else ''}"
        lines.append(f"| {name} | `{row['class']}` | {' | '.join(cells)} | {state} |")
    settings = kept["settings"]
    head = HEAD.format(
        lengths=", ".join(map(str, settings["lengths"])),
        steps=settings["steps"],
        context=settings["context"],
        providers=", ".join(providers),
        fewer=", ".join(f"{name}: {steps}" for name, steps in settings["fewer"].items()),
        versions="  \n".join(kept["made"].values()),
    )
    return head + "\n".join(lines) + "\n"


def _cell(value: float | None) -> str:
    return "crashes" if value is None else f"{value:.0e}"


if __name__ == "__main__":
    sys.stdout.write(page(json.loads(KEPT.read_text(encoding="utf-8"))))
