"""The quantization schemes: one explicit table. A new scheme is a function in a file here and a line in `SCHEMES`.

Every scheme is a function (model, config, calibration, weights) -> model: it takes a float32 step graph and gives back
one with the same inputs and outputs, names and dtypes; the rounding is ONNX Runtime's own. The weights are inside the
graph, but for those that the initializers of a block-wise scheme's graph name, before and after (see graph_file.refer).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx

from t2r_export.graph.file import Weight
from t2r_export.quantizers.base import Calibration, QuantizeConfig
from t2r_export.quantizers.blocks import blocks
from t2r_export.quantizers.float16 import float16
from t2r_export.quantizers.integers import dynamic, static
from t2r_runtime.errors import UserError

Quantizer = Callable[[onnx.ModelProto, QuantizeConfig, Calibration | None, dict[str, Weight]], onnx.ModelProto]


@dataclass(frozen=True)
class Scheme:
    """A way to make a graph smaller, and what it may cost."""

    quantizer: Quantizer
    loss: float  # share by which nats/token may grow on a text; docs/quantization.md has what was measured
    calibrated: bool = False  # needs a text
    block_wise: bool = False  # takes a block size and an accuracy level, and its weights one at a time
    row_wise: bool = False  # rounds each token by itself, so that many at once give what one after the other gives


SCHEMES: dict[str, Scheme] = {
    "fp16": Scheme(float16, loss=0.005, row_wise=True),
    "int8": Scheme(dynamic, loss=0.005),
    "int8-static": Scheme(static, loss=0.02, calibrated=True),
    "w8": Scheme(blocks, loss=0.005, block_wise=True, row_wise=True),
    "w4": Scheme(blocks, loss=0.03, block_wise=True, row_wise=True),
}


def scheme(name: str) -> Scheme:
    """The scheme of that name.

    Raises:
        UserError: an unknown one; lists the known ones.
    """
    if name not in SCHEMES:
        raise UserError(f"a scheme of {', '.join(SCHEMES)}", repr(name), "choose one of those")
    return SCHEMES[name]
