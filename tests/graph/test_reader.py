"""What is read is what was written; anything else is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import small
from graph.written import SIGNATURE, computes, names, weights, write_graph
from t2r_export.graph import file as graph_file
from t2r_export.graph.file import write
from t2r_export.graph.reader import load, read
from t2r_export.graph.weights import values
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError

pytestmark = pytest.mark.usefixtures("without_trial")


def test_what_was_written(tmp_path: Path) -> None:
    for external_bytes in (1, graph_file.EXTERNAL_BYTES):
        write_graph(weights(), tmp_path / "g.onnx", external_bytes)
        bundle = read(tmp_path / "g.onnx")
        assert (bundle.signature, dict(bundle.companions)) == (SIGNATURE, {})
        for tensor in bundle.step.graph.initializer:
            np.testing.assert_array_equal(values(tensor, bundle.weights), weights()[tensor.name])
        write(bundle, tmp_path / "h.onnx")
        assert computes(tmp_path / "h.onnx", weights())


def test_over_itself(tmp_path: Path) -> None:
    """Weights are mapped from the file that the writer removes at the end."""
    path = tmp_path / "g.onnx"
    write_graph(weights(), path, 1)
    write(read(path), path)
    assert names(tmp_path) == {path.name}
    assert computes(path, weights())


def test_with_companions(tmp_path: Path) -> None:
    _, report = small.graph(tmp_path / "g.onnx", "rotary_keep", prefill=True)
    bundle = read(tmp_path / "g.onnx")
    assert bundle.companions.keys() == {"prefill"}
    assert [file.name for file in write(bundle, tmp_path / "g.onnx")[0]] == [f.name for f in report.files]
    lost = report.files[-1]
    lost.unlink()
    with pytest.raises(UserError, match=f"expected the .* graph; received .*{lost.name}"):
        read(tmp_path / "g.onnx")


def test_a_companion_of_an_unknown_role(tmp_path: Path) -> None:
    """A runtime ignores it; the reader refuses the graph."""
    made = small.graph(tmp_path / "g.onnx", prefill=True)[1].files[0]
    step = load(made)
    (said,) = (entry for entry in step.metadata_props if entry.key == "t2r.graphs")
    said.value = json.dumps({**json.loads(said.value), "generate": "none.onnx"})
    onnx.save(step, made)
    assert Decoder(made).prefill([1, 2]).shape[0] == 1
    with pytest.raises(UserError) as caught:
        read(made)
    assert str(caught.value) == (
        "expected companions of the roles prefill, encoder, draft_check; received a graph with one of the role "
        "generate; export the model again"
    )


def test_no_weights(tmp_path: Path) -> None:
    graph, data = write_graph(weights(), tmp_path / "g.onnx", 1)
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(UserError, match=f"expected the weights of {graph} in {data}; received mmap length is great"):
        read(graph)
    data.unlink()
    with pytest.raises(UserError, match=f"in {data}; received .*No such file or directory"):
        read(graph)


def test_no_files_elsewhere(tmp_path: Path) -> None:
    """Refuses a path to another folder in a graph, and strings as weights."""
    (tmp_path / "folder").mkdir()
    graph, data = write_graph(weights(), tmp_path / "folder" / "g.onnx", 1)
    data.rename(tmp_path / data.name)
    model = onnx.load(graph, load_external_data=False)
    model.graph.initializer[0].external_data[0].value = f"../{data.name}"
    graph.write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match=f"in {data}; received .*No such file or directory"):
        read(graph)
    model.graph.initializer[0].data_type = TensorProto.STRING
    graph.write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match="received text instead of numbers; export the model again"):
        read(graph)


@pytest.mark.parametrize("content", [b"", b"no graph", b"\x0a\xff"])
def test_no_graph(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "g.onnx").write_bytes(content)
    with pytest.raises(UserError):
        read(tmp_path / "g.onnx")
    with pytest.raises(UserError, match="expected an ONNX file; received .*none.onnx, which does not exist"):
        load(tmp_path / "none.onnx")
