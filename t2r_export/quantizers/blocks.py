"""w8 and w4: the weights of the projections in blocks that share a scale (com.microsoft MatMulNBits).

Activations, states, norms and the feature maps of models that could not be folded stay float32. The head has 8 bits in
both, and the embedding too: on stories260K a head of 4 bits costs half as much again as all other weights together.
"""

from __future__ import annotations

import onnx

from t2r_export.quantizers.base import (
    Calibration,
    QuantizeConfig,
    gemm_to_matmul,
    head,
    projections,
    quantize_embedding,
)

BITS = {"w8": 8, "w4": 4}
HEAD_BITS = {"w8": 8, "w4": 8}
BLOCK_SIZE = {"w8": 32, "w4": 32}
ACCURACY_LEVEL = 4


def blocks(model: onnx.ModelProto, config: QuantizeConfig, _: Calibration | None = None) -> onnx.ModelProto:
    """`model` with the weights of its projections in blocks."""
    gemm_to_matmul(model)
    quantize_embedding(model)
    names, last = projections(model), head(model)
    for bits in sorted({BITS[config.scheme], HEAD_BITS[config.scheme]}):
        chosen = [n for n in names if bits == (HEAD_BITS if n == last else BITS)[config.scheme]]
        model = _block_wise(model, config, bits, chosen)
    return model


def _block_wise(model: onnx.ModelProto, config: QuantizeConfig, bits: int, names: list[str]) -> onnx.ModelProto:
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

    level = ACCURACY_LEVEL if config.accuracy_level is None else config.accuracy_level
    how = DefaultWeightOnlyQuantConfig(
        block_size=config.block_size or BLOCK_SIZE[config.scheme], is_symmetric=True, accuracy_level=level, bits=bits
    )
    others = [node.name for node in model.graph.node if node.name not in names]
    quantizer = MatMulNBitsQuantizer(model, nodes_to_exclude=others, algo_config=how)
    quantizer.process()
    result: onnx.ModelProto = quantizer.model.model
    return result
