"""Decoders over hand-made graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime import graphs
from t2r_runtime import Decoder

Open = Callable[..., Decoder]


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Open:
    """opened(kind, **fields of the signature) → a new Decoder."""
    folder = tmp_path_factory.mktemp("graphs")

    made: dict[str, Path] = {}

    def open_kind(kind: str = "constant", **changes: Any) -> Decoder:
        key = f"{kind} {changes}"
        if key not in made:
            made[key] = graphs.save(folder / f"{len(made)}.onnx", kind, **changes)
        return Decoder(made[key], threads=1)

    return open_kind
