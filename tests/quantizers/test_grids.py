"""Grids of blocks are found from values, to the bit, and are not found in other values."""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t2r_export.checkpoints.gguf.header import TYPES
from t2r_export.quantizers.grids import BITS, FORMS, SIZES, Floats, Form, fitting, held

KINDS = gguf.GGMLQuantizationType
# bits, block size, and whether there are offsets
FORMATS = {
    "Q4_0": (4, 32, False),
    "Q4_1": (4, 32, True),
    "Q5_0": (8, 32, False),
    "Q5_1": (8, 32, True),
    "Q8_0": (8, 32, False),
    "Q2_K": (4, 16, True),
    "Q3_K": (4, 16, False),
    "Q4_K": (4, 32, True),
    "Q5_K": (8, 32, True),
    "Q6_K": (8, 16, False),
    "IQ4_NL": (8, 32, False),
    "IQ4_XS": (8, 32, False),
    "MXFP4": (8, 32, False),
    "TQ1_0": (4, 128, False),
    "TQ2_0": (4, 128, False),
}
SCALES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
}
SCALES |= {"TQ1_0": (52,), "MXFP4": (), "IQ1_M": ()}  # where a block of the file has numbers in float16; else at 0


def random_blocks(name: str, rows: int = 5, width: int = 512) -> Floats:
    """A matrix whose blocks have random bytes, and random scales and minima in float16."""
    random = np.random.default_rng(1)
    block, size = gguf.GGML_QUANT_SIZES[KINDS[name]]
    raw = random.integers(0, 256, (rows * width // block, size), np.uint8)
    for place, factor in zip(SCALES.get(name, (0,)), (0.001, 0.007), strict=False):
        numbers = random.uniform(0.5, 1.5, len(raw)) * factor * random.choice((-1, 1), len(raw))
        raw[:, place : place + 2] = numbers.astype("<f2")[:, None].view(np.uint8)
    if name == "MXFP4":
        raw[:, 0] = random.integers(110, 130, len(raw))
    if name == "IQ1_M":
        raw[:, 48:56] = random.integers(0x30, 0x3F, (len(raw), 8))
    found: Floats = gguf.quants.dequantize(raw.reshape(rows, -1), KINDS[name]).astype(np.float32)
    return found


def smallest(matrix: Floats) -> Form | None:
    """The smallest form that holds all rows."""
    whole = [form for form, fits in zip(FORMS, fitting(matrix), strict=True) if fits.all()]
    return min(whole, key=lambda form: form.bytes(matrix.shape[1]), default=None)


def restored(matrix: Floats, form: Form) -> Floats:
    """The values that the form holds, in float32."""
    levels, scales, offsets = held(matrix, form)
    assert levels.max() < 1 << form.bits
    values = (levels.astype(np.float32) - np.float32(form.middle)) * scales[..., None]
    values = values if offsets is None else values + offsets[..., None]
    return values.reshape(len(matrix), -1)[:, : matrix.shape[1]]


def test_the_docs_have_a_row_of_every_format() -> None:
    page = (Path(__file__).parents[2] / "docs" / "quantization.md").read_text("utf-8")
    rows = re.findall(r"^\| ([A-Z\d_, ]+) \| (\d .+) \|$", page, re.MULTILINE)
    found = {name: form for names, form in rows for name in names.split(", ")}
    assert found.keys() == {*TYPES} - {"F32", "F16", "BF16"}
    for name, (bits, size, offsets) in FORMATS.items():
        assert found[name] == f"{bits} bits, blocks of {size}" + ", with offsets" * offsets


@pytest.mark.parametrize("name", [name for name in TYPES if name not in ("F32", "F16", "BF16")])
def test_every_format_of_gguf_is_held_to_the_bit(name: str) -> None:
    matrix = random_blocks(name)
    form = smallest(matrix)
    assert form is not None
    if name in FORMATS:
        assert (form.bits, form.size, form.offset) == FORMATS[name]
    np.testing.assert_array_equal(restored(matrix, form), matrix)


@settings(max_examples=25)
@given(
    bits=st.sampled_from(BITS),
    size=st.sampled_from(SIZES),
    offset=st.booleans(),
    blocks=st.integers(1, 3),
    seed=st.integers(0, 1 << 32),
    power=st.integers(-40, 40),
)
def test_random_grids_are_held_to_the_bit(
    bits: int, size: int, offset: bool, blocks: int, seed: int, power: int
) -> None:
    """Scales have 8 bits and offsets 12, so that float32 holds the sums. All levels, few or a single one are used."""
    random = np.random.default_rng(seed)
    few = random.integers(1, 1 << bits, (3, blocks, 1))
    levels = random.integers(0, few + 1, (3, blocks, size)) - (0 if offset else few // 2)
    matrix = levels * random.integers(-255, 256, (3, blocks, 1)) + offset * random.integers(-4095, 4096, (3, blocks, 1))
    values: Floats = np.ldexp(matrix.reshape(3, -1).astype(np.float32), power)
    assert fitting(values)[FORMS.index(Form(bits, size, offset))].all()
    for form, fits in zip(FORMS, fitting(values), strict=True):
        if fits.any():
            np.testing.assert_array_equal(restored(values[fits], form), values[fits])


def test_other_values_are_not_held() -> None:
    random = np.random.default_rng(2)
    matrix = random.standard_normal((6, 256)).astype(np.float32)
    assert not fitting(matrix).any()
    matrix = random_blocks("Q8_0")
    assert fitting(matrix).any(0).all()
    matrix[0, 7] = np.nextafter(matrix[0, 7], np.float32(1))
    matrix[2] *= np.float32(1.1)
    matrix[3, 9] = 1e-30
    assert fitting(matrix).any(0).tolist() == [False, True, False, False, True]


def test_zeros_constants_and_widths() -> None:
    """Zeros are held; a width that is no multiple of a block only without offsets."""
    assert fitting(np.zeros((2, 56), np.float32)).any(0).all()
    constant = np.full((2, 64), -0.3, np.float32)
    for form, fits in zip(FORMS, fitting(constant), strict=True):
        if fits.all():
            np.testing.assert_array_equal(restored(constant, form), constant)
    part = random_blocks("Q4_0")[:, :56]
    assert smallest(part) == Form(4, 32, False)
    np.testing.assert_array_equal(restored(part, Form(4, 32, False)), part)
    assert smallest(random_blocks("Q4_1")[:, :56]) is None
