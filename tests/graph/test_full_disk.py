"""A full disk leaves the existing graph unchanged."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import Tensor

from graph.written import computes, names, weights, write_graph
from t2r_export.graph import file as graph_file
from t2r_runtime.errors import UserError

pytestmark = pytest.mark.usefixtures("without_trial")


class Full:
    """A disk with room for some more weights."""

    def __init__(self, room: int) -> None:
        self.room, self.right = room, graph_file.parts

    def __call__(self, weight: Tensor) -> memoryview:
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.right(weight)


def rooms(external: bool) -> Iterator[tuple[int, int]]:
    # external data: three weights are read for their digest, and three written
    yield from ((room, 1 if external else graph_file.EXTERNAL_BYTES) for room in range(6 if external else 3))


@pytest.mark.parametrize("room, external_bytes", [*rooms(False), *rooms(True)])
@pytest.mark.parametrize("old_external", [False, True])
def test_a_full_disk_leaves_the_old_file(
    room: int, external_bytes: int, old_external: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "g.onnx"
    write_graph(weights(1), path, 1 if old_external else graph_file.EXTERNAL_BYTES)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    monkeypatch.setattr(graph_file, "parts", Full(room))
    with pytest.raises((UserError, OSError), match="No space left on device"):
        write_graph(weights(2), path, external_bytes)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert computes(path, weights(1))


def test_a_disk_that_fills_up_at_the_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At that point the new weights are beside the old ones."""
    path = tmp_path / "g.onnx"
    _, old = write_graph(weights(1), path, 1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(graph_file, "_write_inline", full)
        with pytest.raises(UserError) as caught:
            write_graph(weights(2), path, 1)
    assert str(caught.value) == (
        f"expected to be able to write {path}; received No space left on device; "
        "choose another place, or make room there"
    )
    assert names(tmp_path) == {path.name, old.name}
    assert computes(path, weights(1))
    _, new = write_graph(weights(3), path, 1)
    assert names(tmp_path) == {path.name, new.name}
