"""The form in which each provider takes a graph: what to export for it. How it is opened: t2r_runtime.PROVIDERS."""

from __future__ import annotations

from dataclasses import dataclass, replace

from t2r_export.config.export import ExportConfig
from t2r_export.config.model import EncoderConfig
from t2r_export.config.quantize import SCHEMES
from t2r_export.config.targets import find

SOURCE_LENGTH = 64  # tokens of every source, where all shapes are numbers


@dataclass(frozen=True)
class ProviderGraph:
    """What a provider wants."""

    config: ExportConfig
    growing: bool = True  # takes the growing cache of a softmax layer
    activation_bits: int = 8  # of int8-static
    schemes: tuple[str, ...] = ()  # that the parity suite runs there; docs/providers.md says why no others

    def config_of(self, encoder: EncoderConfig | None) -> ExportConfig:
        """What a model with that encoder is exported with: where all shapes are numbers, the length of its sources."""
        if encoder is None or not find(self.config.target).static:
            return self.config
        return replace(self.config, source_length=min(SOURCE_LENGTH, encoder.max_positions or SOURCE_LENGTH))


NPU = ProviderGraph(ExportConfig(batch=1, target="npu"), growing=False)
ALL = tuple(SCHEMES)

PROVIDER_GRAPHS = {
    "cpu": ProviderGraph(ExportConfig(), schemes=ALL),
    "cuda": ProviderGraph(ExportConfig(), schemes=("fp16", "w8", "w4")),  # by its list of operators: nobody has run it
    "openvino": ProviderGraph(ExportConfig(), growing=False, schemes=ALL),
    # w8 and w4 run there too (t2r verify MODEL), but on a Vulkan in software a step of them takes half a second
    "webgpu": ProviderGraph(ExportConfig()),
    "qnn": ProviderGraph(
        ExportConfig(batch=1, target="npu", float16_safe=True),
        growing=False,
        activation_bits=16,
        schemes=("fp16", "int8-static", "w8", "w4"),
    ),
    # its float16 Gemm (version 1.21) gives NaN from the second step on where a processor has AVX512-FP16
    "xnnpack": NPU,
    "dnnl": replace(NPU, schemes=("fp16", "int8", "int8-static")),
    "coreml": NPU,  # not run: a table look-up only, as for nnapi
    "nnapi": NPU,
}
