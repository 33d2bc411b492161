"""w8, w4 and keep: block-wise quantized weights of projections (com.microsoft MatMulNBits).

Activations, states, norms and unfolded feature maps stay float32. Head and embedding have 8 bits by default; see
docs/quantization.md for the loss with 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxruntime.capi import _pybind_state as runtime

from t2r_export.config.quantize import ACCURACY_LEVEL, BLOCK_BITS, QuantizeConfig, Run
from t2r_export.graph.nodes import initializers, set_nodes
from t2r_export.graph.weights import Weight, array, fill, refer, values
from t2r_export.quantizers.base import (
    Calibration,
    head,
    projections,
    replace_initializers,
    replace_node,
    single_node_model,
)
from t2r_export.quantizers.grids import Form, held
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
    _block_wise_projections(model, config, weights)
    if not has_table(model):
        return model
    of_rows = _parts_of_rows(model, config, weights) if config.embedding_bits is None else None
    if of_rows is not None:
        row_of_blocks(model, *of_rows, weights)
    elif config.embedding_bits == 4:
        _block_wise_table(model, config, weights)
    else:
        quantize_embedding(model, weights)
    return model


def block_sizes(model: onnx.ModelProto, config: QuantizeConfig) -> dict[str, tuple[int, int]]:
    """Bits and block size of each projection, by node name."""
    size, last = config.block_size or BLOCK_SIZE, head(model)
    weights = {node.name: node.input[1] for node in projections(model)}
    bits = {last: config.head_bits or HEAD_BITS}
    usual = config.bits
    return {name: config.choices.get(weight, (bits.get(name, usual), size)) for name, weight in weights.items()}


def _parts_of_rows(
    model: onnx.ModelProto, config: QuantizeConfig, weights: dict[str, Weight]
) -> tuple[list[str], int] | None:
    """Names and bits of the table's rows in blocks: kept, or of the quantized head of this graph or an earlier one."""
    table = table_of(model).input[0]
    name = f"{table}.transposed"
    runs = config.kept.get(table, ())
    if len(runs) == 1 and runs[0].kept:
        matrix = values(initializers(model)[table], weights)
        return _stored(name, matrix, runs[0], config, weights), runs[0].bits
    for bits in BLOCK_BITS:
        parts = parts_of(name, bits, config)
        if weights.keys() >= set(parts):
            return parts, bits
    return None


def _block_wise_projections(model: onnx.ModelProto, config: QuantizeConfig, weights: dict[str, Weight]) -> None:
    """Replace each projection by products of blocks."""
    sizes, products = block_sizes(model, config), _Products(model, config, weights)
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        nodes += products.of(node, *sizes[node.name]) if node.name in sizes else [node]
    set_nodes(model.graph, nodes)
    replace_initializers(model, products.kept)
    import_microsoft(model)


class _Products:
    """Builder of the nodes that replace projections."""

    def __init__(self, model: onnx.ModelProto, config: QuantizeConfig, weights: dict[str, Weight]) -> None:
        self.config, self.weights, self.kept = config, weights, initializers(model)
        self.sums: dict[tuple[str, int], str] = {}  # of blocks, by activation and block size
        self.scales: dict[str, str] = {}  # as float32, by their weight

    def of(self, node: onnx.NodeProto, bits: int, size: int) -> list[onnx.NodeProto]:
        """A MatMulNBits of each run of rows, and an Add of the bias."""
        x, name, *bias = node.input
        matrix = values(self.kept[name], self.weights)
        if node.op_type == "MatMul":  # (in, out), where a Gemm has (out, in)
            matrix = matrix.T
        nodes: list[onnx.NodeProto] = []
        runs = self.config.kept.get(name, (Run(len(matrix), bits, size, kept=False),))
        found, start = [], 0
        for number, run in enumerate(runs):
            place = "" if len(runs) == 1 else f".{number}"
            parts = _stored(
                f"{stored_name(node)}{place}", matrix[start : start + run.rows], run, self.config, self.weights
            )
            self.kept |= {part: refer(part, self.weights[part]) for part in parts}
            level = 0 if name in self.config.float_products else accuracy_level(self.config)
            found.append(self._product(nodes, f"{node.name}{place}", x, parts, run, matrix.shape[1], level))
            start += run.rows
        if len(runs) > 1:
            nodes.append(helper.make_node("Concat", found, [f"{node.name}.rows"], f"{node.name}.concat", axis=-1))
        if bias:
            nodes.append(helper.make_node("Add", [nodes[-1].output[0], *bias], [""], f"{node.name}.add"))
        nodes[-1].output[0] = node.output[0]
        return nodes

    def _product(
        self, nodes: list[onnx.NodeProto], name: str, x: str, parts: list[str], run: Run, width: int, level: int
    ) -> str:
        """Append the nodes of x times the rows of a run; returns the name of the result."""
        offsets = parts.pop() if run.offset else None
        numbers, scales, *zeros = parts
        inputs = [x, numbers, self._scales(nodes, scales), *zeros]
        made = helper.make_node("MatMulNBits", inputs, [f"{name}.product"], f"{name}_Q{run.bits}", domain=MICROSOFT)
        made.attribute.extend(_attributes(width, run, level))
        if offsets is None:
            nodes.append(made)
            return str(made.output[0])
        sums = self._sums(nodes, x, width, run.size)
        product, more, whole = made.output[0], f"{name}.of_offsets", f"{name}.with_offsets"
        nodes += [
            made,
            helper.make_node("Gemm", [sums, offsets], [more], more, transB=1),
            helper.make_node("Add", [product, more], [whole], whole),
        ]
        return whole

    def _scales(self, nodes: list[onnx.NodeProto], name: str) -> str:
        """Name of scales as float32, which the operator takes; appends the node that casts them if there is none yet.

        ONNX Runtime casts them once, when it opens the graph; our own provider reads float16.
        """
        if array(self.weights[name]).dtype == np.float32:
            return name
        if name not in self.scales:
            self.scales[name] = real = f"{name}.float32"
            nodes.append(helper.make_node("Cast", [name], [real], real, to=onnx.TensorProto.FLOAT))
        return self.scales[name]

    def _sums(self, nodes: list[onnx.NodeProto], x: str, width: int, size: int) -> str:
        """Name of the sums of each block of x, (rows, blocks); appends their nodes if there are none yet."""
        if (x, size) not in self.sums:
            blocks, sums, shape, axes = (f"{x}.{what}{size}" for what in ("blocks", "sums", "shape", "axis"))
            self.kept[shape] = numpy_helper.from_array(np.array([-1, width // size, size], np.int64), shape)
            self.kept[axes] = numpy_helper.from_array(np.array([2], np.int64), axes)
            nodes.append(helper.make_node("Reshape", [x, shape], [blocks], blocks))
            nodes.append(helper.make_node("ReduceSum", [blocks, axes], [sums], sums, keepdims=0))
            self.sums[x, size] = sums
        return self.sums[x, size]


def _stored(name: str, matrix: np.ndarray, run: Run, config: QuantizeConfig, weights: dict[str, Weight]) -> list[str]:
    """Names of the parts of a matrix (out, in) in the format of a run; they are added to `weights` if they are new."""
    parts = parts_of(name, run.bits, config)
    if run.offset:
        parts.append(f"{name}_offsets")
    if not weights.keys() >= set(parts):
        arrays = _kept(matrix, run) if run.kept else in_blocks(matrix.T, run.bits, run.size, config.asymmetric)
        weights |= zip(parts, in_halves(arrays), strict=True)
    return parts


def in_halves(parts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The parts of a matrix, as of `in_blocks`, with scales in float16 if that holds them exactly."""
    numbers, scales, *more = parts
    with np.errstate(over="ignore"):
        half = scales.astype(np.float16)
    return [numbers, half if np.array_equal(half, scales) else scales, *more]


def rounded_scales(scales: np.ndarray) -> np.ndarray:
    """Scales, float32, rounded to numbers of float16, as in GGUF's blocks; unchanged if the largest is not within its
    normal numbers."""
    of_half = np.finfo(np.float16)
    if not of_half.smallest_normal <= np.abs(scales).max(initial=0) <= of_half.max:
        return scales
    return scales.astype(np.float16).astype(np.float32)


def _kept(matrix: np.ndarray, run: Run) -> list[np.ndarray]:
    """Values, scales and any offsets (out, blocks), float32, of a matrix (out, in), without rounding."""
    levels, scales, offsets = held(matrix, Form(run.bits, run.size, run.offset))
    return [packed(levels, run.bits), scales, *([] if offsets is None else [offsets])]


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


def _attributes(width: int, run: Run, level: int) -> list[onnx.AttributeProto]:
    sizes = {"K": width, "N": run.rows, "bits": run.bits, "block_size": run.size}
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
        Values (out, blocks, bytes) uint8, scales (out, blocks) float32, which float16 holds, and, if `asymmetric`, zero
        points (out, bytes) uint8.
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
    scales = rounded_scales(scales)
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
