"""Decoders for handmade graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime import graphs, translators
from t2r_runtime import Decoder, Translator

Open = Callable[..., Decoder]
OpenTranslator = Callable[..., Translator]


@pytest.fixture(scope="session")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Open:
    """opened(kind, **signature fields) → a new Decoder."""
    folder = tmp_path_factory.mktemp("graphs")

    made: dict[str, Path] = {}

    def open_kind(kind: str = "constant", **changes: Any) -> Decoder:
        key = f"{kind} {changes}"
        if key not in made:
            made[key] = graphs.save(folder / f"{len(made)}.onnx", kind, **changes)
        return Decoder(made[key], threads=1)

    return open_kind


@pytest.fixture(scope="session")
def translator(tmp_path_factory: pytest.TempPathFactory) -> OpenTranslator:
    """translator(seed, cache, **signature fields) → a Translator."""
    root = tmp_path_factory.mktemp("translators")
    made: dict[str, Translator] = {}

    def opened(seed: int = 0, cache: bool = False, **changes: Any) -> Translator:
        key = f"{seed} {cache} {changes}"
        if key not in made:
            made[key] = Translator(translators.save(root / str(len(made)), seed, cache, **changes), threads=1)
        return made[key]

    return opened
