"""Settings of the suite for each provider: the kinds of graphs that it takes, and the Python that it runs in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import margins
import small
from comparison.remote import Remote
from t2r_export.config.export import ExportConfig
from t2r_export.config.model import ModelConfig
from t2r_export.providers.graphs import PROVIDER_GRAPHS, ProviderGraph
from t2r_runtime import PROVIDERS, Decoder, Translator

GRAPHS = {
    "layers": ExportConfig(),
    "packed": ExportConfig(state_layout="packed"),
    "batch_3": ExportConfig(batch=3),
    "fused": ExportConfig(target="fused"),
    "companions": ExportConfig(prefill=True, draft_check=True),
    "fixed": ExportConfig(batch=1),
    "fixed_packed": ExportConfig(batch=2, state_layout="packed"),
    "float16_safe": ExportConfig(batch=1, target="npu", float16_safe=True),
    "npu": ExportConfig(batch=1, target="npu"),
    "npu_batch_3": ExportConfig(batch=3, target="npu"),
}


@dataclass(frozen=True)
class Setup:
    """One provider's part of the suite."""

    graphs: tuple[str, ...]  # kinds that every model is exported to
    few: tuple[str, ...] = ()  # kinds for a Transformer with a learned table and one with rotary positions
    steps: int = 256  # chained steps of each graph; four times as many for a trained model
    mixer_steps: int = 256 if margins.FILE else 64  # and of each mixer
    texts: Mapping[str, int] = field(default_factory=dict)  # constants of t2r_export.proof.checks
    cannot: Mapping[str, str] = field(default_factory=dict)  # mixers that it refuses or gets wrong, and why
    python: str | None = None  # variable with the command of another Python that has the provider


EIGHT_BITS = ("window_8_bits", "hybrid_8_bits")
WEBGPU = {
    **dict.fromkeys((*EIGHT_BITS, "softmax_8_bits"), "it has no kernels for int8"),
    "rfa": "the software Vulkan's Sin and Cos are not exact: states 1.9e-4 off",
    **dict.fromkeys(("product_keys", "mixed"), "the places that TopK finds are int64, for which it has no kernels"),
    "alibi_kinds": "the length of a growing cache is int64, which it has no kernel to cast",
}
# norms over the width reduce [1, D], where all axes and the last one are the same
REDUCES_ALL = "version 1.21 reduces over all axes, whatever ReduceMean and ReduceMax are told"
DNNL = dict.fromkeys(
    ("dpfp", "rfa", "favor", "head_norms", "delta_wide", "gated_delta_wide", "hybrid_sum", "hybrid_gated", "pair")
    + ("product_keys", "mixed", "rwkv7", "kda", "retention"),
    REDUCES_ALL,
)
DNNL |= dict.fromkeys(EIGHT_BITS, "it has no primitive for Concat of int8")
QNN = dict.fromkeys(EIGHT_BITS, "it has no kernels for Cast, Slice and Concat of int8")
# an encoder's norms reduce [M, D]
DNNL |= {name: REDUCES_ALL for name in small.MODELS if name.startswith("translator_")}
# Token counts for slow providers, beside chained steps. More tokens test the eager model's parallel form behind a
# chunk's end, which cpu, cuda and openvino compare.
SHORT = {"PARALLEL_TOKENS": 9, "BATCH_TOKENS": 4, "START_TEXTS": 4}
SETUPS = {
    "cpu": Setup(("layers", "packed", "batch_3"), few=("companions",)),
    "t2r": Setup(("layers", "packed", "batch_3"), few=("companions",)),
    "cuda": Setup(("layers", "packed", "batch_3", "fused"), few=("companions",)),
    "openvino": Setup(("layers", "packed", "batch_3"), few=("companions",), mixer_steps=64),
    # a software Vulkan compiles shaders for seconds, and a step takes some 40 ms
    "webgpu": Setup(("layers",), few=("packed", "batch_3"), steps=64, mixer_steps=16, texts=SHORT, cannot=WEBGPU),
    # the simulator of an accelerator takes minutes for what the others do in seconds
    "qnn": Setup(
        ("float16_safe",), few=("fixed", "fixed_packed", "batch_3"), steps=32, mixer_steps=16, texts=SHORT, cannot=QNN
    ),
    "xnnpack": Setup(("npu",), few=("npu_batch_3",), mixer_steps=64, texts=SHORT, python="T2R_DEBIAN_PYTHON"),
    "dnnl": Setup(("npu",), steps=128, mixer_steps=64, texts=SHORT, cannot=DNNL, python="T2R_DEBIAN_PYTHON"),
}
PROVIDER = os.environ.get("T2R_PROVIDER", "cpu")
SETUP = SETUPS[PROVIDER]
WANTED: ProviderGraph = PROVIDER_GRAPHS[PROVIDER]  # for models that are tested in one kind of graph
assert GRAPHS[SETUP.graphs[0]] == WANTED.config


def core() -> int:
    """The core for another Python: each pytest worker has its own, and the order starts differently per provider.

    oneDNN starts a thread per core despite all settings, and its threads busy-wait for each other.
    """
    cores, worker = sorted(os.sched_getaffinity(0)), os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    return cores[(list(SETUPS).index(PROVIDER) + int(worker.removeprefix("gw"))) % len(cores)]


def wanted(config: ModelConfig, **changes: Any) -> ExportConfig:
    """Export options for a model that is tested in one kind of graph."""
    return replace(WANTED.config_of(config.encoder), **changes)


def reader(path: Path) -> Translator | Remote:
    """A translator on the current provider."""
    partial = PROVIDERS[PROVIDER].partial
    if SETUP.python is None:
        return Translator(path, PROVIDER, allow_fallback=partial)
    return Remote(Translator, command(SETUP.python), path, PROVIDER, allow_fallback=partial)


def command(variable: str) -> str:
    """The command of the Python that the variable names, on one core."""
    return f"taskset -c {core()} {os.environ[variable]}"


def opened(path: Path) -> Decoder | Remote:
    """A decoder on the provider, which takes some nodes at least; all of them, unless it takes no graph whole."""
    partial = PROVIDERS[PROVIDER].partial
    decoder: Decoder | Remote
    if SETUP.python is None:
        decoder = Decoder(path, PROVIDER, allow_fallback=partial)
    else:
        decoder = Remote(Decoder, command(SETUP.python), path, PROVIDER, allow_fallback=partial)
    assert decoder.placement.get(PROVIDER, 0) > 0, decoder.placement
    provider = PROVIDERS[PROVIDER]
    spared = bool(provider.shapes) or decoder.signature.source is not None and bool(provider.elsewhere)
    assert partial or spared or decoder.placement.keys() == {PROVIDER}
    return decoder
