"""Quantization schemes and their options. Frozen, validated on construction.

A new scheme is a line in `SCHEMES` and a function in t2r_export.quantizers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from t2r_export.config.options import changed, check_values, option, options, read_bytes
from t2r_export.config.typed import check_fields
from t2r_export.config.validation import entry
from t2r_runtime.errors import UserError

BLOCK_BITS = (4, 8)
ACCURACY_LEVEL = 4  # default for matrix products
MIN_CALIBRATION = 1024  # tokens
CALIBRATE_STEPS = 1024
CALIBRATION_PAIRS = 512  # of a translator


@dataclass(frozen=True)
class Scheme:
    """A quantization scheme and its capabilities."""

    quantizer: str  # module:function, a t2r_export.quantizers.base.Quantizer
    bits: int  # per weight
    loss: float  # allowed relative increase of nats/token; docs/quantization.md has measurements
    calibrated: bool = False  # requires a calibration text
    block_wise: bool = False  # has an accuracy level; quantizes weights one at a time
    measures: bool = False  # rounds activations in each call; can leave products out by a measured error
    rounds: bool = False  # block-wise, with one number of bits and one block size, which training can round to
    keeps: bool = False  # block-wise, with the blocks of weights that were quantized before
    budgeted: bool = False  # accepts a byte budget
    row_wise: bool = False  # rounds each token separately: prompts equal steps within PROMPTS (proof)


_BLOCKS = "t2r_export.quantizers.blocks:blocks"
SCHEMES = {
    "fp16": Scheme("t2r_export.quantizers.float16:float16", 16, loss=0.005, row_wise=True),
    "int8": Scheme("t2r_export.quantizers.integers:dynamic", 8, loss=0.005, measures=True),
    "int8-static": Scheme("t2r_export.quantizers.integers:static", 8, loss=0.02, calibrated=True),
    "w8": Scheme(_BLOCKS, 8, loss=0.005, block_wise=True, measures=True, rounds=True, row_wise=True),
    "w4": Scheme(_BLOCKS, 4, loss=0.03, block_wise=True, measures=True, rounds=True, budgeted=True, row_wise=True),
    "keep": Scheme(_BLOCKS, 8, loss=0.005, block_wise=True, measures=True, keeps=True, row_wise=True),
}


class Run(NamedTuple):
    """Successive rows of a weight (out, in) in one format of blocks."""

    rows: int
    bits: int
    size: int  # weights per block
    offset: bool = False  # a block has an offset beside its scale
    kept: bool = True  # the values are those of the float32 weight, to the bit; else they are rounded


def scheme(name: str) -> Scheme:
    """Look up a scheme. Raises UserError for an unknown name."""
    return entry("a scheme", name, SCHEMES)


@dataclass(frozen=True, kw_only=True)
class QuantizeConfig:
    """A scheme and its options; None is the scheme's measured default.

    The metadata `of` of an option names the flag of the schemes that it applies to.
    """

    scheme: str
    block_size: int | None = option(
        "Number of weights that share a scale.", None, (16, 32, 64, 128, 256), 32, of="rounds"
    )
    asymmetric: bool = option("Round asymmetrically, with a zero point per scale.", False, of="rounds")
    accuracy_level: int | None = option(
        "Precision of the arithmetic: 4 is int8; 0 is float32, which is slower but gives prompts the numbers of steps.",
        None,
        (0, 1, 2, 3, 4),
        ACCURACY_LEVEL,
        of="block_wise",
    )
    activation_error: float | None = option(
        "Largest relative error of a product by rounding its activations to int8, such as 0.05; products with a larger "
        "one on the text of --calibrate are computed in float32. int8 first scales channels.",
        None,
        of="measures",
    )
    rounding: str = option(
        "Rounding of weights: to the nearest value, or by GPTQ with the inputs of products on the text of --calibrate.",
        "nearest",
        ("nearest", "gptq"),
        of="rounds",
    )
    head_bits: int | None = option("Bits of the output head.", None, BLOCK_BITS, 8, of="rounds")
    embedding_bits: int | None = option(
        "Bits of the embedding: 8 with one scale, or 4 in blocks.", None, BLOCK_BITS, 8, of="rounds"
    )
    other_bits: int = option("Bits of products whose weights are not in blocks yet.", 8, BLOCK_BITS, of="keeps")
    calibrate: Path | None = None  # text or token ids, for int8-static, and for options that measure
    calibrate_steps: int | None = option(
        "Tokens per calibration passage.", None, usual=CALIBRATE_STEPS, of="calibrated"
    )
    activation_bits: int = option("Bits per activation.", 8, (8, 16), of="calibrated")
    budget: int | None = option(
        "Maximum size of all weights in bytes, 64k or 1.5M; bits and block size of each MatMul are selected by "
        "measurement on the text of --calibrate.",
        None,
        of="budgeted",
        bounds=(1, 1 << 53),
    )
    choices: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # bits and block size, by weight
    activation_errors: Mapping[str, float] = field(default_factory=dict)  # measured, by weight
    kept: Mapping[str, tuple[Run, ...]] = field(default_factory=dict)  # by weight

    def __post_init__(self) -> None:
        chosen = scheme(self.scheme)
        budget: Any = self.budget
        if isinstance(budget, str):
            object.__setattr__(self, "budget", read_bytes(budget))
        check_fields(self)
        check_values(self)
        reads = chosen.calibrated or self.budget is not None or self.activation_error is not None
        reads |= self.rounding == "gptq"
        taken = [*takes(self.scheme), *(["calibrate"] if reads else []), "choices", "activation_errors", "kept"]
        if unfit := [name for name in list(self.described())[1:] if name not in taken]:
            known = ", ".join(taken[:-3]) or "none"
            raise UserError(f"options that {self.scheme} takes ({known})", ", ".join(unfit), "leave them out")
        if self.budget is not None and (self.block_size or self.head_bits):
            raise UserError("budget without block_size and head_bits", "both", "leave one out")
        if self.activation_error is not None and self.accuracy_level not in (None, ACCURACY_LEVEL):
            expected = f"activation_error with accuracy_level {ACCURACY_LEVEL}, which rounds activations"
            raise UserError(expected, str(self.accuracy_level), "leave one out")
        if reads and self.calibrate is None:
            raise UserError(f"a text to calibrate {self.scheme} on", "none", "name one with --calibrate")

    @property
    def bits(self) -> int:
        """Bits of the weights that the scheme rounds."""
        chosen = scheme(self.scheme)
        return self.other_bits if chosen.keeps else chosen.bits

    @property
    def float_products(self) -> list[str]:
        """Weights whose products are computed in float32."""
        most = math.inf if self.activation_error is None else self.activation_error
        return [name for name, error in self.activation_errors.items() if error > most]

    def described(self) -> dict[str, Any]:
        """The scheme and its non-default options, as plain data."""
        return {each.name: getattr(self, each.name) for each in fields(self) if changed(self, each)}


def takes(name: str) -> dict[str, Field[Any]]:
    """The options of a scheme, by name."""
    return {
        option: each for option, each in options(QuantizeConfig).items() if getattr(scheme(name), each.metadata["of"])
    }
