"""The form in which each provider takes a graph: what to export for it. How it is opened: t2r_runtime.PROVIDERS."""

from __future__ import annotations

from dataclasses import dataclass

from t2r_export.export import ExportConfig


@dataclass(frozen=True)
class ProviderGraph:
    """What a provider wants."""

    config: ExportConfig
    growing: bool = True  # takes the growing cache of a softmax layer
    activation_bits: int = 8  # of int8-static


NPU = ProviderGraph(ExportConfig(batch=1, target="npu"), growing=False)

PROVIDER_GRAPHS = {
    "cpu": ProviderGraph(ExportConfig()),
    "cuda": ProviderGraph(ExportConfig()),
    "openvino": ProviderGraph(ExportConfig(), growing=False),
    "webgpu": ProviderGraph(ExportConfig()),
    "qnn": ProviderGraph(ExportConfig(batch=1, float16_safe=True), growing=False, activation_bits=16),
    "xnnpack": NPU,
    "dnnl": NPU,
    "coreml": NPU,  # not run: a table look-up only, as for nnapi
    "nnapi": NPU,
}
