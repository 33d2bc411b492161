"""The quantization schemes, by name, and what a quantization can be told.

One explicit table: a new scheme is a line in `SCHEMES` and a function in t2r_export.quantizers, found by name when it
is used. Frozen and validated when it is made: what contradicts itself is an error before any work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from t2r_export.config.options import changed, check_values, option, options, read_bytes
from t2r_export.config.typed import check_fields
from t2r_export.config.validation import entry
from t2r_runtime.errors import UserError

BLOCK_BITS = (4, 8)
MIN_CALIBRATION = 1024  # tokens
CALIBRATE_STEPS = 1024
CALIBRATION_PAIRS = 512  # of a translator


@dataclass(frozen=True)
class Scheme:
    """A way to make a graph smaller, and what it may cost."""

    quantizer: str  # module:function, a t2r_export.quantizers.base.Quantizer
    bits: int  # of a weight
    loss: float  # share by which nats/token may grow on a text; docs/quantization.md has what was measured
    calibrated: bool = False  # needs a text
    block_wise: bool = False  # takes a block size and an accuracy level, and its weights one at a time
    budgeted: bool = False  # can be told a budget instead of bits
    row_wise: bool = False  # rounds each token by itself: many at once give what steps give, within PROMPTS (proof)


_BLOCKS = "t2r_export.quantizers.blocks:blocks"
SCHEMES = {
    "fp16": Scheme("t2r_export.quantizers.float16:float16", 16, loss=0.005, row_wise=True),
    "int8": Scheme("t2r_export.quantizers.integers:dynamic", 8, loss=0.005),
    "int8-static": Scheme("t2r_export.quantizers.integers:static", 8, loss=0.02, calibrated=True),
    "w8": Scheme(_BLOCKS, 8, loss=0.005, block_wise=True, row_wise=True),
    "w4": Scheme(_BLOCKS, 4, loss=0.03, block_wise=True, budgeted=True, row_wise=True),
}


def scheme(name: str) -> Scheme:
    """The scheme of that name.

    Raises:
        UserError: an unknown one; lists the known ones.
    """
    return entry("a scheme", name, SCHEMES)


@dataclass(frozen=True, kw_only=True)
class QuantizeConfig:
    """A scheme and its options; None is the scheme's own measured default.

    An option belongs to the schemes of which the flag named by its `of` is true.
    """

    scheme: str
    block_size: int | None = option(
        "Number of weights that share a scale.", None, (16, 32, 64, 128, 256), 32, of="block_wise"
    )
    asymmetric: bool = option("Round asymmetrically, with a zero point per scale.", False, of="block_wise")
    accuracy_level: int | None = option(
        "Precision to compute in: 4 is int8; 0 is float32, which is slower and reads prompts at once as steps do.",
        None,
        (0, 1, 2, 3, 4),
        4,
        of="block_wise",
    )
    head_bits: int | None = option("Bits of the output head.", None, BLOCK_BITS, 8, of="block_wise")
    embedding_bits: int | None = option(
        "Bits of the embedding: 8 with one scale, or 4 in blocks.", None, BLOCK_BITS, 8, of="block_wise"
    )
    calibrate: Path | None = None  # text or token ids: of int8-static, and to choose by under a budget
    calibrate_steps: int | None = option(
        "Tokens to read per calibration passage.", None, usual=CALIBRATE_STEPS, of="calibrated"
    )
    activation_bits: int = option("Bits per activation.", 8, (8, 16), of="calibrated")
    budget: int | None = option(
        "Bytes of all weights at most, 64k or 1.5M: bits and block size of each product are chosen by measuring on the "
        "text of --calibrate.",
        None,
        of="budgeted",
        bounds=(1, 1 << 53),
    )
    choices: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # what it chose, by the weight's name

    def __post_init__(self) -> None:
        chosen = scheme(self.scheme)
        budget: Any = self.budget
        if isinstance(budget, str):
            object.__setattr__(self, "budget", read_bytes(budget))
        check_fields(self)
        check_values(self)
        reads = chosen.calibrated or self.budget is not None
        taken = [*takes(self.scheme), *(["calibrate"] if reads else []), "choices"]
        if unfit := [name for name in list(self.described())[1:] if name not in taken]:
            known = ", ".join(taken[:-1]) or "none"
            raise UserError(f"options that {self.scheme} takes ({known})", ", ".join(unfit), "leave them out")
        if self.budget is not None and (self.block_size or self.head_bits):
            raise UserError("a budget, which is spent on bits and blocks", "block_size or head_bits", "leave one out")
        if reads and self.calibrate is None:
            raise UserError(f"a text to calibrate {self.scheme} on", "none", "name one with --calibrate")

    def described(self) -> dict[str, Any]:
        """The scheme with its options that are not at their default, as plain data."""
        return {each.name: getattr(self, each.name) for each in fields(self) if changed(self, each)}


def takes(name: str) -> dict[str, Field[Any]]:
    """The options of a scheme, by name."""
    return {
        option: each for option, each in options(QuantizeConfig).items() if getattr(scheme(name), each.metadata["of"])
    }
