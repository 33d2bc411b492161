"""Values of metadata that are refused, by their key."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cpp_build import GOLDEN
from t2r_library import Decoder, Failed, Library


def changed(folder: Path, name: str, **values: Any) -> Path:
    """A graph in a folder, without its companions, with these values of metadata."""
    model = onnx.load(GOLDEN / name, load_external_data=True)
    entries = {entry.key: entry.value for entry in model.metadata_props}
    entries |= {f"t2r.{key}": json.dumps(value) for key, value in values.items()} | {"t2r.graphs": "{}"}
    onnx.helper.set_model_props(model, entries)
    onnx.save(model, folder / name)
    return folder / name


@pytest.mark.parametrize(
    "key, value",
    [
        ("source_length", 7),  # less than max_source, which is 9
        ("source_length", (1 << 20) + 1),
        ("source_length", 6148914691236517206),  # three times it overflows an int64
        ("start_tokens", [1] * 1025),
        ("banned_tokens", [1] * 1025),
        ("start_states", ["S.0", "S.0"]),
    ],
)
def test_a_malformed_value_of_a_translator(library: Library, tmp_path: Path, key: str, value: Any) -> None:
    assert Decoder(library, changed(tmp_path, "translator.onnx", max_source=9, source_length=9)).info.translates
    with pytest.raises(
        Failed, match=f"^metadata: expected metadata of the contract's form; received a bad value of {key}"
    ):
        Decoder(library, changed(tmp_path, "translator.onnx", **{"max_source": 9, "source_length": 9, key: value}))


@pytest.mark.parametrize(
    "key, value", [("hidden_size", "x"), ("hidden_size", 0), ("hidden_size", 1 << 25), ("layers", {}), ("layers", [1])]
)
def test_a_malformed_value(library: Library, tmp_path: Path, key: str, value: Any) -> None:
    with pytest.raises(Failed, match="^metadata: "):
        Decoder(library, changed(tmp_path, "tiny.onnx", **{key: value}))


def test_a_chat_template_of_null_is_none(library: Library, tmp_path: Path) -> None:
    assert Decoder(library, changed(tmp_path, "tiny.onnx", chat_template=None)).info.chats == 0


def hidden(folder: Path, size: int, **values: Any) -> Path:
    """A graph with the output `hidden` of this size."""
    path = changed(folder, "tiny.onnx", **values)
    model = onnx.load(path)
    (logits,) = (output for output in model.graph.output if output.name == "logits")
    model.graph.node.append(onnx.helper.make_node("Slice", ["logits", "begin", "end", "axis"], ["hidden"]))
    for name, number in (("begin", 0), ("end", size), ("axis", 1)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([number]), name))
    batch = logits.type.tensor_type.shape.dim[0].dim_param
    model.graph.output.append(onnx.helper.make_tensor_value_info("hidden", onnx.TensorProto.FLOAT, [batch, size]))
    onnx.save(model, path)
    return path


def test_hidden_is_what_the_metadata_say(library: Library, tmp_path: Path) -> None:
    """It is not read, but an interface of the graph."""
    np.testing.assert_array_equal(
        Decoder(library, hidden(tmp_path, 5, hidden_size=5)).step([1]), Decoder(library, GOLDEN / "tiny.onnx").step([1])
    )
    with pytest.raises(Failed, match="^interface: .* unexpected outputs hidden; "):
        Decoder(library, hidden(tmp_path, 5))
    with pytest.raises(Failed, match="^interface: .* missing outputs hidden; "):
        Decoder(library, changed(tmp_path, "tiny.onnx", hidden_size=5))
    with pytest.raises(Failed, match="^interface: .* hidden "):
        Decoder(library, hidden(tmp_path, 5, hidden_size=6))


@pytest.mark.parametrize("key, value", [("generation", {}), ("chat_template", {"template": "", "tokens": {}})])
def test_keys_of_a_step_graph_alone(library: Library, tmp_path: Path, key: str, value: Any) -> None:
    """A companion with them is another model's."""
    copied = shutil.copytree(GOLDEN, tmp_path / "all")
    (path,) = copied.glob("prefill.onnx.*.prefill.onnx")
    model = onnx.load(path, load_external_data=False)
    model.metadata_props.add(key=f"t2r.{key}", value=json.dumps(value))
    onnx.save(model, path)
    decoder = Decoder(library, copied / "prefill.onnx")
    with pytest.raises(Failed, match="^graph: expected in .* the same model as in its step graph; "):
        decoder.prefill([[1, 2]])


def test_a_companion_for_drafts_is_not_needed(library: Library, tmp_path: Path) -> None:
    """Its file may be missing, or anything, until drafts are asked for."""
    name = "drafts.onnx"
    model = onnx.load(changed(tmp_path, "tiny.onnx"))
    (entry,) = (entry for entry in model.metadata_props if entry.key == "t2r.graphs")
    entry.value = json.dumps({"draft_check": name})
    onnx.save(model, tmp_path / "tiny.onnx")
    decoder = Decoder(library, tmp_path / "tiny.onnx")
    graph = "tiny.onnx", (tmp_path / "tiny.onnx").read_bytes()
    assert Decoder.in_memory(library, graph, (name, b"drafts")).generate([1], 5, seed=1) == decoder.generate(
        [1], 5, seed=1
    )
    with pytest.raises(Failed, match="file: expected an ONNX file"):
        library.call("t2r_draft", decoder.handle, 1)
