"""How far a graph may be from the eager model: one table, by provider and quantization.

A tolerance is a promise, several times the worst value that was measured; docs/parity.md holds the measurements. A
model that float32 itself does not compute within it is measured by that (t2r_export.proof.rounding), up to a limit.
"""

from __future__ import annotations

from dataclasses import dataclass

from t2r_export.config.quantize import SCHEMES
from t2r_runtime.errors import UserError

REFERENCES = ("float32", "float64")  # precisions of the eager model
ROUNDING = 4.0  # a graph may be off this many times what the model's own float32 is
LIMIT = 10.0  # and no more than this many times the fixed bound: beyond, nothing could be told from a fault


@dataclass(frozen=True)
class Tolerance:
    """Bounds for a run of chained steps."""

    logits: float  # largest absolute difference
    states: float  # largest difference of a state, relative to that state's largest value
    greedy: float = 1.0  # share of steps with the same greedy token; less where weights or arithmetic are coarser


def widened(fixed: float, rounding: float) -> float:
    """The bound where the model's own rounding was measured."""
    return min(max(fixed, ROUNDING * rounding), LIMIT * fixed)


# Measured on stories260K with T2R layers and on the storyteller, on the CPU, random states and starts of texts (logits,
# state, greedy): fp16 0.25, 0.0064, 99.9 %; int8 2.4, 0.21, 94 %; int8-static 3.1, 0.27, 87 %; w8 1.3, 0.07, 95 %;
# w4 5.0, 0.31, 71 %. Coarse, since a guarded denominator near zero makes much of a little: what a scheme costs on text
# is the business of t2r_export.quality.quantization. A scheme rounds far more than a provider's arithmetic, so all
# share its bounds; the parity suite holds every provider to them in the schemes that it takes, but cuda, which
# nobody has run.
QUANTIZED = {
    "fp16": Tolerance(logits=1.0, states=0.03, greedy=0.98),
    "int8": Tolerance(logits=7.0, states=0.7, greedy=0.85),
    "int8-static": Tolerance(logits=9.0, states=0.9, greedy=0.7),
    "w8": Tolerance(logits=5.0, states=0.3, greedy=0.85),
    "w4": Tolerance(logits=15.0, states=1.0, greedy=0.5),
}
# How far a prompt or a draft that is read at once may be from the same tokens read by steps, on the CPU. Both round
# activations (w8 and w4 to int8 inside their products, at accuracy level 4), and where the last digit of a sum differs,
# a number may be rounded the other way. Measured on the storyteller, stories3M, stories260K and small random models
# (logits, state): fp16 0.014, 7.8e-4; w8 0.15, 0.0076; w4 0.16, 0.02; w8 and w4 at accuracy level 0 2.8e-5, 1e-6, as
# without quantization.
PROMPTS = {
    "fp16": Tolerance(logits=0.1, states=0.01),
    "w8": Tolerance(logits=1.0, states=0.1),
    "w4": Tolerance(logits=1.0, states=0.1),
}
TOLERANCES: dict[tuple[str, str], Tolerance] = {
    ("cpu", "none"): Tolerance(logits=1e-4, states=1e-5),
    ("cuda", "none"): Tolerance(logits=1e-4, states=1e-5),  # the cpu's: nobody has run it yet
    ("openvino", "none"): Tolerance(logits=1e-4, states=1e-5),
    ("webgpu", "none"): Tolerance(logits=5e-4, states=1e-4),  # a growing cache: 4.6e-5, 1.4e-5; else 1.3e-5, 8e-7
    # float16: trained models are within 0.1 and 0.005, untrained ones with small denominators within 0.7 and 0.7
    ("qnn", "none"): Tolerance(logits=1.5, states=1.0, greedy=0.9),
    ("xnnpack", "none"): Tolerance(logits=1e-4, states=1e-5),
    ("dnnl", "none"): Tolerance(logits=1e-4, states=1e-5),
    **{
        (provider, scheme): QUANTIZED[scheme]
        for provider in ("cpu", "cuda", "openvino", "webgpu", "qnn", "xnnpack", "dnnl")
        for scheme in SCHEMES
    },
}


def tolerance(provider: str, quantization: str) -> Tolerance:
    """The bounds for a provider and a quantization scheme.

    Raises:
        UserError: nobody has measured that pair; lists those that were.
    """
    if (provider, quantization) not in TOLERANCES:
        known = ", ".join(f"{p} with {q}" for p, q in TOLERANCES)
        raise UserError(
            f"a provider and quantization with a tolerance ({known})",
            f"{provider} with {quantization}",
            "choose one of those",
        )
    return TOLERANCES[provider, quantization]


def prompt_tolerance(provider: str, quantization: str, float_products: bool) -> Tolerance:
    """The bounds for a prompt or a draft that is read at once, beside steps of the same graph.

    Args:
        float_products: whether no product rounds its activations (w8 and w4 at accuracy level 0 or 1): what is left is
            the rounding of float32, as in a graph without quantization.

    Raises:
        UserError: as for `tolerance`.
    """
    bound = tolerance(provider, quantization)
    if provider != "cpu" or quantization not in PROMPTS:
        return bound
    return tolerance(provider, "none") if float_products and quantization != "fp16" else PROMPTS[quantization]
