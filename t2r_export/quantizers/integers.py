"""int8 and int8-static: integer projections; states, positions and the guarded division stay float32.

int8 quantizes activations dynamically, with one range per call; int8-static uses ranges from a calibration text.

Weights use 7 of their 8 bits. x86 CPUs without VNNI add two products of uint8 and int8 in 16 bits with saturation:
2 x 255 x 127 exceeds 32,767, 2 x 255 x 64 does not. Thus all CPUs compute the same sums. int8 with `activation_error`
has unsigned weights of 8 bits around 128: kernels for uint8 and uint8 add in 32 bits, on some CPUs more slowly.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import onnx

from t2r_export.config.quantize import QuantizeConfig
from t2r_export.graph.nodes import initializers
from t2r_export.graph.weights import Weight, fill, refer, values
from t2r_export.quantizers.base import Calibration, gemm_to_matmul, projections
from t2r_export.quantizers.calibration import RecurrentReader
from t2r_export.quantizers.smoothing import CHANNELS, TURNED, scale_channels
from t2r_export.quantizers.tables import quantize_embedding, row_of_columns, table_of, untie_embedding
from t2r_runtime.contract.signature import SOURCE_IDS


def dynamic(
    model: onnx.ModelProto, config: QuantizeConfig, _: Calibration | None, weights: dict[str, Weight]
) -> onnx.ModelProto:
    """Quantize weights to 8 bits with one scale per column, and activations dynamically.

    Args:
        weights: scales of channels (t2r_export.quantizers.smoothing), if they were measured; receives the values of a
            tied head, for the graphs quantized later.
    """
    from onnxruntime.quantization import QuantType, quantize_dynamic

    table = table_of(model).input[0]
    name, measured = f"{table}{TURNED}", config.activation_error is not None
    of_head = [f"{name}_quantized", f"{name}_scale"]
    gemm_to_matmul(model)
    exact = {f"{weight}{end}" for weight in config.float_products for end in ("", TURNED)}
    chosen = [node for node in projections(model) if node.input[1] not in exact]
    tied = name in {node.input[1] for node in chosen}
    scale_channels(model, chosen, weights)
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
            nodes_to_quantize=[node.name for node in chosen] or [""],  # an empty list is all nodes
            per_channel=True,
            reduce_range=not measured,
            weight_type=QuantType.QUInt8 if measured else QuantType.QInt8,
            use_external_data_format=True,
            extra_options={"WeightSymmetric": True},
        )
        made = onnx.load(out)
    kept = initializers(made)
    if tied:
        for part in of_head:
            weights[part] = values(kept[part], {})
            kept[part].CopyFrom(refer(part, weights[part]))
    if of_head[0] in weights:
        row_of_columns(made, of_head, weights, table + CHANNELS)
    return made


def static(
    model: onnx.ModelProto, config: QuantizeConfig, calibration: Calibration | None, *_: object
) -> onnx.ModelProto:
    """Quantize weights to int8, and activations by their ranges on the calibration text."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    assert calibration is not None
    table = untie_embedding(model)
    encoder = any(value.name == SOURCE_IDS for value in model.graph.input)
    # unsigned in encoders: ONNX Runtime 1.31 moves the node across the following Reshape as if it were unsigned
    of_table = {"quant_type": QuantType.QUInt8 if encoder else QuantType.QInt8, "symmetric": not encoder}
    # 8-bit outputs lose too much accuracy in logits and in the summands of S; 16-bit outputs lose little, and integer
    # accelerators need every output quantized. CalibMaxIntermediateOutputs would save memory, but in onnxruntime 1.31
    # it forgets earlier batches
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
            nodes_to_quantize=[node.name for node in (table, *projections(model))],
            per_channel=True,
            activation_type=QuantType.QUInt8 if config.activation_bits == 8 else QuantType.QUInt16,
            reduce_range=config.activation_bits == 8,
            weight_type=QuantType.QInt8,
            use_external_data_format=True,
            extra_options=options,
        )
        return onnx.load(out)
