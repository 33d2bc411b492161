"""Low-rank adapters chosen by name: libt2r compared with t2r_runtime, and refusals."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from cpp_build import GOLDEN
from t2r_library import Decoder, Failed, Library, Tensor

import t2r_runtime
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.weights import assemble
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.export import ExportConfig
from t2r_export.config.mixers import LinearConfig, WindowConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.export import export
from t2r_export.model.initialize import initialize
from t2r_export.model.transformer import Transformer

NAMES = ("legal", "poems-2")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    heads = HeadsConfig(heads=4, kv_heads=2, head_size=6)
    layers = (LinearConfig(5), WindowConfig(window=3))
    config = UniformConfig(
        vocab_size=17, width=14, layers=layers, attention=heads, ffn_size=11, position="rotary", bos_token=1
    )
    whole = initialize(config.build(), seed=3).eval()
    generator = torch.Generator().manual_seed(5)

    def changed(rank: int) -> Transformer:
        weights = dict(whole.state_dict())
        for name in (
            n for n in weights if n.endswith((".q.weight", ".v.weight", ".down.weight")) and weights[n].ndim == 2
        ):
            rows, columns = weights[name].shape
            outer = torch.randn(rows, rank, generator=generator)
            weights[name] = weights[name] + 0.3 * outer @ torch.randn(rank, columns, generator=generator)
        return assemble(whole.config, weights)

    path = tmp_path_factory.mktemp("adapters") / "g.onnx"
    models = {name: changed(rank) for rank, name in enumerate(NAMES, 1)}
    given = {name: lambda model=model: model for name, model in models.items()}
    export(checkpoint.made(whole, None, {}), path, ExportConfig(prefill=True), adapters=given)
    return path


def test_rows_are_those_of_python(graph: Path, library: Library, tmp_path: Path) -> None:
    """By steps and by the prefill graph; rows keep their adapters when they move, and in a snapshot."""
    ours, theirs = Decoder(library, graph), t2r_runtime.Decoder(graph, threads=1)
    ids = np.random.default_rng(1).integers(0, 17, (3, 11))
    seen = []
    for names in ([None, None, None], ["poems-2", None, "legal"], ["legal", "legal", "poems-2"]):
        ours.reset(3)
        theirs.reset(3)
        assert (ours.states()["adapter"] == 0).all()
        ours.adapt(*names)
        theirs.adapt(names)
        for part in (ids[:, :6], ids[:, 6:7]):
            received = ours.prefill(part.tolist())
            np.testing.assert_allclose(received, theirs.prefill(part), atol=1e-5)
        ours.reorder([2, 0, 1])
        theirs.reorder([2, 0, 1])
        received = ours.step(ids[:, 7].tolist())
        np.testing.assert_allclose(received, theirs.step(ids[:, 7]), atol=1e-5)
        seen.append(received)
    assert np.abs(seen[0] - seen[1]).max(1).min() == 0 and np.abs(seen[0] - seen[2]).max(1).min() > 1e-2
    ours.adapt("legal")
    theirs.adapt("legal")
    ours.save(tmp_path / "s.state")
    theirs.load_state(tmp_path / "s.state")
    np.testing.assert_allclose(ours.step([4] * 3), theirs.step([4] * 3), atol=1e-5)
    assert (theirs.state()["adapter"] == 1).all()


def test_what_is_refused(graph: Path, library: Library) -> None:
    decoder = Decoder(library, graph)
    decoder.reset(2)
    decoder.adapt("legal", "poems-2")
    for names, message in (
        (["prose"], "argument: expected an adapter of this graph: legal, poems-2; received prose; use one of those"),
        (
            ["legal"] * 3,
            "argument: expected one name of an adapter, or one per sequence: 2; received 3; pass one for each",
        ),
    ):
        with pytest.raises(Failed, match=message):
            decoder.adapt(*names)
    assert decoder.states()["adapter"].tolist() == [1, 2]
    given = (Tensor * decoder.info.states)()
    for index, state in enumerate(given):
        library.call("t2r_state", decoder.handle, ctypes.c_size_t(index), ctypes.byref(state))
    numbers = np.array([0, 3], np.int32)
    [chosen] = [state for state in given if state.name == b"adapter"]
    chosen.data = numbers.ctypes.data
    with pytest.raises(Failed, match="snapshot: expected numbers of adapters in 0 … 2; received 3"):
        library.call("t2r_set_states", decoder.handle, given, ctypes.c_size_t(len(given)), ctypes.c_int64(0))
    without = Decoder(library, GOLDEN / "tiny.onnx")
    without.adapt(None)
    with pytest.raises(Failed, match="argument: expected a graph with adapters; received legal; export it with"):
        without.adapt("legal")


@pytest.mark.parametrize("names", [[], ["a", "a"], ["-a"], ["a b"], [""], ["x" * 65], [3], ["x"] * 1025, {"a": 1}])
def test_malformed_names(names: Any, graph: Path, library: Library, tmp_path: Path) -> None:
    model = onnx.load(graph, load_external_data=True)
    entries = {entry.key: entry.value for entry in model.metadata_props}
    onnx.helper.set_model_props(model, {**entries, "t2r.adapters": json.dumps(names), "t2r.graphs": "{}"})
    onnx.save(model, tmp_path / "g.onnx")
    with pytest.raises(Failed, match="metadata: expected"):
        Decoder(library, tmp_path / "g.onnx")
