"""The memory of the encoder is bounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import translators
from runtime.test_source_states import CLOSE, refused
from t2r_runtime import Beam, Translator


def test_sources_of_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoded in portions that need no more scores than one source of `max_source`, and equal to all at once."""
    path = translators.save(tmp_path / "t", max_source=None)
    opened, whole = Translator(path, threads=1, max_source=12), Translator(path, threads=1)
    sources, ran = [[1] * 5, [2] * 3, [3] * 2, [4] * 12, [5], [6] * 6, [7] * 6, [8] * 6], list[tuple[int, ...]]()
    expected = whole.encode(sources)
    right = opened._graph.companions["encoder"]()

    class Spied:
        def run(self, names: list[str], feeds: dict[str, Any]) -> Any:
            ran.append(feeds["source_ids"].shape)
            return right.run(names, feeds)

    monkeypatch.setitem(opened._graph.companions, "encoder", Spied)  # type: ignore[arg-type]
    for name, state in opened.encode(sources).items():
        assert state.dtype == expected[name].dtype
        np.testing.assert_allclose(state, expected[name], **CLOSE)
    assert ran == [(3, 5), (1, 12), (4, 6)]
    ran.clear()
    assert [len(best) for best in opened.translate(sources, Beam(width=2, max_tokens=5))] == [1] * len(sources)
    assert all(rows * length**2 <= 12**2 for rows, length in ran)
    refused(lambda: opened.encode([[1] * 13]), "expected a source of at most 12 tokens; received 13; split it into")
    refused(lambda: Translator(path, max_source=0), "expected max_source of at least 1; received 0")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("AllocateRawInternal: Failed to allocate memory for 9")])
def test_an_encoder_without_memory(error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Translator(translators.save(tmp_path / "t"), threads=1)

    class Full:
        def run(self, *given: object) -> None:
            raise error

    monkeypatch.setitem(opened._graph.companions, "encoder", Full)  # type: ignore[arg-type]
    message = "expected enough memory to encode a source of 3 tokens; received too little; split the source into"
    refused(lambda: opened.encode([[1] * 3]), message)
