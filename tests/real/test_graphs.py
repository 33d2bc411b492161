"""Graphs in float32 and quantized, against the imported model and against themselves."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import faults
from real.conftest import TOKENS, Graphs
from t2r_export.proof.side_by_side import divergence, logit_error
from t2r_export.proof.tolerances import Tolerance, prompt_tolerance, tolerance, widened
from t2r_runtime import Decoder, UserError

Logits = NDArray[np.float32]

LENGTHS = (1, 2, 63, 64, 65, 300, TOKENS)
TAKEN = {"cpu": ("none", "keep", "w8", "w4", "int8"), "t2r": ("none", "keep", "w8", "w4")}
CASES = [(provider, scheme) for provider, schemes in TAKEN.items() for scheme in schemes]
FAULTS = {
    "a product's scales are off by 2": faults.doubled("blocks.14.parts.0.q_k_v.product"),
    "two layers exchange matrices": faults.swap_outputs(
        "blocks.14.parts.1.gate_up.weight.transposed_Q4", "blocks.15.parts.1.gate_up.weight.transposed_Q4"
    ),
    "values are reset": faults.unread("v.0"),
}


def opened(graphs: Graphs, provider: str, scheme: str) -> Decoder:
    if provider == "t2r" and importlib.util.find_spec("onnxruntime_ep_t2r") is None:
        pytest.skip("the execution provider t2r is not installed")
    return Decoder(graphs(scheme), provider=provider, threads=1)


def fitting(bound: Tolerance, scheme: str, rounding: float) -> Tolerance:
    """The bound as `t2r verify` widens it: float32 graphs may round as much as the model."""
    return replace(bound, logits=widened(bound.logits, rounding)) if scheme == "none" else bound


def within(found: Logits, expected: Logits, scheme: str, bound: Tolerance) -> bool:
    """Whether the logits of steps are within a tolerance; prints them."""
    expected = expected[: len(found)]
    error, equal = logit_error(found, expected, scheme), found.argmax(-1) == expected.argmax(-1)
    nats = sum(map(divergence, found, expected)) / len(found)
    print(f"a logit is {error:.3g} off, {equal.mean():.1%} of greedy tokens equal, KL {nats:.3g}; {bound};", end=" ")
    print(f"{equal[:65].mean():.1%} of the first 65 tokens equal")
    return bool(error <= bound.logits and equal.mean() >= bound.greedy and nats <= bound.divergence)


@pytest.mark.parametrize("provider, scheme", CASES)
def test_steps_are_the_model_and_prompts_are_steps(
    provider: str, scheme: str, graphs: Graphs, tokens: list[int], logits: Logits, rounding: float
) -> None:
    decoder = opened(graphs, provider, scheme)
    steps = np.concatenate([decoder.step(token) for token in tokens])
    assert within(steps, logits, scheme, fitting(tolerance(provider, scheme), scheme, rounding))
    if scheme == "int8":
        return  # without a prefill graph
    bound, errors = fitting(prompt_tolerance(provider, scheme, float_products=False), scheme, rounding), {}
    for length in LENGTHS:
        decoder.reset()
        errors[length] = logit_error(decoder.prefill(tokens[:length])[0], steps[length - 1], scheme)
    print("prompts", errors, "bound", bound.logits)
    assert max(errors.values()) <= bound.logits


def test_own_provider_refuses_int8(graphs: Graphs) -> None:
    with pytest.raises(UserError, match="every node on t2r"):
        opened(graphs, "t2r", "int8")


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_graph_is_beyond_the_tolerance(fault: str, graphs: Graphs, tokens: list[int], logits: Logits) -> None:
    decoder = Decoder(faults.inject(graphs("keep"), FAULTS[fault]), threads=1)
    found = np.concatenate([decoder.step(token) for token in tokens[:40]])
    assert not within(found, logits, "keep", tolerance("cpu", "keep"))


def test_a_saved_session_goes_on(graphs: Graphs, tokens: list[int], tmp_path: Path) -> None:
    first, second = Decoder(graphs("keep")), Decoder(graphs("keep"))
    first.prefill(tokens[:40])
    first.save_state(tmp_path / "saved.state", token=tokens[40])
    token = second.load_state(tmp_path / "saved.state")
    assert token == tokens[40]
    for following in (token, *tokens[41:44]):
        np.testing.assert_array_equal(first.step(following), second.step(following))
