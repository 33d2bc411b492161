"""benchmarks/exporters.py compares graphs with the eager model and detects a graph of another model."""

from __future__ import annotations

from pathlib import Path

import pytest

import exporters
from t2r_export.checkpoints import checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.export import export


@pytest.mark.parametrize(
    "given, made, name",
    [
        ("past_key_values.0.key", "present.0.key", "0.key"),
        ("past.0.conv", "present.0.conv", "0.conv"),
        ("input.past_key_values.layers.0.keys", "past_key_values.layers.0.keys", "layers.0.keys"),
        ("input.cache_params.layers.1.x.0", "output.cache_params.layers.1.x.0", "cache_params.layers.1.x.0"),
    ],
)
def test_inputs_and_outputs_of_a_state_have_one_name(given: str, made: str, name: str) -> None:
    assert exporters.core(given) == exporters.core(made) == name


def test_the_reason_is_the_last_error_without_paths() -> None:
    text = 'Traceback\n  File "/home/x/y.py", line 3\nmodule.OddError: no /home/x/model.onnx here. More.\nhint'
    assert exporters.reason(text) == "module.OddError: no …/model.onnx here"
    assert exporters.reason("") == "no message"


def test_a_graph_of_another_model_differs(tmp_path: Path) -> None:
    folder = exporters.write_model("Mistral, window of 6", tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    export(checkpoint.load(folder), out / "model.onnx", ExportConfig(prefill=True))
    *lengths, steps, texts, sizes = exporters.compared("t2r", out, folder)
    assert max(map(float, [*lengths, steps, texts.split(",")[0]])) < 1e-4
    assert len(set(sizes.replace(",", "").split())) == 1  # a window has a fixed size
    other = exporters.write_model("Llama", tmp_path)
    *lengths, steps, _, _ = exporters.compared("t2r", out, other)
    assert float(lengths[-1]) > 1e-2 < float(steps)
