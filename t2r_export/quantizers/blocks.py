"""w8 and w4: the weights of the projections in blocks that share a scale (com.microsoft MatMulNBits).

Activations, states, norms and the feature maps of models that could not be folded stay float32. The head has 8 bits in
both unless told otherwise, and the embedding too: docs/quantization.md has what four bits cost there.
"""

from __future__ import annotations

import onnx

from t2r_export.quantizers.accelerators import is_for_accelerators, table_between_quantizers, three_axes
from t2r_export.quantizers.base import (
    Calibration,
    QuantizeConfig,
    gemm_to_matmul,
    head,
    own_table,
    projections,
    quantize_embedding,
)

BITS = {"w8": 8, "w4": 4}
HEAD_BITS = 8
BLOCK_SIZE = 32
ACCURACY_LEVEL = 4


def blocks(model: onnx.ModelProto, config: QuantizeConfig, _: Calibration | None = None) -> onnx.ModelProto:
    """`model` with the weights of its projections in blocks."""
    gemm_to_matmul(model)
    names, last = projections(model), head(model)
    bits_of = dict.fromkeys(names, BITS[config.scheme]) | {last: config.head_bits or HEAD_BITS}
    table = own_table(model).name
    if config.embedding_bits == 4:
        model = _block_wise(model, config, 4, [table], "Gather")
    else:
        quantize_embedding(model)
    for bits in sorted(set(bits_of.values())):
        model = _block_wise(model, config, bits, [name for name in names if bits_of[name] == bits], "MatMul")
    if is_for_accelerators(model):
        three_axes(model)
        if config.embedding_bits != 4:
            table_between_quantizers(model)
    return model


def _block_wise(
    model: onnx.ModelProto, config: QuantizeConfig, bits: int, names: list[str], operator: str
) -> onnx.ModelProto:
    """`model` with the weights of the nodes `names`, all of one operator, in blocks."""
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

    how = DefaultWeightOnlyQuantConfig(
        block_size=config.block_size or BLOCK_SIZE,
        is_symmetric=not config.asymmetric,
        accuracy_level=ACCURACY_LEVEL if config.accuracy_level is None else config.accuracy_level,
        op_types_to_quantize=(operator,),
        bits=bits,
    )
    others = [node.name for node in model.graph.node if node.name not in names]
    quantizer = MatMulNBitsQuantizer(model, nodes_to_exclude=others, algo_config=how)
    quantizer.process()
    result: onnx.ModelProto = quantizer.model.model
    return result
