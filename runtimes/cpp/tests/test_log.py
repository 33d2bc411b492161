"""The log of ONNX Runtime's messages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cpp_build import GOLDEN
from t2r_library import Decoder, Failed, Library

VERBOSE, INFO, FATAL = 0, 1, 4


@pytest.fixture
def heard(library: Library) -> Iterator[list[tuple[int, str]]]:
    yield []
    library.log(FATAL, None)


def test_a_log(library: Library, heard: list[tuple[int, str]]) -> None:
    """The log receives messages of its level and above, of graphs opened while it is set."""
    Decoder(library, GOLDEN / "tiny.onnx").step([1])
    counts = []
    for level in (VERBOSE, INFO, FATAL):
        heard.clear()
        library.log(level, lambda said, message: heard.append((said, message)))
        Decoder(library, GOLDEN / "tiny.onnx").step([1])
        assert all(level <= said <= FATAL and message for said, message in heard)
        counts.append(len(heard))
    assert counts[0] > counts[1] > counts[2] == 0


def test_nobody_listens(library: Library, heard: list[tuple[int, str]], capfd: pytest.CaptureFixture[str]) -> None:
    """After NULL the hook is not called, not even by graphs opened before, and nothing is printed."""
    library.log(VERBOSE, lambda said, message: heard.append((said, message)))
    decoder = Decoder(library, GOLDEN / "tiny.onnx")
    library.log(VERBOSE, None)
    before = len(heard)
    decoder.step([1])
    Decoder(library, GOLDEN / "tiny.onnx").step([1])
    assert 0 < before == len(heard) and capfd.readouterr() == ("", "")


def test_a_log_that_calls_us(library: Library, heard: list[tuple[int, str]]) -> None:
    """A hook that calls t2r_set_log gets an error instead of a deadlock."""
    failed: list[Failed] = []

    def hook(said: int, message: str) -> None:
        try:
            library.call("t2r_set_log", None, None, 0)
        except Failed as error:
            failed.append(error)

    library.log(INFO, hook)
    Decoder(library, GOLDEN / "tiny.onnx")
    assert failed and all(error.kind == "state" for error in failed)


def test_levels_that_there_are_not(library: Library) -> None:
    for level in (-1, 5):
        with pytest.raises(Failed, match=f"^argument: expected a level from 0, .*; received {level}; "):
            library.log(level, None)
