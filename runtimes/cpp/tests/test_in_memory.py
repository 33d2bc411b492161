"""Graphs and snapshots in memory, and metadata."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from cpp_build import GOLDEN
from t2r_library import Decoder, Failed, Library, numbers


def file(name: str) -> tuple[str, bytes]:
    return name, (GOLDEN / name).read_bytes()


def files(name: str, *roles: str) -> list[tuple[str, bytes]]:
    """A graph, its companions of these roles, and their external weights."""
    entries = {entry.key: entry.value for entry in onnx.load(GOLDEN / name).metadata_props}
    beside = json.loads(entries["t2r.graphs"])
    weights = [path.name for path in GOLDEN.glob(f"{name}.*.data")]
    return [file(place) for place in (name, *(beside[role] for role in roles), *weights)]


@pytest.mark.parametrize("name, roles", [("tiny", []), ("prefill", ["prefill"])])
def test_a_graph_in_memory(library: Library, name: str, roles: list[str]) -> None:
    """It generates the same text as from a file, with and without companions, and with external weights."""
    on_disk, seen = Decoder(library, GOLDEN / f"{name}.onnx"), []
    for used in ([], roles):
        decoder = Decoder.in_memory(library, *files(f"{name}.onnx", *used))
        on_disk.reset()
        assert decoder.generate([1, 2, 3], 20, seed=7) == on_disk.generate([1, 2, 3], 20, seed=7)
        seen.append(decoder.info.prefills)
    assert seen == [0, len(roles)]


def test_a_translator_in_memory(library: Library) -> None:
    """It reads sources with its encoder; without, the error names the missing file."""
    with_encoder = Decoder.in_memory(library, *files("translator.onnx", "encoder"))
    without = Decoder.in_memory(library, *files("translator.onnx"))
    assert [decoder.info.translates for decoder in (with_encoder, without)] == [1, 1]
    encode_sources(with_encoder, [1, 2])
    on_disk = Decoder(library, GOLDEN / "translator.onnx")
    encode_sources(on_disk, [1, 2])
    for name, state in on_disk.states().items():
        np.testing.assert_array_equal(state, with_encoder.states()[name])
    with pytest.raises(Failed, match="^file: expected an encoder beside the step graph; received none; "):
        encode_sources(without, [1, 2])


def test_files_that_are_refused(library: Library) -> None:
    tiny, (graph, prefill, weights) = file("tiny.onnx"), files("prefill.onnx", "prefill")
    with pytest.raises(Failed, match="^argument: expected at least one file, the step graph; received none; "):
        Decoder.in_memory(library)
    with pytest.raises(Failed, match="^file: expected files that tiny.onnx or its companions name; received other"):
        Decoder.in_memory(library, tiny, ("other.onnx", graph[1]))
    with pytest.raises(Failed, match="^graph: expected a step graph; received a prefill graph; "):
        Decoder.in_memory(library, prefill, weights)
    for content in (b"", b"no graph", tiny[1][:500]):
        with pytest.raises(Failed, match="^graph: expected an ONNX graph; "):
            Decoder.in_memory(library, ("x.onnx", content))
    line = (
        "^weights: expected the weights prefill.onnx.*.data of prefill.onnx; received no such file among those given; "
    )
    with pytest.raises(Failed, match=line):
        Decoder.in_memory(library, graph, prefill)
    with pytest.raises(Failed, match="^weights: expected at least [0-9]+ bytes in the weights prefill.*data; "):
        Decoder.in_memory(library, graph, prefill, (weights[0], weights[1][:-100]))
    with pytest.raises(Failed, match="^graph: expected in prefill.*onnx the same model as in its step graph; "):
        Decoder.in_memory(library, graph, weights, (prefill[0], of_another_checkpoint(prefill[1])))
    assert not Decoder.in_memory(library, graph, prefill, weights, companions=0).info.prefills


def of_another_checkpoint(content: bytes) -> bytes:
    model = onnx.load_from_string(content)
    (entry,) = (entry for entry in model.metadata_props if entry.key == "t2r.checkpoint_sha256")
    entry.value = json.dumps("0" * 64)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("name", ["tiny", "tiny-hybrid", "packed"])
def test_a_snapshot_in_memory(library: Library, tmp_path: Path, name: str) -> None:
    """Saving gives the bytes of the file; loading them gives the same states and token."""
    decoder, other = Decoder(library, GOLDEN / f"{name}.onnx"), Decoder(library, GOLDEN / f"{name}.onnx")
    decoder.reset(2)
    decoder.prefill([[1, 2, 3], [4, 5, 6]])
    decoder.save(tmp_path / "states", 3)
    assert decoder.save_memory(3) == (tmp_path / "states").read_bytes()
    assert other.load_memory(decoder.save_memory(3)) == 3 and other.info.position == 3
    np.testing.assert_array_equal(other.step([7, 8]), decoder.step([7, 8]))


def test_a_damaged_snapshot_in_memory(library: Library) -> None:
    decoder = Decoder(library, GOLDEN / "tiny.onnx")
    decoder.step([1])
    good = decoder.save_memory()
    before = decoder.states()
    for bad in (b"", good[:-1], good[: len(good) // 2], good.replace(b"position", b"positiom"), b"x" + good[1:]):
        with pytest.raises(Failed, match="^snapshot: expected a snapshot .*; received the bytes given: "):
            decoder.load_memory(bad)
    for name, state in decoder.states().items():
        np.testing.assert_array_equal(state, before[name])
    assert decoder.load_memory(good) == -1


def test_metadata(library: Library, tmp_path: Path) -> None:
    """Values equal those in the file; there are none for missing keys and for tokenizers."""
    model = onnx.load(GOLDEN / "bytes.onnx")
    template = json.dumps({"template": "{{ messages[0] }} é", "tokens": {}})
    model.metadata_props.add(key="t2r.chat_template", value=template)
    model.metadata_props.add(key="mine", value="any text")
    onnx.save(model, tmp_path / "chat.onnx")
    decoder, plain = Decoder(library, tmp_path / "chat.onnx"), Decoder(library, GOLDEN / "bytes.onnx")
    assert (decoder.metadata("t2r.chat_template"), decoder.metadata("mine")) == (template, "any text")
    assert decoder.fork().metadata("t2r.checkpoint_sha256") == json.dumps(plain.info.checkpoint.decode())
    assert [plain.metadata(key) for key in ("t2r.chat_template", "t2r.tokenizer", "")] == [None] * 3
    assert [(made.info.chats, made.info.translates) for made in (decoder, plain)] == [(1, 0), (0, 0)]
    assert Decoder(library, GOLDEN / "translator.onnx").info.translates == 1


def encode_sources(decoder: Decoder, source: list[int]) -> None:
    arguments = numbers(source), numbers([len(source)]), 1, len(source)
    decoder.library.call("t2r_encode_sources", decoder.handle, *arguments)
