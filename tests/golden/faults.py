"""Faults in a copy of the golden files that imitate a wrong runtime: the changed case must then fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

Said = dict[str, Any]  # parsed metadata of a graph
Fault = tuple[str, str, Callable[[Any], object]]  # case, its files, change of their content


def _start_as_0(said: Said) -> None:
    for spec in said["t2r.states"]:
        spec["initial"] = 0


def _start_once(said: Said) -> None:
    del said["t2r.start_tokens"][1:]


def _refuse(said: Said) -> None:
    said["t2r.past_end"] = "refuse"


def _without(part: str) -> Callable[[Said], object]:
    """Remove a part of the tokenizer, such as its normalizer."""

    def change(said: Said) -> None:
        said["t2r.tokenizer"] = json.dumps({**json.loads(said["t2r.tokenizer"]), part: None})

    return change


def _without_flags(said: Said) -> None:
    tokenizer = json.loads(said["t2r.tokenizer"])
    for token in tokenizer["added_tokens"]:
        token.update(dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False))
    said["t2r.tokenizer"] = json.dumps(tokenizer)


def _without_penalties(case: Any) -> None:
    for search in case["searches"]:
        search["beam"] = {key: value for key, value in search["beam"].items() if key[:2] not in ("re", "no")}


def _as_long(case: Any) -> None:
    longest = max(map(len, case["sources"]))
    case["sources"] = [[*source, *[0] * (longest - len(source))] for source in case["sources"]]


FAULTS: dict[str, Fault] = {
    "states start as 0": ("sampling-states", "states.onnx", _start_as_0),
    "one start token is read": ("translator-starts", "translator-starts.*onnx", _start_once),
    "no penalties in a search": ("translator-starts", "translator-starts.json", _without_penalties),
    "sources are as long as the longest": ("translator-starts", "translator-starts.json", _as_long),
    "positions are not clamped": ("clamp", "clamp.onnx", _refuse),
    "positions do not begin again": ("wrap", "wrap.onnx", _refuse),
    "nothing is composed": ("text-words", "words.onnx", _without("normalizer")),
    "nothing is decomposed": ("text-digits", "digits.onnx", _without("normalizer")),
    "no special tokens around a text": ("text-words", "words.onnx", _without("post_processor")),
    "texts are not cut": ("text-signs", "signs.onnx", _without("pre_tokenizer")),
    "added tokens have no flags": ("text-digits", "digits.onnx", _without_flags),
}


def put(name: str, folder: Path) -> str:
    """Put a fault into a copy of the golden files, keep only its case, and return the case's name."""
    case, file, change = FAULTS[name]
    for place in folder.glob(file):
        if place.suffix == ".json":
            content = json.loads(place.read_text("utf-8"))
            change(content)
            place.write_text(json.dumps(content), "utf-8")
        else:
            place.write_bytes(_changed(onnx.load(place, load_external_data=False), change))
    index = json.loads((folder / "index.json").read_text())
    index["cases"] = [each for each in index["cases"] if each["case"] == case]
    (folder / "index.json").write_text(json.dumps(index))
    return case


def _changed(model: onnx.ModelProto, change: Callable[[Said], object]) -> bytes:
    """The serialized graph with changed metadata, which stand before it."""
    said = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    change(said)
    for entry in model.metadata_props:
        entry.value = json.dumps(said[entry.key])
    graph = onnx.ModelProto(graph=model.graph).SerializeToString()
    model.ClearField("graph")
    return bytes(model.SerializeToString() + graph)
