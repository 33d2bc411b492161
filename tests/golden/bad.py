"""Untrusted files with one fault each, and the kind of error that each must raise."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from golden.bad_tokenizers import GROWS, PAST, PIECES, TEXT_PAST
from golden.calls import zip64
from golden.edited import Change, changed
from golden.models import SMALLEST, seeded
from golden.texts import Case
from t2r_export.export import export
from t2r_export.files import write_bytes
from t2r_runtime import Decoder

STATE = "S.0"
DEEP = "[" * 10_000
TINY = {"version": "1.0", "model": {"type": "BPE", "vocab": PIECES, "merges": [["a", "b"]]}}


def _tokenizer(**parts: Any) -> Change:
    return lambda _, said: said.update({"t2r.tokenizer": json.dumps({**TINY, **parts})})


def _said(key: str, value: Any) -> Change:
    return lambda _, said: said.update({f"t2r.{key}": value})


def _state(**changes: Any) -> Change:
    return lambda _, said: said["t2r.states"][0].update(changes)


def _table(model: onnx.ModelProto) -> TensorProto:
    found: list[TensorProto] = [
        t for t in model.graph.initializer if list(t.dims) == [SMALLEST.vocab_size, SMALLEST.width]
    ]
    return found[0]


def _place(name: str) -> Change:
    """Store the token table as external data in a file of this name."""

    def change(model: onnx.ModelProto, _: dict[str, Any]) -> None:
        tensor = _table(model)
        length = 4 * int(np.prod(tensor.dims))
        tensor.ClearField("raw_data")
        tensor.ClearField("float_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", name), ("offset", "0"), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)

    return change


def _renamed(old: str, new: str) -> Change:
    def change(model: onnx.ModelProto, _: dict[str, Any]) -> None:
        for value in (*model.graph.input, *model.graph.output):
            value.name = new if value.name == old else value.name
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = [new if name == old else name for name in names]

    return change


def _cut_output(model: onnx.ModelProto, _: dict[str, Any]) -> None:
    del model.graph.output[1:]


def _not_finite(model: onnx.ModelProto, _: dict[str, Any]) -> None:
    tensor = _table(model)
    tensor.CopyFrom(onnx.numpy_helper.from_array(np.full(tensor.dims, np.nan, np.float32), tensor.name))


def _other_checkpoint(_: onnx.ModelProto, said: dict[str, Any]) -> None:
    said["t2r.checkpoint_sha256"] = "0" * 64


# step graphs of another model than their companion, and the call on each
COMPANIONS = {
    "prefill": ("prefill", "prefill"),
    "encoder": ("translate", "translator"),
}
WHERE: dict[str, dict[str, Any]] = {
    "prefill": {"tokens": [[1, 2, 3]]},
    "generate": {},
    "translate": {"source": [3, 1], "beam": {}},
}
# refused calls on a translator of 13 source tokens, sources of at most 7 tokens, and 9 positions
TRANSLATIONS: tuple[dict[str, Any], ...] = tuple(
    {"kind": kind, "source": source, "beam": beam}
    for kind, source, beam in (
        ("position", [1] * 8, {}),
        ("token", [], {}),
        ("token", [13], {}),
        ("token", [3, -1], {}),
        ("position", [3], {"max_tokens": 10}),
        ("sampling", [3], {"max_tokens": 1}),  # one token is forced
        ("sampling", [3], {"width": 0}),
        ("sampling", [3], {"width": 2, "n_best": 3}),
        ("sampling", [3], {"n_best": 0}),
        ("sampling", [3], {"min_tokens": -1}),
        ("sampling", [3], {"length_penalty": 10.5}),
        ("sampling", [3], {"length_penalty": -10.5}),
        ("sampling", [3], {"repetition_penalty": 0}),
        ("sampling", [3], {"no_repeat_ngram": 65}),
    )
)

# name -> call, kind of error, change to the graph
GRAPHS: dict[str, tuple[str, str, Change]] = {
    "role": ("open", "graph", _said("role", "prefill")),
    "unknown-role": ("open", "metadata", _said("role", "generate")),
    "contract": ("open", "version", _said("contract", 2)),
    "opset": ("open", "version", lambda model, _: setattr(model.opset_import[0], "version", 99)),
    "format": ("open", "version", lambda model, _: setattr(model, "ir_version", 99)),
    "no-metadata": ("open", "metadata", lambda _, said: said.clear()),
    "no-states": ("open", "metadata", lambda _, said: said.pop("t2r.states")),
    "states-no-list": ("open", "metadata", _said("states", {"S": 1})),
    "batch-nowhere": ("open", "metadata", _state(shape=[1, 1, 2, 3])),
    "batch-second": ("open", "metadata", _state(shape=[1, "B", 2, 3])),
    "batch-twice": ("open", "metadata", _state(shape=["B", "B", 2, 3])),
    "batch-large": ("open", "batch", _said("batch", 1 << 40)),
    "initial-fraction": ("open", "metadata", _state(dtype="int32", initial=0.5)),
    "initial-large": ("open", "metadata", _state(initial=1e39)),
    "state-key": ("open", "metadata", _state(more=1)),
    "huge-state": ("open", "metadata", _state(shape=["B", 1 << 20, 1 << 20])),
    "negative-shape": ("open", "metadata", _state(shape=["B", -1, 2, 3])),
    "two-letters": ("open", "metadata", _state(shape=["T", "T", 2, 3])),
    "dtype": ("open", "metadata", _state(dtype="complex64")),
    "vocabulary": ("open", "metadata", _said("vocab_size", 0)),
    "end-token": ("open", "metadata", _said("eos_tokens", [5])),
    "past-end": ("open", "metadata", _said("past_end", "wrap:0")),
    "options-list": ("open", "metadata", _said("generation", [])),
    "options-unknown": ("open", "metadata", _said("generation", {"seed": 1})),
    "options-translator": ("open", "metadata", _said("generation", {"width": 2})),
    "options-null": ("open", "metadata", _said("generation", {"top_k": None})),
    "options-type": ("open", "metadata", _said("generation", {"temperature": "1"})),
    "options-fraction": ("open", "metadata", _said("generation", {"no_repeat_ngram": 2.5})),
    "options-large": ("open", "metadata", _said("generation", {"top_k": 1 << 31})),
    "options-range": ("open", "metadata", _said("generation", {"temperature": 1, "top_p": 0})),
    "folder": ("open", "metadata", _said("graphs", {"prefill": "../ends.onnx"})),
    "companion": ("open", "file", _said("graphs", {"prefill": "nothing.onnx"})),
    "renamed-state": ("open", "interface", _renamed(f"past_{STATE}", "past_T.0")),
    "no-present": ("open", "interface", _cut_output),
    "other-vocabulary": ("open", "interface", _said("vocab_size", 6)),
    "other-shape": ("open", "interface", _state(shape=["B", 1, 2, 4])),
    "no-weights": ("open", "weights", _place("nothing.data")),
    "short-weights": ("open", "weights", _place("short.data")),
    "weights-outside": ("open", "weights", _place("../index.json")),
    "no-tokenizer": ("tokenizer", "tokenizer", lambda *_: None),
    "tokenizer-no-json": ("tokenizer", "tokenizer", _said("tokenizer", "{")),
    "tokenizer-deep": ("tokenizer", "tokenizer", _said("tokenizer", DEEP)),
    "tokenizer-model": (
        "tokenizer",
        "tokenizer",
        _tokenizer(model={"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}),
    ),
    "tokenizer-part": ("tokenizer", "tokenizer", _tokenizer(normalizer={"type": "Lowercase"})),
    "tokenizer-merge": (
        "tokenizer",
        "tokenizer",
        _tokenizer(model={"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}),
    ),
    **{f"tokenizer-{name}": ("tokenizer", "tokenizer", _tokenizer(**parts)) for name, parts in PAST.items()},
    "tokenizer-text-growth": ("encode", "tokenizer", _tokenizer(**GROWS)),
    "not-finite": ("generate", "graph", _not_finite),
}


def cases(folder: Path) -> Iterator[Case]:
    """Write the faulty files to a folder `bad`: call and error kind of each, and translations that must be refused."""
    place = folder / "bad"
    place.mkdir(exist_ok=True)
    export(seeded("bad", SMALLEST), place / "good.onnx")
    good = onnx.load(place / "good.onnx")
    found: list[dict[str, Any]] = []

    def add(name: str, content: bytes, call: str, kind: str, **more: str) -> None:
        write_bytes(place / name, content)
        found.append({"file": f"bad/{name}", "call": call, "kind": kind, **more})

    write_bytes(place / "short.data", b"short")
    for name, (call, kind, change) in GRAPHS.items():
        add(f"{name}.onnx", changed(good, change), call, kind, **({"text": TEXT_PAST} if call == "encode" else {}))
    whole = (place / "good.onnx").read_bytes()
    no_graphs = {"empty": b"", "text": b"no graph\n", "half": whole[: len(whole) // 2], **_twice(whole)}
    for name, content in no_graphs.items():
        add(f"{name}.onnx", content, "open", "graph")
    for name, content in _snapshots(place / "good.onnx").items():
        add(f"{name}.state", content, "snapshot", "snapshot", graph="bad/good.onnx")
    found.append({"file": "bad/nothing.onnx", "call": "open", "kind": "file"})
    found.append({"file": "bad/nothing.state", "call": "snapshot", "kind": "file", "graph": "bad/good.onnx"})
    for name, (call, graph) in COMPANIONS.items():
        other, step = f"{name}-of-another.onnx", onnx.load(folder / f"{graph}.onnx", load_external_data=False)
        write_bytes(folder / other, changed(step, _other_checkpoint))
        found.append({"file": other, "call": call, "kind": "graph", **WHERE[call]})
    found += [{"file": "translator-starts.onnx", "call": "translate", **asked} for asked in TRANSLATIONS]
    yield "bad", "bad", {"files": found}


def _twice(whole: bytes) -> dict[str, bytes]:
    """Files with metadata key or graph twice, of which ONNX Runtime takes one or the other."""
    vocabulary = onnx.StringStringEntryProto(key="t2r.vocab_size", value="5")
    key, graph = onnx.ModelProto(metadata_props=[vocabulary]), onnx.ModelProto(graph=onnx.GraphProto())
    return {name: whole + more.SerializeToString() for name, more in (("key-twice", key), ("graph-twice", graph))}


def _snapshots(graph: Path) -> dict[str, bytes]:
    """Snapshots of the graph at `graph`, with one fault each."""
    decoder = Decoder(graph, threads=1)
    state = decoder.state()[STATE] + np.float32(0.5)
    head = {"snapshot": 1, "checkpoint_sha256": decoder.signature.checkpoint_sha256, "position": 3}
    good = {"t2r.json": json.dumps(head).encode(), f"{STATE}.npy": _npy(state)}
    whole = _zipped(good)
    at = whole.index(state.tobytes())

    short, long = b"(1, 1, 2, 3), }", b"(99999999, 99999999, 2, 3), }"

    def of(**changes: Any) -> bytes:
        return _zipped({**good, "t2r.json": json.dumps({**head, **changes}).encode()})

    def with_state(content: bytes) -> bytes:
        return _zipped({**good, f"{STATE}.npy": content})

    return {
        "empty": b"",
        "half": whole[: len(whole) // 2],
        "checksum": whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :],
        "compressed": _zipped(good, zipfile.ZIP_DEFLATED),
        "no-head": _zipped({f"{STATE}.npy": _npy(state)}),
        "head-deep": _zipped({**good, "t2r.json": DEEP.encode()}),
        "other-version": of(snapshot=2),
        "other-checkpoint": of(checkpoint_sha256="0" * 64),
        "position": of(position=-1),
        "token": of(token=5),
        "no-state": _zipped({"t2r.json": good["t2r.json"]}),
        "one-more": _zipped({**good, "S.1.npy": _npy(state)}),
        "shape": with_state(_npy(state[..., :2])),
        "dtype": with_state(_npy(state.astype(np.float64))),
        "byte-order": with_state(_npy(state.astype(">f4"))),
        "columns-first": with_state(_npy(np.asfortranarray(state))),
        "object": with_state(_npy(state).replace(b"'<f4'", b"'|O' ", 1)),
        **_archives(good, head, whole),
        "long-shape": with_state(_npy(state).replace(short + b" " * (len(long) - len(short)), long, 1)),
    }


def _archives(good: dict[str, bytes], head: dict[str, Any], whole: bytes) -> dict[str, bytes]:
    """Snapshots whose archive members every reader must refuse."""
    second = whole.rindex(b"PK\x01\x02")  # the directory entry of the state

    def with_entry(place: int, *values: int) -> bytes:
        numbers = b"".join(value.to_bytes(4, "little") for value in values)
        return whole[: second + place] + numbers + whole[second + place + len(numbers) :]

    size = int.from_bytes(whole[second + 24 : second + 28], "little")
    return {
        "twice": _zipped({**good, "t2r.jsom": good["t2r.json"]}).replace(b"t2r.jsom", b"t2r.json"),
        "two-sizes": with_entry(20, size - 1),
        "outside": with_entry(20, 1 << 20, 1 << 20),
        "over-another": with_entry(42, 0),
        "long-head": _zipped({**good, "t2r.json": json.dumps(head).encode() + b" " * (1 << 16)}),
        "far-position": _zipped({**good, "t2r.json": json.dumps({**head, "position": 1 << 62}).encode()}),
        "zip64-cut": zip64(whole).replace(b"\x01\x00\x18\x00", b"\x01\x00\x08\x00"),
    }


def _npy(array: np.ndarray[Any, Any]) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version=(1, 0), allow_pickle=False)
    return out.getvalue()


def _zipped(members: dict[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content, how)
    return out.getvalue()
