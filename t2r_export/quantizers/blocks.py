"""w8 and w4: block-wise quantized weights of projections (com.microsoft MatMulNBits).

Activations, states, norms and unfolded feature maps stay float32. Head and embedding have 8 bits by default; see
docs/quantization.md for the loss with 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper
from onnxruntime.capi import _pybind_state as runtime

from t2r_export.config.quantize import ACCURACY_LEVEL, BLOCK_BITS, QuantizeConfig, scheme
from t2r_export.graph.nodes import set_nodes
from t2r_export.graph.weights import Weight, fill, refer, values
from t2r_export.quantizers.base import (
    Calibration,
    head,
    initializers,
    projections,
    replace_initializers,
    replace_node,
    single_node_model,
)
from t2r_export.quantizers.tables import has_table, quantize_embedding, row_of_blocks, table_of, untie_embedding

HEAD_BITS = 8
BLOCK_SIZE = 32
NUMBERS = 1 << 20  # values of a matrix rounded at a time
MICROSOFT = "com.microsoft"


def blocks(
    model: onnx.ModelProto, config: QuantizeConfig, _: Calibration | None, weights: dict[str, Weight]
) -> onnx.ModelProto:
    """Quantize the projections and the embedding table of `model`.

    Args:
        weights: values that initializers refer to. Quantized weights are added under their names in the graph;
            existing ones are reused.
    """
    _block_wise_projections(model, config, block_sizes(model, config), weights)
    if not has_table(model):
        return model
    of_head = _parts_of_head(table_of(model).input[0], config, weights) if config.embedding_bits is None else None
    if of_head is not None:
        row_of_blocks(model, *of_head, weights)
    elif config.embedding_bits == 4:
        _block_wise_table(model, config, weights)
    else:
        quantize_embedding(model, weights)
    return model


def block_sizes(model: onnx.ModelProto, config: QuantizeConfig) -> dict[str, tuple[int, int]]:
    """Bits and block size of each projection, by node name."""
    size, last, names = config.block_size or BLOCK_SIZE, head(model), set(projections(model))
    weights = {node.name: node.input[1] for node in model.graph.node if node.name in names}
    bits = {last: config.head_bits or HEAD_BITS}
    usual = scheme(config.scheme).bits
    return {name: config.choices.get(weight, (bits.get(name, usual), size)) for name, weight in weights.items()}


def _parts_of_head(table: str, config: QuantizeConfig, weights: Mapping[str, Weight]) -> tuple[list[str], int] | None:
    """Names and bits of the quantized head that shares the table's weight, in this graph or an earlier one."""
    for bits in BLOCK_BITS:
        parts = parts_of(f"{table}.transposed", bits, config)
        if weights.keys() >= set(parts):
            return parts, bits
    return None


def _block_wise_projections(
    model: onnx.ModelProto, config: QuantizeConfig, sizes: Mapping[str, tuple[int, int]], weights: dict[str, Weight]
) -> None:
    """Replace each projection by a MatMulNBits and an Add of the bias. Args: sizes: as `block_sizes` returns them."""
    kept, nodes = initializers(model), []
    for node in model.graph.node:
        if node.name not in sizes:
            nodes.append(node)
            continue
        x, name, *bias = node.input
        matrix, (bits, size) = values(kept[name], weights), sizes[node.name]
        level = 0 if name in config.float_products else accuracy_level(config)
        if node.op_type == "Gemm":  # (out, in), where a MatMul has (in, out)
            matrix = matrix.T
        parts = parts_of(stored_name(node), bits, config)
        if not weights.keys() >= set(parts):
            arrays = in_blocks(matrix, bits, size, config.asymmetric)
            weights |= zip(parts, arrays, strict=True)
        kept |= {part: refer(part, weights[part]) for part in parts}
        product = f"{node.name}.product" if bias else node.output[0]
        made = helper.make_node("MatMulNBits", [x, *parts], [product], f"{node.name}_Q{bits}", domain=MICROSOFT)
        made.attribute.extend(_attributes(matrix, bits, size, level))
        nodes.append(made)
        if bias:
            nodes.append(helper.make_node("Add", [product, *bias], node.output, f"{node.name}.add"))
    set_nodes(model.graph, nodes)
    replace_initializers(model, kept)
    import_microsoft(model)


def import_microsoft(model: onnx.ModelProto) -> None:
    """Declare ONNX Runtime's operators."""
    if MICROSOFT not in {opset.domain for opset in model.opset_import}:
        model.opset_import.append(helper.make_opsetid(MICROSOFT, 1))


def stored_name(node: onnx.NodeProto) -> str:
    """The name of a projection's weight as (in, out)."""
    return f"{node.input[1]}.transposed" if node.op_type == "Gemm" else str(node.input[1])


def parts_of(name: str, bits: int, config: QuantizeConfig) -> list[str]:
    """Names of the values, scales and zero points of a weight."""
    return [f"{name}_Q{bits}", f"{name}_scales", *([f"{name}_zero_points"] if config.asymmetric else [])]


def _attributes(matrix: np.ndarray, bits: int, size: int, level: int) -> list[onnx.AttributeProto]:
    sizes = {"K": matrix.shape[0], "N": matrix.shape[1], "bits": bits, "block_size": size}
    if level:  # 0 is the operator's default, which some providers require to be absent
        sizes["accuracy_level"] = level
    return [helper.make_attribute(key, size) for key, size in sorted(sizes.items())]


def accuracy_level(config: QuantizeConfig) -> int:
    """The accuracy level of products."""
    return ACCURACY_LEVEL if config.accuracy_level is None else config.accuracy_level


def in_blocks(matrix: np.ndarray, bits: int, size: int, asymmetric: bool) -> list[np.ndarray]:
    """Round a float32 matrix (in, out) in blocks of `size` along `in`, in the format of MatMulNBits.

    Calls the kernel of ONNX Runtime's MatMulNBitsQuantizer directly, which avoids its copies and slow imports.

    Returns:
        Values (out, blocks, bytes) uint8, scales (out, blocks) float32 and, if `asymmetric`, zero points (out, bytes)
        uint8.
    """
    rows, columns = matrix.shape
    blocks = -(-rows // size)
    numbers = np.zeros((columns, blocks, size * bits // 8), np.uint8)
    scales = np.zeros((columns, blocks), np.float32)
    zero_points = np.zeros((columns, -(-blocks * bits // 8)), np.uint8)
    rounding = {4: runtime.quantize_matmul_4bits, 8: runtime.quantize_matmul_8bits}[bits]
    for start in range(0, columns, max(1, NUMBERS // rows)):
        some = slice(start, start + max(1, NUMBERS // rows))
        part = np.zeros((blocks * size, len(scales[some])), np.float32)
        part[:rows] = matrix[:, some]
        rounding(numbers[some], part, scales[some], zero_points[some], size, part.shape[1], rows, not asymmetric)
    return [numbers, scales, zero_points] if asymmetric else [numbers, scales]


def restored(matrix: np.ndarray, bits: int, size: int, asymmetric: bool) -> np.ndarray:
    """The float32 matrix (in, out) that MatMulNBits multiplies by after rounding `matrix`."""
    return unrounded(in_blocks(matrix, bits, size, asymmetric), bits, len(matrix))


def unrounded(parts: Sequence[np.ndarray], bits: int, rows: int) -> np.ndarray:
    """The float32 matrix (in, out) that MatMulNBits multiplies by. Args: parts: as of `in_blocks`; rows: `in`."""
    numbers, scales, *zero_points = parts
    columns, blocks, _ = numbers.shape
    levels = _unpacked(numbers, bits).reshape(columns, blocks, -1)
    middle = np.full((columns, blocks), 1 << (bits - 1), np.uint8)
    if zero_points:
        middle = _unpacked(zero_points[0], bits).reshape(columns, -1)[:, :blocks]
    values = (levels.astype(np.float32) - middle[..., None]) * scales[..., None]
    return np.ascontiguousarray(values.reshape(columns, -1)[:, :rows].T)


def packed(levels: np.ndarray, bits: int) -> np.ndarray:
    """Pack values (…, N) uint8 to bytes; two 4-bit values per byte, lower half first, and a 0 after an odd one."""
    if bits == 8:
        return levels
    whole = np.pad(levels, [*[(0, 0)] * (levels.ndim - 1), (0, levels.shape[-1] % 2)])
    made: np.ndarray = whole[..., ::2] | whole[..., 1::2] << 4
    return made


def _unpacked(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Unpack bytes to values; two 4-bit values per byte, lower half first."""
    return numbers if bits == 8 else np.stack([numbers & 15, numbers >> 4], axis=-1)


def _block_wise_table(model: onnx.ModelProto, config: QuantizeConfig, weights: Mapping[str, Weight]) -> None:
    """Quantize the embedding table to blocks of 4 bits with ONNX Runtime's quantizer, in a model of a single node."""
    from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

    how = DefaultWeightOnlyQuantConfig(
        block_size=config.block_size or BLOCK_SIZE,
        is_symmetric=not config.asymmetric,
        accuracy_level=accuracy_level(config),
        op_types_to_quantize=("Gather",),
    )
    gather = untie_embedding(model)
    table = single_node_model(model, gather)
    fill(table, weights)
    quantizer = MatMulNBitsQuantizer(table, algo_config=how)
    quantizer.process()
    made = quantizer.model.model.graph
    replace_node(model, gather, made.node, initializers(model) | {tensor.name: tensor for tensor in made.initializer})
