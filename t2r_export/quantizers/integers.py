"""int8 and int8-static: products of integers.

int8 finds each activation's range while it runs, one range a call; int8-static has it measured beforehand, on text.
Only the projections are quantized: S, z, the position and the division by the guarded denominator stay float32.

Weights have 7 of their 8 bits. x86 CPUs without VNNI add two products of uint8 and int8 in 16 bits, which saturate
where both are large: 2 x 255 x 127 is past 32,767, and 2 x 255 x 64 is not. So the sums are the same everywhere.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import onnx

from t2r_export.config.quantize import QuantizeConfig
from t2r_export.graph.weights import Weight, fill, refer, values
from t2r_export.quantizers.base import Calibration, gemm_to_matmul, initializers, projections
from t2r_export.quantizers.calibration import RecurrentReader
from t2r_export.quantizers.tables import quantize_embedding, row_of_columns, table_of, untie_embedding
from t2r_runtime.contract.signature import SOURCE_IDS


def dynamic(
    model: onnx.ModelProto, config: QuantizeConfig, _: Calibration | None, weights: dict[str, Weight]
) -> onnx.ModelProto:
    """`model` with int8 weights, one scale a column, and activations that are quantized as they come.

    Args:
        weights: gets the numbers of a head whose weight is the table of tokens too, for the graphs that come after.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    name = f"{table_of(model).input[0]}.transposed"
    of_head = [f"{name}_quantized", f"{name}_scale"]
    gemm_to_matmul(model)
    tied = name in initializers(model)
    if not tied and of_head[0] not in weights:
        own: dict[str, Weight] = {}
        quantize_embedding(model, own)
        fill(model, own)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "int8.onnx")
        quantize_dynamic(
            model,
            out,
            op_types_to_quantize=["MatMul"],
            nodes_to_quantize=projections(model),
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            use_external_data_format=True,
        )
        made = onnx.load(out)
    kept = initializers(made)
    if tied:
        for part in of_head:
            weights[part] = values(kept[part], {})
            kept[part].CopyFrom(refer(part, weights[part]))
    if of_head[0] in weights:
        row_of_columns(made, of_head, weights)
    return made


def static(
    model: onnx.ModelProto, config: QuantizeConfig, calibration: Calibration | None, *_: object
) -> onnx.ModelProto:
    """`model` with int8 weights, and activations quantized by what they were on the calibration text."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    assert calibration is not None
    table = untie_embedding(model)
    encoder = any(value.name == SOURCE_IDS for value in model.graph.input)
    # of an encoder unsigned: ONNX Runtime 1.31 moves the node over the change of shape behind, as if it were
    of_table = {"quant_type": QuantType.QUInt8 if encoder else QuantType.QInt8, "symmetric": not encoder}
    # eight bits for the logits or for what S sums up cost too much, as measured; sixteen cost next to nothing, and an
    # accelerator of integers wants every result quantized.
    # CalibMaxIntermediateOutputs would save memory, but in onnxruntime 1.31 it forgets what it has seen so far
    options: dict[str, Any] = {
        "OpTypesToExcludeOutputQuantization": ["Gemm"] if config.activation_bits == 8 else [],
        "TensorQuantOverrides": {table.input[0]: [of_table]},
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "int8.onnx")
        quantize_static(
            model,
            out,
            RecurrentReader(calibration, encoder),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["Gather", "Gemm"],
            nodes_to_quantize=[table.name, *projections(model)],
            per_channel=True,
            activation_type=QuantType.QUInt8 if config.activation_bits == 8 else QuantType.QUInt16,
            reduce_range=config.activation_bits == 8,
            weight_type=QuantType.QInt8,
            use_external_data_format=True,
            extra_options=options,
        )
        return onnx.load(out)
