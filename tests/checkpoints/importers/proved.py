"""Measures the error of each imported family.

    python tests/checkpoints/importers/proved.py [--provider NAME] [FAMILY …]

Writes proved.json beside this file, from which .ci/proved_models.py generates a page of the site. Providers other than
the CPU are measured in the environment of their onnxruntime, as tox.ini sets it up.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
from dataclasses import replace
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[2]))

from checkpoints.importers import fla_models, recurrent_models, softmax_models
from families import Family, text
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.export import export
from t2r_export.files import write_bytes
from t2r_export.providers.graphs import NPU, PROVIDER_GRAPHS
from t2r_export.quantize import export_quantized
from t2r_export.verify import verify
from t2r_runtime import Decoder
from t2r_runtime.contract.state_spec import POSITION

Row = dict[str, Any]
KEPT = Path(__file__).with_name("proved.json")
LENGTHS, STEPS, CONTEXT = (1, 2, 63, 64, 65, 193), 40, 256
FEWER = {"webgpu": 8}  # steps, as one takes half a second on software Vulkan
VOCABULARY, BATCH = 31, 2
TARGETS, SCHEMES = ("portable", "fused"), ("w8", "w4")
PROVIDERS = ("npu", "openvino", "webgpu")  # npu: the target of that name, on the CPU
SETTINGS = {"lengths": LENGTHS, "steps": STEPS, "context": CONTEXT, "fewer": FEWER}  # the page names them
CRASHES = {  # an RMS norm over rows of fewer than 16 numbers may end the process with a signal
    "openvino": (
        "nanochat",
        "gemma3 capped",
        "lfm2",
        "lfm2 biases",
        "qwen3.5",
        "qwen3.5 biases, tied",
        "olmo-hybrid",
        "olmoe",
        "mamba",
        "mamba tied",
        "falcon-mamba",
        "jamba",
    )
}
GPT2 = {"vocab_size": 31, "n_embd": 12, "n_layer": 3, "n_head": 3, "n_inner": 17, "n_positions": 200}
WINDOWS = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
SPREADS = dict.fromkeys(
    ("Gemma", "Gemma2", "Gemma3", "Nemotron", "Olmo"), 0.15
)  # else float32 rounding alone moves logits by 1e-5
FAMILIES: dict[str, Family | fla_models.Model] = {
    "gpt2": Family("GPT2", GPT2),
    "llama": Family("Llama", {**softmax_models.GQA, "head_dim": 10}),
    "qwen2": Family("Qwen2", {**softmax_models.GQA, **WINDOWS}),
    "qwen3": Family("Qwen3", {**softmax_models.GQA, "head_dim": 10}),
    "mistral": Family("Mistral", {**softmax_models.GQA, "sliding_window": 5}),
    **{name: replace(one, spread=SPREADS.get(one.name, one.spread)) for name, one in softmax_models.FAMILIES.items()},
    **{name + " hybrid" * (name in softmax_models.FAMILIES): one for name, one in recurrent_models.FAMILIES.items()},
    **fla_models.MODELS,
}


def measured(family: Family | fla_models.Model, folder: Path, provider: str) -> Row:
    """Measures the columns of a family on the provider."""
    theirs, ours = family.imported(folder)
    if provider != "cpu":
        return {provider: on_provider(ours, folder / "provider.onnx", provider)}
    found = from_full_forward(theirs, ours, folder)
    for scheme in SCHEMES:
        export_quantized(ours, folder / "q.onnx", ExportConfig(), QuantizeConfig(scheme=scheme))
        found[scheme] = chained(ours, folder / "q.onnx", "cpu")
    states = [spec for spec in ours.model.state_spec() if spec.name != POSITION]
    found["state"] = sum(4 * int(np.prod(spec.dims(1, 1))) for spec in states)
    found["grows"] = any(spec.dims(1, 2) != spec.dims(1, 1) for spec in states)
    return found


def from_full_forward(theirs: Any, ours: Checkpoint, folder: Path) -> Row:
    """Worst logit differences from transformers: of the eager model, of prompts and of steps."""
    errors: Row = {}
    for target in TARGETS:
        export(ours, folder / f"{target}.onnx", ExportConfig(prefill=True, target=target))
    most = theirs.config.max_position_embeddings if "max_position_embeddings" in theirs.config else max(LENGTHS)
    for length in sorted({min(length, most) for length in LENGTHS}):
        ids = text(length, VOCABULARY, BATCH)
        with torch.no_grad():
            expected = theirs(ids, use_cache=False, return_dict=True).logits.numpy()
            differences = [("eager", ours.model(ids).numpy() - expected)]
        for target in TARGETS:
            decoder = Decoder(folder / f"{target}.onnx", threads=1)
            decoder.reset(BATCH)
            differences.append(("prompt", decoder.prefill(ids.numpy()) - expected[:, -1]))
            decoder.reset(BATCH)
            steps = [decoder.step(column) for column in ids.T.numpy()]
            differences.append(("step", np.stack(steps, axis=1) - expected))
        for use, difference in differences:
            errors[use] = max(errors.get(use, 0.0), float(np.abs(difference).max()))
    return errors


def on_provider(ours: Checkpoint, path: Path, provider: str) -> float:
    """Worst logit difference on a provider. Raises AssertionError: a loop or a Scatter for an NPU."""
    graph = NPU if provider == "npu" else PROVIDER_GRAPHS[provider]
    grows = any(spec.dims(1, 2) != spec.dims(1, 1) for spec in ours.model.state_spec())
    config = graph.config_of(ours.config.encoder)
    export(ours, path, config if graph.growing or not grows else _bounded(config))
    if provider == "npu":
        kinds = {node.op_type for node in onnx.load(path, load_external_data=False).graph.node}
        assert not kinds & {"Scan", "Loop", "If", "Scatter", "ScatterElements", "ScatterND"}, kinds
        provider = "cpu"
    return chained(ours, path, provider)


def _bounded(config: ExportConfig) -> ExportConfig:
    return ExportConfig(**{**vars(config), "context": str(CONTEXT)})


def chained(ours: Checkpoint, path: Path, provider: str) -> float:
    """Worst logit difference over chained steps. Raises AssertionError: above the tolerance of `t2r verify`."""
    checks = verify(ours, path, provider=provider, steps=FEWER.get(provider, STEPS)).checks
    logits = next(check for check in checks if check.name.endswith("logits"))
    assert logits.passed, logits
    return logits.worst


def versions(provider: str) -> str:
    """A line of the page: date and package versions of a provider's measurement."""
    found = {"torch": torch.__version__, "transformers": transformers.__version__, "onnxruntime": ort.__version__}
    for package in (f"onnxruntime-{provider}", f"onnxruntime-ep-{provider}"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return f"{provider}: {date.today()}, " + ", ".join(f"{name} {version}" for name, version in found.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", default="cpu", choices=("cpu", *PROVIDERS))
    parser.add_argument("families", nargs="*", default=list(FAMILIES))
    options = parser.parse_args()
    kept: Row = json.loads(KEPT.read_text()) if KEPT.exists() else {"made": {}, "models": {}}
    kept["settings"] = SETTINGS
    for name in options.families:
        family = FAMILIES[name]
        if name in CRASHES.get(options.provider, ()):
            row: Row = {options.provider: None}
        else:
            with tempfile.TemporaryDirectory() as folder:
                row = measured(family, Path(folder), options.provider)
        kept["models"][name] = {**kept["models"].get(name, {}), "class": family.name, **row}
        print(name, row, flush=True)
        kept["made"][options.provider] = versions(options.provider)
        kept["models"] = {name: kept["models"][name] for name in FAMILIES if name in kept["models"]}
        write_bytes(KEPT, (json.dumps(kept, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
