"""Profiles per operator and per matrix product."""

from __future__ import annotations

from typing import Any

import onnxruntime as ort
import pytest

from comparison.profile import bench_profile
from comparison.tables import profile_tables
from t2r_export.config.model import ModelConfig
from t2r_runtime.errors import UserError

pytestmark = pytest.mark.slow


@pytest.fixture
def found(tiny: ModelConfig) -> dict[str, Any]:
    return bench_profile("tiny", ["t2r:float32", "t2r:w4:target=fused"], threads=1, steps=5)


def test_profile_shares_add_up(found: dict[str, Any]) -> None:
    for profile in found["profiles"]:
        total = sum(share["microseconds"] for share in profile["operators"])
        assert total == pytest.approx(profile["step"]) if profile["profiler"] else total <= profile["step"]
    plain, fused = ({s["name"]: s for s in profile["operators"]} for profile in found["profiles"])
    assert plain["Gemm"]["nodes"] == 3 * 4 + 1  # q|k|v, o, gate|up and down of three layers, and the head
    assert fused["LinearAttention"]["nodes"] == 3 * 2  # S and z of three layers


def test_profile_bytes_of_products(found: dict[str, Any], tiny: ModelConfig) -> None:
    plain, blocks = ({s["name"]: s for s in profile["products"]} for profile in found["profiles"])
    down = tiny.width * tiny.ffn_size
    assert plain["parts.1.down"]["nodes"] == blocks["parts.1.down_Q4"]["nodes"] == 3
    assert plain["parts.1.down"]["bytes"] == 3 * 4 * down
    assert blocks["parts.1.down_Q4"]["bytes"] == 3 * (down // 2 + 4 * down // 32)


def test_profile_tables(found: dict[str, Any]) -> None:
    tables = profile_tables(found)
    assert tables["operators"].head == ["", "t2r:float32", "t2r:w4:target=fused"]
    rows = {row[0]: row[1:] for row in tables["operators"].rows}
    assert rows["LinearAttention"][0] == "-"
    assert rows["LinearAttention"][1].endswith("(6)")
    assert rows["a whole step"] == [f"{profile['step']:.0f}" for profile in found["profiles"]]
    assert all(cell == "-" or "GB/s" in cell for row in tables["products"].rows for cell in row[1:])


def test_only_t2r_graphs_are_profiled() -> None:
    with pytest.raises(UserError) as error:
        bench_profile("smollm-135m", ["genai:int4"], threads=1)
    assert "genai:int4" in str(error.value)


def test_profiler_kernel_names(found: dict[str, Any]) -> None:
    assert sum(share["nodes"] for share in found["profiles"][0]["operators"]) > 20, ort.__version__
