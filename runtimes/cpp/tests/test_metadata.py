"""Values of metadata that are refused, by their key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
