"""The file that is streamed weight by weight is the file that onnx would have written at once."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

import small
from t2r_export.graph import file as graph_file
from t2r_export.graph.bundle import Bundle
from t2r_export.graph.file import write
from t2r_export.graph.reader import load, read
from t2r_export.graph.weights import Weight, refer, values
from t2r_runtime.contract.signature import STEP, Signature
from t2r_runtime.errors import UserError

SHAPES = {"first": (3, 100), "second": (100, 300), "third": (300,)}  # none small enough to stay in a graph


SIGNATURE = Signature(
    states=(), vocab_size=300, bos_token=None, eos_tokens=(), batch=None, max_positions=None, past_end="refuse",
    state_layout="layers", layers=(), target="portable", quantization="none", checkpoint_sha256="", producer="test",
    tokenizer=None, top_k=None, role=STEP, graphs={},
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def without_trial() -> Iterator[None]:
    """Only a form of file is tested here, on graphs that are no steps: test_trial has what runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_file, "run_once", lambda path: None)
        yield


def weights(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def message() -> onnx.ModelProto:
    """x @ first @ second + third, without the weights."""
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["a"]),
        helper.make_node("MatMul", ["a", "second"], ["b"]),
        helper.make_node("Add", ["b", "third"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 300])],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10, producer_name="test", producer_version="1"
    )


NOTES = {"note": "ünïcödé"}


def write_graph(
    values: Mapping[str, Weight], path: Path, external_bytes: int = graph_file.EXTERNAL_BYTES
) -> list[Path]:
    """A bundle of one graph, written; its files."""
    model = message()
    model.graph.initializer.extend(refer(name, weight) for name, weight in values.items())
    return write(Bundle(model, SIGNATURE, dict(values), notes=NOTES), path, external_bytes)[0]


def naive(values: dict[str, Tensor]) -> onnx.ModelProto:
    model = message()
    model.graph.initializer.extend(numpy_helper.from_array(w.detach().numpy(), name) for name, w in values.items())
    helper.set_model_props(model, {**SIGNATURE.to_metadata(), **NOTES})
    return model


def computes(path: Path, values: dict[str, Tensor]) -> bool:
    """Whether ONNX Runtime reads this file as the function of these weights."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (y,) = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    expected = torch.from_numpy(x) @ values["first"] @ values["second"] + values["third"]
    return bool(np.allclose(y, expected.detach().numpy(), rtol=1e-5, atol=1e-4))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_inline_is_what_onnx_would_write(tmp_path: Path) -> None:
    path = tmp_path / "g.onnx"
    assert write_graph(weights(), path) == [path]
    read = onnx.load(path)
    assert read == naive(weights())
    assert path.stat().st_size == len(naive(weights()).SerializeToString())
    onnx.checker.check_model(read, full_check=True)
    assert computes(path, weights())
    assert names(tmp_path) == {"g.onnx"}


@pytest.mark.parametrize("external_bytes", [1, graph_file.EXTERNAL_BYTES])
def test_metadata_stand_before_the_graph(external_bytes: int, tmp_path: Path) -> None:
    """In every file: a runtime reads them without a parser of ONNX."""
    _, report = small.graph(tmp_path / "g.onnx", "window", prefill=True, generate=True)
    graphs = [path for path in report.files if path.suffix == ".onnx"]
    assert len(graphs) == 3
    graphs += write_graph(weights(), tmp_path / "w.onnx", external_bytes)[:1]
    for path in graphs:
        fields = field_numbers(path.read_bytes())
        assert fields[-1] == 7
        assert fields.count(7) == 1
        assert fields.count(14) == len(onnx.load(path, load_external_data=False).metadata_props) > 10


def field_numbers(content: bytes) -> list[int]:
    """Of the fields of a protobuf message, in their order."""

    def varint() -> int:
        nonlocal at
        number = shift = 0
        while True:
            byte, at = content[at], at + 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    at, fields = 0, []
    while at < len(content):
        tag = varint()
        fields.append(tag >> 3)
        assert tag & 7 in (0, 2)
        length = varint()
        at += length if tag & 7 == 2 else 0
    assert at == len(content)
    return fields


@pytest.mark.parametrize("external_bytes", [1, graph_file.EXTERNAL_BYTES])
def test_parts_are_stored_as_one(external_bytes: int, tmp_path: Path) -> None:
    whole = weights()
    stacked = {"first": (whole["first"][:1], whole["first"][1:].T.contiguous().T), "second": whole["second"]}
    write_graph(stacked | {"third": tuple(whole["third"].split(130))}, tmp_path / "g.onnx", external_bytes)
    assert onnx.load(tmp_path / "g.onnx").graph.initializer[0].dims == [3, 100]
    assert computes(tmp_path / "g.onnx", whole)


@settings(max_examples=25)
@given(
    st.dictionaries(st.text("abcß.", min_size=1, max_size=200), st.lists(st.integers(0, 40), max_size=3), max_size=4)
)
def test_any_names_and_sizes(shapes: dict[str, list[int]]) -> None:
    """Lengths in the file are written in 7-bit groups, so sizes on both sides of 128 and 16,384 bytes."""
    values = {name: torch.arange(float(np.prod(shape))).reshape(shape) for name, shape in shapes.items()}
    with pytest.MonkeyPatch.context() as patch:
        written = bytearray()
        patch.setattr(graph_file, "replacing", lambda path: _Memory(written))
        patch.setattr(graph_file, "open", lambda *_: _Sink(written), raising=False)
        write_graph(values, Path("g.onnx"))
    assert onnx.load_from_string(bytes(written)) == naive(values)


class _Memory:
    def __init__(self, data: bytearray) -> None:
        self.data = data

    def __enter__(self) -> str:
        return "part"

    def __exit__(self, *_: Any) -> None:
        pass


class _Sink(_Memory):
    def __enter__(self) -> Any:
        return self

    def write(self, data: Any) -> None:
        self.data.extend(data)

    def writelines(self, pieces: Any) -> None:
        for piece in pieces:
            self.write(piece)


@pytest.mark.parametrize("wide", [torch.float64, torch.bfloat16])
def test_weights_are_stored_as_float32(wide: torch.dtype, tmp_path: Path) -> None:
    values = {name: w.to(wide).requires_grad_() for name, w in weights().items()}
    values["second"] = values["second"].T.contiguous().T  # not contiguous
    write_graph(values, tmp_path / "g.onnx")
    assert onnx.load(tmp_path / "g.onnx") == naive({name: w.detach().float() for name, w in values.items()})


def test_external_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "g.onnx"
    sizes = sorted(4 * w.numel() for w in weights().values())
    size, large = sum(sizes), sizes[-1]
    monkeypatch.setattr(graph_file, "_LARGE", large)
    assert write_graph(weights(), path, external_bytes=size) == [path]
    graph, data = write_graph(weights(), path, external_bytes=size - 1)
    assert graph == path
    assert data.parent == tmp_path
    assert data.name.startswith("g.onnx.")
    assert data.suffix == ".data"
    read = onnx.load(path)
    for tensor in read.graph.initializer:
        tensor.ClearField("data_location")  # written out by onnx.load though it is the default
    assert read == naive(weights())
    onnx.checker.check_model(str(path), full_check=True)
    places = {
        t.name: {e.key: e.value for e in t.external_data}
        for t in onnx.load(path, load_external_data=False).graph.initializer
    }
    assert {place["location"] for place in places.values()} == {data.name}
    for place in places.values():
        assert int(place["offset"]) % (4096 if int(place["length"]) >= large else 64) == 0
    assert any(int(place["offset"]) % 4096 for place in places.values())
    assert computes(path, weights())


def test_the_same_weights_give_the_same_files(tmp_path: Path) -> None:
    first = [p.read_bytes() for p in write_graph(weights(), tmp_path / "g.onnx", 1)]
    files = write_graph(weights(), tmp_path / "g.onnx", 1)
    assert [p.read_bytes() for p in files] == first
    assert names(tmp_path) == {p.name for p in files}


def test_old_data_leaves_with_its_graph(tmp_path: Path) -> None:
    path = tmp_path / "g.onnx"
    neighbours = ["h.onnx", "g.onnx.notes", "xg.onnx", "g.onnx2"]
    for name in neighbours:
        write_graph(weights(), tmp_path / name, 1)
    kept = names(tmp_path)
    old, new = (write_graph(weights(seed), path, 1)[1] for seed in (1, 2))
    assert old != new
    assert names(tmp_path) == kept | {path.name, new.name}
    assert computes(path, weights(2))
    write_graph(weights(3), path)
    assert names(tmp_path) == kept | {path.name}, "a graph with its weights inside needs no file beside it"


def test_a_name_is_not_a_pattern(tmp_path: Path) -> None:
    other = write_graph(weights(1), tmp_path / "g1.onnx", 1)
    write_graph(weights(2), tmp_path / "g[12].onnx", 1)
    write_graph(weights(3), tmp_path / "*.onnx", 1)
    assert all(file.is_file() for file in other)
    assert computes(tmp_path / "g1.onnx", weights(1))


class Full:
    """A disk with room for some more weights."""

    def __init__(self, room: int) -> None:
        self.room, self.right = room, graph_file.parts

    def __call__(self, weight: Tensor) -> memoryview:
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.right(weight)


def rooms(external: bool) -> Iterator[tuple[int, int]]:
    # outside: three weights are read for their digest, and three written
    yield from ((room, 1 if external else graph_file.EXTERNAL_BYTES) for room in range(6 if external else 3))


@pytest.mark.parametrize("room, external_bytes", [*rooms(False), *rooms(True)])
@pytest.mark.parametrize("old_external", [False, True])
def test_a_full_disk_leaves_the_old_file(
    room: int, external_bytes: int, old_external: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "g.onnx"
    write_graph(weights(1), path, 1 if old_external else graph_file.EXTERNAL_BYTES)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    monkeypatch.setattr(graph_file, "parts", Full(room))
    with pytest.raises((UserError, OSError), match="No space left on device"):
        write_graph(weights(2), path, external_bytes)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert computes(path, weights(1))


def test_a_disk_that_fills_up_at_the_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new weights stood beside the old ones then."""
    path = tmp_path / "g.onnx"
    _, old = write_graph(weights(1), path, 1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(graph_file, "_write_inline", full)
        with pytest.raises(UserError) as caught:
            write_graph(weights(2), path, 1)
    assert str(caught.value) == (
        f"expected to be able to write {path}; received No space left on device; "
        "choose another place, or make room there"
    )
    assert names(tmp_path) == {path.name, old.name}
    assert computes(path, weights(1))
    _, new = write_graph(weights(3), path, 1)
    assert names(tmp_path) == {path.name, new.name}


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected to be able to write .*nowhere/g.onnx; received No such file or dir"):
        write_graph(weights(), tmp_path / "nowhere" / "g.onnx")
    with pytest.raises(UserError, match="expected a file name to write to; received the folder .*; name a file inside"):
        write_graph(weights(), tmp_path)


class TestReading:
    def test_what_was_written(self, tmp_path: Path) -> None:
        for external_bytes in (1, graph_file.EXTERNAL_BYTES):
            write_graph(weights(), tmp_path / "g.onnx", external_bytes)
            bundle = read(tmp_path / "g.onnx")
            assert (bundle.signature, dict(bundle.companions)) == (SIGNATURE, {})
            for tensor in bundle.step.graph.initializer:
                np.testing.assert_array_equal(values(tensor, bundle.weights), weights()[tensor.name])
            write(bundle, tmp_path / "h.onnx")
            assert computes(tmp_path / "h.onnx", weights())

    def test_over_itself(self, tmp_path: Path) -> None:
        """Its weights are mapped from the file that the writer takes away at the end."""
        path = tmp_path / "g.onnx"
        write_graph(weights(), path, 1)
        write(read(path), path)
        assert names(tmp_path) == {path.name}
        assert computes(path, weights())

    def test_with_companions(self, tmp_path: Path) -> None:
        _, report = small.graph(tmp_path / "g.onnx", "rotary_keep", prefill=True, generate=True)
        bundle = read(tmp_path / "g.onnx")
        assert bundle.companions.keys() == {"prefill", "generate"}
        assert [file.name for file in write(bundle, tmp_path / "g.onnx")[0]] == [f.name for f in report.files]
        lost = report.files[-1]
        lost.unlink()
        with pytest.raises(UserError, match=f"expected the .* graph; received .*{lost.name}"):
            read(tmp_path / "g.onnx")

    def test_no_weights(self, tmp_path: Path) -> None:
        graph, data = write_graph(weights(), tmp_path / "g.onnx", 1)
        data.write_bytes(data.read_bytes()[:-1])
        with pytest.raises(
            UserError, match=f"expected the weights of {graph} in {data}; received mmap length is great"
        ):
            read(graph)
        data.unlink()
        with pytest.raises(UserError, match=f"in {data}; received .*No such file or directory"):
            read(graph)

    def test_no_files_elsewhere(self, tmp_path: Path) -> None:
        """Nor one that a stranger's graph names by a path, and no text for numbers."""
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
    def test_no_graph(self, content: bytes, tmp_path: Path) -> None:
        (tmp_path / "g.onnx").write_bytes(content)
        with pytest.raises(UserError):
            read(tmp_path / "g.onnx")
        with pytest.raises(UserError, match="expected an ONNX file; received .*none.onnx, which does not exist"):
            load(tmp_path / "none.onnx")


def test_the_check_comes_before_the_name(tmp_path: Path) -> None:
    path = tmp_path / "g.onnx"
    model = message()
    model.graph.initializer.extend(refer(name, weight) for name, weight in weights(2).items())
    bundle = Bundle(model, SIGNATURE, dict(weights(2)))
    write_graph(weights(1), path)

    def refuse(part: Path) -> None:
        assert computes(part, weights(2))
        assert computes(path, weights(1))
        raise UserError("another", "this", "stop")

    for external_bytes in (1, graph_file.EXTERNAL_BYTES):
        with pytest.raises(UserError, match="expected another"):
            write(bundle, path, external_bytes, refuse)
        assert names(tmp_path) == {path.name}
        assert computes(path, weights(1))
