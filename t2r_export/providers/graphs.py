"""Export options per execution provider. How providers are opened: t2r_runtime.PROVIDERS."""

from __future__ import annotations

from dataclasses import dataclass, replace

from t2r_export.config.export import ExportConfig
from t2r_export.config.model import EncoderConfig
from t2r_export.config.quantize import SCHEMES
from t2r_export.config.targets import find

SOURCE_LENGTH = 64  # source tokens of graphs with static shapes


@dataclass(frozen=True)
class ProviderGraph:
    """How to export for a provider."""

    config: ExportConfig
    growing: bool = True  # supports the growing cache of softmax layers
    activation_bits: int = 8  # of int8-static
    schemes: tuple[str, ...] = ()  # covered by the parity suite; docs/providers.md explains the others

    def config_of(self, encoder: EncoderConfig | None) -> ExportConfig:
        """Export options of a model with that encoder: static shapes need a source length."""
        if encoder is None or not find(self.config.target).static:
            return self.config
        return replace(self.config, source_length=min(SOURCE_LENGTH, encoder.max_positions or SOURCE_LENGTH))


NPU = ProviderGraph(ExportConfig(batch=1, target="npu"), growing=False)
ALL = tuple(name for name, each in SCHEMES.items() if not each.keeps)  # keep has the nodes of w4

PROVIDER_GRAPHS = {
    "cpu": ProviderGraph(ExportConfig(), schemes=ALL),
    "t2r": ProviderGraph(ExportConfig(), schemes=("w8", "w4")),
    "cuda": ProviderGraph(ExportConfig(), schemes=("fp16", "w8", "w4")),
    "openvino": ProviderGraph(ExportConfig(), growing=False, schemes=ALL),
    # w8 and w4 run too, but a step takes half a second on a software Vulkan
    "webgpu": ProviderGraph(ExportConfig()),
    "qnn": ProviderGraph(
        ExportConfig(batch=1, target="npu", float16_safe=True),
        growing=False,
        activation_bits=16,
        schemes=("fp16", "int8-static", "w8", "w4"),
    ),
    # its float16 Gemm (version 1.21) gives NaN from the second step on, on processors with AVX512-FP16
    "xnnpack": NPU,
    "dnnl": replace(NPU, schemes=("fp16", "int8", "int8-static")),
    "coreml": NPU,  # not run; based on its list of operators, like nnapi
    "nnapi": NPU,
}
