"""The quantization schemes, by name, and what a quantization can be told.

One explicit table: a new scheme is a line in `SCHEMES` and a function in t2r_export.quantizers, found by name when it
is used. Frozen and validated when it is made: what contradicts itself is an error before any work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from t2r_export.config.typed import check_fields
from t2r_export.config.validation import entry
from t2r_runtime.errors import UserError

BLOCK_SIZES = (16, 32, 64, 128, 256)
ACCURACY_LEVELS = (0, 1, 2, 3, 4)
BLOCK_BITS = (4, 8)
ACTIVATION_BITS = (8, 16)
# which options a scheme takes: those of blocks, those of calibration
BUDGET_SCHEME = "w4"  # what can be told a budget instead of bits
BLOCK_OPTIONS = ("block_size", "asymmetric", "accuracy_level", "head_bits", "embedding_bits")
CALIBRATION_OPTIONS = ("calibrate", "calibrate_steps", "activation_bits")
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
    row_wise: bool = False  # rounds each token by itself: many at once give what steps give, within PROMPTS (proof)


_BLOCKS = "t2r_export.quantizers.blocks:blocks"
SCHEMES = {
    "fp16": Scheme("t2r_export.quantizers.float16:float16", 16, loss=0.005, row_wise=True),
    "int8": Scheme("t2r_export.quantizers.integers:dynamic", 8, loss=0.005),
    "int8-static": Scheme("t2r_export.quantizers.integers:static", 8, loss=0.02, calibrated=True),
    "w8": Scheme(_BLOCKS, 8, loss=0.005, block_wise=True, row_wise=True),
    "w4": Scheme(_BLOCKS, 4, loss=0.03, block_wise=True, row_wise=True),
}


def scheme(name: str) -> Scheme:
    """The scheme of that name.

    Raises:
        UserError: an unknown one; lists the known ones.
    """
    return entry("a scheme", name, SCHEMES)


@dataclass(frozen=True, kw_only=True)
class QuantizeConfig:
    """A scheme and its options; None is the scheme's own measured default."""

    scheme: str
    block_size: int | None = None  # weights that share a scale: w8 and w4, as all up to embedding_bits
    asymmetric: bool = False  # a zero point beside each scale
    accuracy_level: int | None = None  # 4: activations as int8 in products; 0 or 1: float32, prompts as by steps
    head_bits: int | None = None  # of the projection onto the vocabulary
    embedding_bits: int | None = None  # 8: one scale; 4: blocks
    calibrate: Path | None = None  # text or token ids: int8-static, as the next two
    calibrate_steps: int | None = None  # that a sequence of it is read for; None: CALIBRATE_STEPS
    activation_bits: int = 8
    budget: int | None = None  # bytes of all weights: w4 chooses bits and blocks of each product, by a text `calibrate`
    choices: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # what it chose, by the weight's name

    def __post_init__(self) -> None:
        check_fields(self)
        chosen = scheme(self.scheme)
        for name, value, known in (
            ("a block size", self.block_size, BLOCK_SIZES),
            ("an accuracy level", self.accuracy_level, ACCURACY_LEVELS),
            ("head bits", self.head_bits, BLOCK_BITS),
            ("embedding bits", self.embedding_bits, BLOCK_BITS),
            ("activation bits", self.activation_bits, ACTIVATION_BITS),
        ):
            if value is not None and value not in known:
                raise UserError(f"{name} of {', '.join(map(str, known))}", str(value), "choose one of those")
        if self.calibrate_steps is not None and self.calibrate_steps < 1:
            raise UserError("at least 1 step to calibrate on", str(self.calibrate_steps), "correct --calibrate-steps")
        reads = CALIBRATION_OPTIONS if chosen.calibrated else ("calibrate",) if self.budget is not None else ()
        unfit = self.given(
            [*(() if chosen.block_wise else BLOCK_OPTIONS), *(n for n in CALIBRATION_OPTIONS if n not in reads)]
        )
        if unfit:
            names = ", ".join("--" + name.replace("_", "-") for name in unfit)
            raise UserError(f"options that {self.scheme} takes", names, "leave them out")
        if self.budget is not None and (self.scheme != BUDGET_SCHEME or self.block_size or self.head_bits):
            received = "--block-size or --head-bits" if self.scheme == BUDGET_SCHEME else self.scheme
            raise UserError(f"a budget with {BUDGET_SCHEME} alone, which it spends", received, "leave one out")
        if (chosen.calibrated or self.budget is not None) and self.calibrate is None:
            raise UserError(f"a text to calibrate {self.scheme} on", "none", "name one with --calibrate")

    def described(self) -> dict[str, Any]:
        """The scheme with its options that are not at their default, as plain data."""
        names = [each.name for each in fields(self)[1:]]
        return {"scheme": self.scheme, **{name: getattr(self, name) for name in self.given(names)}}

    def given(self, names: Sequence[str]) -> list[str]:
        """Those of `names` that are not at their default."""
        defaults = {each.name: {} if each.default is MISSING else each.default for each in fields(self)}
        return [name for name in names if getattr(self, name) != defaults[name]]
