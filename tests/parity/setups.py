"""What the suite asks of each provider: the kinds of graphs that it takes, and the Python that it runs in."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from t2r_export.export import ExportConfig
from t2r_export.provider_graphs import PROVIDER_GRAPHS, ProviderGraph
from t2r_export.remote import RemoteDecoder
from t2r_runtime import PROVIDERS, Decoder

GRAPHS = {
    "layers": ExportConfig(),
    "packed": ExportConfig(state_layout="packed"),
    "batch_3": ExportConfig(batch=3),
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
    python: str | None = None  # variable with the command of another Python that has the provider


SETUPS = {
    "cpu": Setup(("layers", "packed", "batch_3")),
    "cuda": Setup(("layers", "packed", "batch_3")),
    "openvino": Setup(("layers", "packed", "batch_3")),
    # on a software Vulkan a step takes some 40 ms
    "webgpu": Setup(("layers",), few=("packed", "batch_3")),
    "qnn": Setup(("float16_safe",), few=("fixed", "fixed_packed", "batch_3")),
    "xnnpack": Setup(("npu",), few=("npu_batch_3",), python="T2R_DEBIAN_PYTHON"),
    "dnnl": Setup(("npu",), python="T2R_DEBIAN_PYTHON"),
}
PROVIDER = os.environ.get("T2R_PROVIDER", "cpu")
SETUP = SETUPS[PROVIDER]
WANTED: ProviderGraph = PROVIDER_GRAPHS[PROVIDER]  # for models that are tested in one kind of graph
assert GRAPHS[SETUP.graphs[0]] == WANTED.config


def opened(path: Path) -> Decoder:
    """The graph on the provider at hand, some of its nodes at least; all of them, unless no graph is taken whole."""
    partial = PROVIDERS[PROVIDER].partial
    if SETUP.python is None:
        decoder = Decoder(path, PROVIDER, allow_fallback=partial)
    else:
        decoder = cast(Decoder, RemoteDecoder(os.environ[SETUP.python], path, PROVIDER, allow_fallback=partial))
    assert decoder.placement.get(PROVIDER, 0) > 0, decoder.placement
    assert partial or decoder.placement.keys() == {PROVIDER}
    return decoder
