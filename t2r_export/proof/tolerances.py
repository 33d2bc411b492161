"""Tolerances of graphs against the eager model, by provider and quantization.

A tolerance is several times the worst measured value; see docs/parity.md. For models whose own rounding exceeds it, the
bound follows their rounding (t2r_export.proof.rounding), up to a limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from t2r_export.config.quantize import SCHEMES
from t2r_runtime.errors import UserError

REFERENCES = ("float32", "float64")  # precisions of the eager model
ROUNDING = 4.0  # allowed multiple of the model's own rounding
LIMIT = 10.0  # maximum multiple of the fixed bound; beyond, faults could not be detected


@dataclass(frozen=True)
class Tolerance:
    """Bounds for chained steps."""

    logits: float  # largest difference, see t2r_export.proof.side_by_side.logit_error
    states: float  # largest difference of a state, relative to its maximum
    greedy: float = 1.0  # minimum share of equal greedy tokens
    divergence: float = math.inf  # mean KL divergence of next tokens from the model's, in nats


def widened(fixed: float, rounding: float) -> float:
    """The bound for a model with this rounding."""
    return min(max(fixed, ROUNDING * rounding), LIMIT * fixed)


# Measured on stories260K with T2R layers and on the storyteller, on the CPU, random states and starts of texts (logits,
# state, greedy): fp16 0.25, 0.0064, 99.9 %; int8 2.4, 0.21, 94 %; int8-static 3.1, 0.27, 87 %; w8 1.3, 0.07, 95 %;
# w4 5.0, 0.31, 71 %. Coarse, because guarded denominators near zero amplify errors. The mean divergence is not: fp16
# below 1e-5, w8 0.0006, w4 0.033, int8 0.002 on the storyteller; w8 0.0047, w4 0.32, int8 0.064 on SmolLM2-135M
# (docs/real-weights.md), `keep` with one doubled product 0.27 (tests/real). t2r_export.quantizers.quality measures the
# loss on text. A scheme rounds far more than a provider's arithmetic, so all providers share its bounds.
# The parity suite checks them on every provider.
QUANTIZED = {
    "fp16": Tolerance(logits=1.0, states=0.03, greedy=0.98, divergence=0.002),
    "int8": Tolerance(logits=7.0, states=0.7, greedy=0.85, divergence=0.3),
    "int8-static": Tolerance(logits=9.0, states=0.9, greedy=0.7, divergence=0.3),
    "w8": Tolerance(logits=5.0, states=0.3, greedy=0.85, divergence=0.025),
    "w4": Tolerance(logits=15.0, states=1.0, greedy=0.5, divergence=1.0),
    "keep": Tolerance(logits=5.0, states=0.3, greedy=0.85, divergence=0.025),  # rounds as w8, and fewer weights
}
# Prompts and drafts read at once against the same tokens read by steps, on the CPU. Both round activations (w8 and w4
# to int8 inside their products, at accuracy level 4), so a difference in the last digit of a sum may round a value the
# other way. Measured on the storyteller, stories3M, stories260K and small random models
# (logits, state): fp16 0.014, 7.8e-4; w8 0.15, 0.0076; w4 0.16, 0.02; w8 and w4 at accuracy level 0 2.8e-5, 1e-6, as
# without quantization.
PROMPTS = {
    "fp16": Tolerance(logits=0.1, states=0.01),
    "w8": Tolerance(logits=1.0, states=0.1),
    "w4": Tolerance(logits=1.0, states=0.1),
    "keep": Tolerance(logits=1.0, states=0.1),
}
# Of models whose states are rounded to 8 bits, graphs against graphs (prompts, drafts, batches): a difference in the
# last digit may round numbers the other way, by a level of 127. Measured on SmolLM2-135M-Instruct with windows of 240
# (logits, state): 0.09, 0.039.
ROUNDED_ROWS = Tolerance(logits=0.5, states=0.2)
TOLERANCES: dict[tuple[str, str], Tolerance] = {
    ("cpu", "none"): Tolerance(logits=1e-4, states=1e-5),
    ("cuda", "none"): Tolerance(logits=1e-4, states=1e-5),
    ("t2r", "none"): Tolerance(logits=1e-4, states=1e-5),
    ("openvino", "none"): Tolerance(logits=1e-4, states=1e-5),
    ("webgpu", "none"): Tolerance(logits=5e-4, states=1e-4),  # a growing cache: 4.6e-5, 1.4e-5; else 1.3e-5, 8e-7
    # float16: trained models are within 0.1 and 0.005, untrained ones with small denominators within 0.7 and 0.7
    ("qnn", "none"): Tolerance(logits=1.5, states=1.0, greedy=0.9),
    ("xnnpack", "none"): Tolerance(logits=1e-4, states=1e-5),
    ("dnnl", "none"): Tolerance(logits=1e-4, states=1e-5),
    **{
        (provider, scheme): QUANTIZED[scheme]
        for provider in ("cpu", "t2r", "cuda", "openvino", "webgpu", "qnn", "xnnpack", "dnnl")
        for scheme in SCHEMES
    },
}


def tolerance(provider: str, quantization: str, rounds: bool = False) -> Tolerance:
    """Bounds for a provider and a quantization scheme.

    Args:
        rounds: whether states are rounded to integers. Each row has its own scale then, so that the scheme's error is
            relative to a row's largest value instead of the state's, and the errors of both roundings add. Measured on
            the student of SmolLM2-135M-Instruct: w8 0.41, w8 by GPTQ 0.27, keep 0.34.

    Raises:
        UserError: no tolerance was measured for the pair; lists the known pairs.
    """
    if (provider, quantization) not in TOLERANCES:
        known = ", ".join(f"{p} with {q}" for p, q in TOLERANCES)
        raise UserError(
            f"a provider and quantization with a tolerance ({known})",
            f"{provider} with {quantization}",
            "choose one of those",
        )
    found = TOLERANCES[provider, quantization]
    if rounds and quantization != "none":
        return replace(found, states=found.states + ROUNDED_ROWS.states)
    return found


def prompt_tolerance(provider: str, quantization: str, float_products: bool, rounds: bool = False) -> Tolerance:
    """Bounds for prompts and drafts read at once, against steps of the same graph.

    Args:
        float_products: whether no product rounds its activations (w8 and w4 at accuracy level 0 or 1), so that only
            float32 rounding remains.
        rounds: whether states are rounded to integers.

    Raises:
        UserError: as `tolerance`.
    """
    bound = tolerance(provider, quantization, rounds)
    if rounds and quantization == "none":
        return ROUNDED_ROWS
    if provider != "cpu" or quantization not in PROMPTS:
        return bound
    return tolerance(provider, "none") if float_products and quantization != "fp16" else PROMPTS[quantization]
