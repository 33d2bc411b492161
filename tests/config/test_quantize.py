"""Quantization options that a scheme does not accept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from t2r_export.config.quantize import QuantizeConfig
from t2r_runtime.errors import UserError


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"scheme": "int1"},
            "expected a scheme of fp16, int8, int8-static, w8, w4, keep; received 'int1'; did you mean int8?",
        ),
        (
            {"scheme": "w4", "block_size": 33},
            "expected block_size to be one of 16, 32, 64, 128, 256; received 33; choose one of those for block_size",
        ),
        (
            {"scheme": "w4", "accuracy_level": 5},
            "expected accuracy_level to be one of 0, 1, 2, 3, 4; received 5; choose one of those for accuracy_level",
        ),
        (
            {"scheme": "int8-static", "activation_bits": 4},
            "expected activation_bits to be one of 8, 16; received 4; choose one of those for activation_bits",
        ),
        (
            {"scheme": "int8", "block_size": 32, "accuracy_level": 4, "calibrate": Path("x"), "activation_bits": 16},
            "expected options that int8 takes (activation_error); received block_size, accuracy_level, calibrate, "
            "activation_bits; leave them out",
        ),
        (
            {"scheme": "int8-static", "asymmetric": True, "head_bits": 4, "embedding_bits": 8},
            "expected options that int8-static takes (calibrate_steps, activation_bits, calibrate); received "
            "asymmetric, head_bits, embedding_bits; leave them out",
        ),
        (
            {"scheme": "w4", "calibrate_steps": 3},
            "expected options that w4 takes (block_size, asymmetric, accuracy_level, activation_error, rounding, "
            "head_bits, embedding_bits, budget); received calibrate_steps; leave them out",
        ),
        (
            {"scheme": "w4", "head_bits": 2},
            "expected head_bits to be one of 4, 8; received 2; choose one of those for head_bits",
        ),
        (
            {"scheme": "w4", "embedding_bits": 0},
            "expected embedding_bits to be one of 4, 8; received 0; choose one of those for embedding_bits",
        ),
        (
            {"scheme": "int8-static", "calibrate_steps": 0},
            "expected calibrate_steps to be an integer from 1 to 1048576; received 0; correct calibrate_steps",
        ),
        (
            {"scheme": "w4", "budget": "9x"},
            "expected a budget in bytes: 4096, 64k or 1.5M; received '9x'; correct the budget",
        ),
        ({"scheme": "w4", "budget": 9}, "expected a text to calibrate w4 on; received none; name one with --calibrate"),
        (
            {"scheme": "w8", "budget": 9},
            "expected options that w8 takes (block_size, asymmetric, accuracy_level, activation_error, rounding, "
            "head_bits, embedding_bits, calibrate); received budget; leave them out",
        ),
        (
            {"scheme": "w4", "budget": 9, "head_bits": 4},
            "expected budget without block_size and head_bits; received both; leave one out",
        ),
        (
            {"scheme": "int8-static"},
            "expected a text to calibrate int8-static on; received none; name one with --calibrate",
        ),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        QuantizeConfig(**options)
    assert str(caught.value) == message
