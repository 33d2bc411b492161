"""Compiled graphs equal their source, or the provider cannot compile."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import small
from parity.setups import PROVIDER, WANTED, opened
from parity.test_parity import saved, verified
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.export import export
from t2r_export.providers.compile import compile_graph
from t2r_export.quantize import quantize
from t2r_runtime import PROVIDERS, UserError

if PROVIDERS[PROVIDER].compiles:

    @pytest.mark.parametrize("name", ["learned", "sinusoidal", "rotary_keep"])
    def test_compiled_is_uncompiled(name: str, tmp_path: Path) -> None:
        export(saved(name, tmp_path / "model.pt"), tmp_path / "model.onnx", WANTED.config)
        report = compile_graph(tmp_path / "model.onnx", tmp_path / "compiled.onnx", PROVIDER)
        assert (report.programs, report.placement.keys()) == (1, {PROVIDER})
        assert sorted(file.name for file in tmp_path.iterdir()) == ["compiled.onnx", "model.onnx", "model.pt"]
        plain, compiled = opened(tmp_path / "model.onnx"), opened(tmp_path / "compiled.onnx")
        assert compiled.signature == plain.signature
        assert compiled.placement == {PROVIDER: 1}
        tokens = np.random.default_rng(0).integers(0, small.VOCABULARY, 40)
        for token in tokens:
            np.testing.assert_array_equal(compiled.step([token]), plain.step([token]))
        for state, value in plain.state().items():
            np.testing.assert_array_equal(compiled.state()[state], value)

    def test_compiled_is_the_model(tmp_path: Path) -> None:
        loaded = saved("learned", tmp_path / "model.pt")
        export(loaded, tmp_path / "model.onnx", WANTED.config)
        compile_graph(tmp_path / "model.onnx", tmp_path / "compiled.onnx", PROVIDER)
        report = verified(loaded, tmp_path / "compiled.onnx", steps=32)
        assert report.passed and report.same_checkpoint

    def test_compiled_from_whole_numbers(tmp_path: Path) -> None:
        export(saved("rotary_keep", tmp_path / "model.pt"), tmp_path / "model.onnx", WANTED.config)
        np.save(tmp_path / "text.npy", np.random.default_rng(0).integers(0, small.VOCABULARY, 1100))
        config = QuantizeConfig(
            scheme="int8-static", calibrate=tmp_path / "text.npy", calibrate_steps=64, activation_bits=16
        )
        quantize(tmp_path / "model.onnx", tmp_path / "small.onnx", config)
        compile_graph(tmp_path / "small.onnx", tmp_path / "compiled.onnx", PROVIDER)
        plain, compiled = opened(tmp_path / "small.onnx"), opened(tmp_path / "compiled.onnx")
        assert compiled.signature.quantization == "int8-static"
        for token in (3, 1, 4, 1, 5):
            np.testing.assert_array_equal(compiled.step([token]), plain.step([token]))

    def test_what_is_compiled_stays_so(tmp_path: Path) -> None:
        export(saved("learned", tmp_path / "model.pt"), tmp_path / "model.onnx", WANTED.config)
        compile_graph(tmp_path / "model.onnx", tmp_path / "compiled.onnx", PROVIDER)
        with pytest.raises(UserError, match="which is compiled already; compile its source"):
            compile_graph(tmp_path / "compiled.onnx", tmp_path / "again.onnx", PROVIDER)
        with pytest.raises(UserError, match="received a compiled one; quantize its source, then compile that"):
            quantize(tmp_path / "compiled.onnx", tmp_path / "small.onnx", QuantizeConfig(scheme="w8"))
        damaged = onnx.load(tmp_path / "compiled.onnx")
        (program,) = (a for a in damaged.graph.node[0].attribute if a.name == "ep_cache_context")
        program.s = program.s[:1000]
        onnx.save(damaged, tmp_path / "damaged.onnx")
        with pytest.raises(UserError, match="expected an ONNX graph that "):
            opened(tmp_path / "damaged.onnx")

else:

    def test_cannot_be_compiled(tmp_path: Path) -> None:
        export(saved("learned", tmp_path / "model.pt"), tmp_path / "model.onnx", WANTED.config)
        with pytest.raises(UserError, match=f"can save programs, one of qnn; received {PROVIDER}; choose one of those"):
            compile_graph(tmp_path / "model.onnx", tmp_path / "compiled.onnx", PROVIDER)
        assert not (tmp_path / "compiled.onnx").exists()
