"""Foreign graphs: each gives a one-line error."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from runtime import graphs
from t2r_runtime import Decoder, UserError
from t2r_runtime.contract.signature import Signature
from t2r_runtime.errors import printable


def refused(path: Path, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        Decoder(path, **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert message.isprintable() and len(message) < 600
    return message


def test_no_file(tmp_path: Path) -> None:
    message = f"expected an ONNX file; received {tmp_path}/no.onnx, which does not exist; check the path"
    assert refused(tmp_path / "no.onnx") == message


def test_not_a_regular_file(tmp_path: Path) -> None:
    assert refused(tmp_path).endswith("which is not a file; check the path")
    os.mkfifo(tmp_path / "pipe")  # opening it would block forever
    assert refused(tmp_path / "pipe").endswith("which is not a file; check the path")


@pytest.mark.parametrize("content", [b"", b"not a graph", b"\x08\x0a" * 50, bytes(1000)])
def test_not_a_graph(content: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "g.onnx"
    path.write_bytes(content)
    assert refused(path).startswith("expected an ONNX graph that ONNX Runtime accepts; received ")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_graph(part: float, tmp_path: Path) -> None:
    path = graphs.save(tmp_path / "g.onnx")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    refused(path)


def test_graph_without_metadata(tmp_path: Path) -> None:
    path = graphs.save(tmp_path / "g.onnx", edit=lambda model: model.ClearField("metadata_props"))
    message = "expected a step graph with t2r metadata; received a graph without the key t2r.contract; export the model"
    assert refused(path).startswith(message)


SOURCE_KEYS = sorted(graphs.signature("source").to_metadata().keys() - graphs.signature().to_metadata().keys())


def test_decoder_metadata_without_source_keys() -> None:
    sources = [f"t2r.source_{name}" for name in ("length", "states", "tokenizer", "vocab_size")]
    assert SOURCE_KEYS == ["t2r.banned_tokens", "t2r.max_source", *sources, "t2r.start_states", "t2r.start_tokens"]


@pytest.mark.parametrize("key", [key for key in SOURCE_KEYS if key != "t2r.source_states"])
def test_missing_source_key_named(key: str) -> None:
    metadata = {k: v for k, v in graphs.signature("source").to_metadata().items() if k != key}
    with pytest.raises(UserError, match=f"the metadata key {key}"):
        Signature.from_metadata(metadata)


SOURCE_STATE = {"name": "source_m", "dtype": "float32", "shape": ["B", "M"], "constant": True, "initial": 0}


@pytest.mark.parametrize(
    "field, value",
    [
        ("start_states", ["nothing"]),
        ("start_states", ["S.0", "S.0"]),
        ("start_states", ["source_m"]),
        ("start_states", "S.0"),
        ("start_states", [["S.0"]]),
        ("source_vocab_size", 0),
        ("source_vocab_size", 1 << 40),
        ("source_tokenizer", {}),
        ("max_source", 0),
        ("max_source", "9"),
        ("source_length", 0),
        ("source_length", 1 << 30),
        ("source_length", "9"),
        ("start_tokens", []),
        ("start_tokens", [graphs.VOCABULARY]),
        ("start_tokens", [1] * 1025),
        ("banned_tokens", [True]),
        ("banned_tokens", 3),
        ("source_states", {}),
        ("source_states", [{**SOURCE_STATE, "name": "m"}]),
        ("source_states", [{**SOURCE_STATE, "shape": ["B", "T"]}]),
        ("source_states", [{**SOURCE_STATE, "shape": ["B", "M", "M"]}]),
        ("states", [{"name": "S", "dtype": "float32", "shape": ["B", "M"], "initial": 0, "constant": False}]),
    ],
)
def test_a_malformed_value_of_a_translator(field: str, value: object) -> None:
    good = graphs.signature("source")
    assert Signature.from_metadata(good.to_metadata()) == good
    with pytest.raises(UserError):
        Signature.from_metadata({**good.to_metadata(), f"t2r.{field}": json.dumps(value)})


@pytest.mark.parametrize("key", sorted(graphs.signature().to_metadata()))
def test_missing_metadata_key_named(key: str, tmp_path: Path) -> None:
    def drop(model: onnx.ModelProto) -> None:
        kept = {k: v for k, v in graphs.metadata(model).items() if k != key}
        helper.set_model_props(model, kept)

    assert key in refused(graphs.save(tmp_path / "g.onnx", edit=drop))


BAD_VALUES = [
    ("vocab_size", "eleven"),
    ("vocab_size", 0),
    ("vocab_size", None),
    ("vocab_size", True),
    ("vocab_size", 1.5),
    ("vocab_size", 1 << 40),
    ("states", {}),
    ("states", []),
    ("layers", {}),
    ("eos_tokens", {}),
    ("eos_tokens", [1.5]),
    ("eos_tokens", ["2"]),
    ("batch", 1 << 40),
    ("batch", -2),
    ("max_positions", 1.5),
    ("past_end", "wrap"),
    ("bos_token", 11),
    ("bos_token", "<s>"),
    ("eos_tokens", [-1]),
    ("eos_tokens", 5),
    ("eos_tokens", [[1]]),
    ("tokenizer", {}),
    ("role", "encode"),
    ("role", "generate"),
    ("role", ["step"]),
    ("role", None),
    ("graphs", "g.onnx"),
    ("graphs", []),
    ("graphs", {"prefill": "../g.onnx"}),
    ("graphs", {"prefill": "a\\b.onnx"}),
    ("graphs", {"draft_check": "C:g.onnx"}),
    ("graphs", {"prefill": "p.onnx", "draft_check": ""}),
    ("graphs", {"encoder": ".."}),
    ("graphs", {"prefill": 5}),
    ("top_k", 0),
    ("top_k", 12),
    ("top_k", "3"),
    ("layers", [1]),
    ("producer", 3),
    ("states", 7),
    ("states", [{}]),
    ("states", [{"name": "S", "dtype": "float32", "shape": ["B", 1 << 63], "initial": 0, "constant": False}]),
    ("states", [{"name": "S", "dtype": "float32", "shape": ["B"], "initial": 1e300, "constant": False}]),
    ("states", [{"name": "S", "dtype": "int32", "shape": ["B"], "initial": float("nan"), "constant": False}]),
    ("states", [{"name": "S", "dtype": "float32", "shape": ["B"], "initial": "0", "constant": False}]),
    ("states", [{"name": "S", "dtype": "float32", "shape": ["B", True], "initial": 0, "constant": False}]),
    ("states", [{"name": 5, "dtype": "float32", "shape": ["B"], "initial": 0, "constant": False}]),
    ("states", [{"name": "S", "dtype": "float32", "shape": ["B"], "initial": 0, "constant": False}] * 2),
    ("states", [{"name": "S", "dtype": ["float32"], "shape": ["B"], "initial": 0, "constant": False}]),
    ("states", [{"name": "S", "dtype": "float32", "shape": ["B", None], "initial": 0, "constant": False}]),
    ("states", [{"name": "S", "dtype": "float32", "shape": ["B", 1 << 40], "initial": 0, "constant": False}]),
    ("states", [{"name": "S", "dtype": "float32", "shape": ["B", -1, -1], "initial": 0, "constant": False}]),
    ("states", [{"name": "S", "dtype": "float32", "shape": ["B"], "initial": 0, "constant": 1}]),
    ("states", [{"name": "S", "dtype": "float32", "shape": ["B", "T"], "initial": 0, "constant": True}]),
    ("states", [{"name": "S", "dtype": "float32", "shape": ["B"], "initial": 0, "constant": False, "unknown": 0}]),
    ("states", [{"name": "S", "dtype": "float32", "shape": ["B"], "initial": 0}]),
    ("states", [{"name": "S", "dtype": "float32", "shape": [], "initial": 0, "constant": False}]),
    ("states", [{"name": "S", "dtype": "float32", "shape": [2], "initial": 0, "constant": False}]),
    ("states", [{"name": "S", "dtype": "float32", "shape": [2, "B"], "initial": 0, "constant": False}]),
    ("states", [{"name": "S", "dtype": "float32", "shape": ["B", "B"], "initial": 0, "constant": False}]),
    ("states", [{"name": "S", "dtype": "float32", "shape": ["B", *[1] * 16], "initial": 0, "constant": False}]),
    ("states", [{"name": "S", "dtype": "int32", "shape": ["B"], "initial": 0.5, "constant": False}]),
    ("states", [{"name": "S", "dtype": "int64", "shape": ["B"], "initial": 2**53 + 2, "constant": False}]),
]


@pytest.mark.parametrize("field, value", BAD_VALUES)
def test_a_malformed_value(field: str, value: object, tmp_path: Path) -> None:
    refused(_with_value(tmp_path, field, json.dumps(value)))


def many_states(count: int = 200, size: int = 1 << 31) -> list[dict[str, object]]:
    """States of 8 GB each, described in a few bytes."""
    form = {"dtype": "float32", "shape": ["B", size], "initial": 0, "constant": False}
    return [{"name": f"S.{n}", **form} for n in range(count)]


@pytest.mark.parametrize("states", [many_states(), many_states(1, (1 << 29) + 1), many_states(3, 1 << 28)])
def test_state_size_limit(states: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "full", None)  # no state is allocated
    message = refused(_with_value(tmp_path, "states", json.dumps(states)))
    assert message.startswith("expected states of at most 2,147,483,648 bytes per sequence; received ")
    assert "raise max_state_bytes" in message


def test_max_state_bytes(tmp_path: Path) -> None:
    path = graphs.save(tmp_path / "g.onnx")
    needed = sum(spec.bytes() for spec in graphs.states("constant"))
    assert Decoder(path, max_state_bytes=needed).step(1).shape == (1, graphs.VOCABULARY)
    assert f"received {needed:,} bytes, S.0 alone" in refused(path, max_state_bytes=needed - 1)


def test_the_states_of_a_fixed_batch_are_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = graphs.save(tmp_path / "g.onnx", batch=1 << 40)
    monkeypatch.setattr(np, "full", None)
    assert "choose a smaller batch" in refused(path)


@pytest.mark.parametrize("text", ["{", "", "[" * 100_000])
def test_no_json(text: str, tmp_path: Path) -> None:
    refused(_with_value(tmp_path, "layers", text))


def test_invalid_metadata_value_named(tmp_path: Path) -> None:
    message = "expected metadata as the contract defines it; received a bad value of batch; a bad value of past_end"
    path = graphs.save(tmp_path / "g.onnx", batch=-1, past_end="wrap", edit=None)
    assert refused(path).startswith(message)
    path = graphs.save(tmp_path / "g.onnx", eos_tokens=(99,))
    assert "a bad value of bos_token or eos_tokens" in refused(path)


def test_another_contract(tmp_path: Path) -> None:
    for text, shown in (("2", "2"), ("0", "0"), ("true", "True"), ("[1]", "[1]")):
        expected = f"expected contract version 1; received version {shown}; export the model again"
        assert refused(_with_value(tmp_path, "contract", text)).startswith(expected)


def rename_output(model: onnx.ModelProto) -> None:
    """A renaming that would leave a state at zero forever."""
    for node in model.graph.node:
        node.output[:] = [name.replace("present_z.0", "present_z.1") for name in node.output]
        node.input[:] = [name.replace("present_z.0", "present_z.1") for name in node.input]
    model.graph.output[2].name = "present_z.1"


def retype_ids(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT32


def add_input(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("past_\x1b[31m\n", TensorProto.FLOAT, [1]))


@pytest.mark.parametrize(
    "edit, message",
    [
        (rename_output, "missing outputs present_z.0; unexpected outputs present_z.1;"),
        (retype_ids, "input_ids int32 (B) for int64 (B);"),
        (add_input, "unexpected inputs past_\\x1b[31m;"),
    ],
)
def test_interface_differs_from_metadata(edit: Callable[[onnx.ModelProto], None], message: str, tmp_path: Path) -> None:
    received = refused(graphs.save(tmp_path / "g.onnx", edit=edit))
    assert received.startswith("expected the inputs and outputs that the graph's metadata lists; received " + message)


def test_all_wrong_shapes_reported(tmp_path: Path) -> None:
    sizes = (graphs.StateSpec("S.0", "float32", ("B", 3, 4, 5)), graphs.Z, graphs.POSITION)

    def promise(model: onnx.ModelProto) -> None:
        helper.set_model_props(model, graphs.signature(states=sizes, vocab_size=12).to_metadata())

    message = refused(graphs.save(tmp_path / "g.onnx", edit=promise))
    assert "past_S.0 float32 (B, 3, 5, 4) for float32 (B, 3, 4, 5)" in message
    assert "present_S.0 float32 (B, 3, 5, 4) for float32 (B, 3, 4, 5)" in message
    assert "logits float32 (B, 11) for float32 (B, 12)" in message
    assert "z.0" not in message


def test_a_fixed_batch_must_be_fixed_in_the_graph(tmp_path: Path) -> None:
    def promise(model: onnx.ModelProto) -> None:
        helper.set_model_props(model, graphs.signature(batch=2).to_metadata())

    assert "input_ids int64 (B) for int64 (B)" in refused(graphs.save(tmp_path / "g.onnx", edit=promise))


@pytest.mark.parametrize("location", ["../secret.bin", "link.bin", "ABSOLUTE", "missing.bin"])
def test_weights_from_outside_the_folder(location: str, tmp_path: Path) -> None:
    secret, folder = tmp_path / "secret.bin", tmp_path / "model"
    secret.write_bytes(bytes(4096))
    folder.mkdir()
    (folder / "link.bin").symlink_to(secret)
    place = str(secret) if location == "ABSOLUTE" else location

    def move_out(model: onnx.ModelProto) -> None:
        tensor = next(t for t in model.graph.initializer if t.name == "w_o")
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=place)

    message = refused(graphs.save(folder / "g.onnx", edit=move_out))
    if location == "missing.bin":
        path = folder / "g.onnx"
        assert message.startswith(
            f"expected the weights missing.bin beside {path}; received no such file; copy the fil"
        )
    else:
        assert message.startswith("expected an ONNX graph that ONNX Runtime accepts; received ")


def test_weights_inside_the_folder(tmp_path: Path) -> None:
    onnx.save(graphs.model(), tmp_path / "g.onnx", save_as_external_data=True, location="g.data", size_threshold=100)
    assert (tmp_path / "g.data").exists()
    assert Decoder(tmp_path / "g.onnx", threads=1).step(3).shape == (1, graphs.VOCABULARY)


def test_an_unknown_operator(tmp_path: Path) -> None:
    def strange(model: onnx.ModelProto) -> None:
        model.graph.node[0].op_type = "NoSuchOperator"

    assert "NoSuchOperator" in refused(graphs.save(tmp_path / "g.onnx", edit=strange))


def test_unprintable_metadata_escaped() -> None:
    assert printable(ValueError("[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : a : b\n\tc \x1b[0m")) == "a : b c \\x1b[0m"
    assert printable(ValueError()) == "ValueError"
    assert printable("x" * 400) == "x" * 299 + "…"
    assert printable("x" * 400, limit=None) == "x" * 400
    assert (printable("\u202e"), printable("naïve"), printable("")) == ("\\u202e", "naïve", "")


def _with_value(folder: Path, field: str, text: str) -> Path:
    def put(model: onnx.ModelProto) -> None:
        helper.set_model_props(model, graphs.metadata(model) | {f"t2r.{field}": text})

    return graphs.save(folder / "g.onnx", edit=put)
