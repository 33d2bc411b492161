"""Snapshots: the same bytes as Python's, loaded in either language; and invalid content."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cpp_build import GOLDEN
from t2r_library import Decoder, Failed, Library

from t2r_runtime import Decoder as Python

GRAPHS = ["tiny", "tiny-hybrid", "packed", "window"]


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("batch", [1, 3])
def test_same_bytes_and_same_states(library: Library, tmp_path: Path, name: str, batch: int) -> None:
    ours, theirs = Decoder(library, GOLDEN / f"{name}.onnx"), Python(GOLDEN / f"{name}.onnx")
    ours.reset(batch)
    theirs.reset(batch)
    tokens = [[(3 * row + place) % 17 for place in range(5)] for row in range(batch)]
    ours.prefill(tokens)
    theirs.prefill(np.array(tokens))
    ours.save(tmp_path / "ours", 7)
    assert theirs.load_state(tmp_path / "ours") == 7
    theirs.save_state(tmp_path / "theirs", 7)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    other = Decoder(library, GOLDEN / f"{name}.onnx")
    assert other.load(tmp_path / "theirs") == 7
    assert other.info.batch == batch and other.info.position == ours.info.position
    for state, array in ours.states().items():
        np.testing.assert_array_equal(other.states()[state], array)
    np.testing.assert_array_equal(other.step([1] * batch), ours.step([1] * batch))


@pytest.fixture(scope="module")
def snapshot(library: Library, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    decoder, path = Decoder(library, GOLDEN / "tiny.onnx"), tmp_path_factory.mktemp("good") / "state"
    decoder.prefill([[1, 2, 3]])
    decoder.save(path)
    return path.read_bytes()


def rewritten(content: bytes, change: Callable[[dict[str, bytes]], None], method: int = zipfile.ZIP_STORED) -> bytes:
    """The snapshot with changed members."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return out.getvalue()


def head(**values: object) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        members["t2r.json"] = json.dumps(json.loads(members["t2r.json"]) | values).encode()

    return change


def member(name: str, change: Callable[[bytes], bytes]) -> Callable[[dict[str, bytes]], None]:
    return lambda members: members.update({name: change(members[name])})


LIES = {
    "version": head(snapshot=2),
    "checkpoint": head(checkpoint_sha256="0" * 64),
    "position below": head(position=-1),
    "position above": head(position=1 << 62),
    "position of another type": head(position="1"),
    "token above": head(token=17),
    "token below": head(token=-5),
    "no head": lambda members: members.pop("t2r.json"),
    "no JSON": member("t2r.json", lambda _: b"{"),
    "long head": member("t2r.json", lambda text: text + b" " * (1 << 17)),
    "missing state": lambda members: members.pop("S.0.npy"),
    "other state": lambda members: members.update({"S.9.npy": members.pop("S.0.npy")}),
    "more states": lambda members: members.update({"S.9.npy": members["S.0.npy"]}),
    "short array": member("S.0.npy", lambda array: array[:-1]),
    "long array": member("S.0.npy", lambda array: array + b"\0"),
    "other shape": member("S.0.npy", lambda array: array.replace(b"(1, 3, 5, 4)", b"(1, 5, 3, 4)")),
    "huge shape": member("S.0.npy", lambda array: array.replace(b"(1, 3, 5, 4)", b"(9999999999,)")),
    "shape that overflows": member(
        "S.0.npy", lambda array: array.replace(b"(1, 3, 5, 4)", b"(4294967296, 4294967296)")
    ),
    "other dtype": member("S.0.npy", lambda array: array.replace(b"<f4", b"<i4")),
    "big end": member("S.0.npy", lambda array: array.replace(b"<f4", b">f4")),
    "objects": member("S.0.npy", lambda array: array.replace(b"'<f4'", b"'|O' ")),
    "Fortran's order": member("S.0.npy", lambda array: array.replace(b"False", b"True ")),
    "another npy": member("S.0.npy", lambda array: array[:6] + b"\2" + array[7:]),
    "negative position": member("position.npy", lambda array: array[:-4] + struct.pack("<i", -1)),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies(library: Library, tmp_path: Path, snapshot: bytes, lie: str) -> None:
    refuse(library, tmp_path, rewritten(snapshot, LIES[lie]))


def test_compressed(library: Library, tmp_path: Path, snapshot: bytes) -> None:
    refuse(library, tmp_path, rewritten(snapshot, lambda _: None, zipfile.ZIP_DEFLATED))


def test_cut_short(library: Library, tmp_path: Path, snapshot: bytes) -> None:
    for cut in range(50):
        refuse(library, tmp_path, snapshot[: len(snapshot) * cut // 50])


def test_any_byte_of_the_directory(library: Library, tmp_path: Path, snapshot: bytes) -> None:
    """With any byte changed there, the snapshot is refused, or its content is the same."""
    decoder = Decoder(library, GOLDEN / "tiny.onnx")
    (tmp_path / "good").write_bytes(snapshot)
    decoder.load(tmp_path / "good")
    before = decoder.states()
    for place in range(snapshot.index(b"PK\1\2"), len(snapshot)):
        (tmp_path / "bad").write_bytes(snapshot[:place] + bytes([snapshot[place] ^ 0x55]) + snapshot[place + 1 :])
        try:
            decoder.load(tmp_path / "bad")
        except Failed as failed:
            kinds = {failed.kind}
        else:
            kinds = {"snapshot"}
        assert kinds == {"snapshot"}
        for name, array in decoder.states().items():
            np.testing.assert_array_equal(array, before[name])


def refuse(library: Library, folder: Path, content: bytes) -> None:
    """Loading is an error of the kind snapshot, and the decoder is unchanged."""
    decoder = Decoder(library, GOLDEN / "tiny.onnx")
    decoder.step([5])
    before = decoder.states()
    (folder / "bad").write_bytes(content)
    with pytest.raises(Failed, match="^snapshot: expected"):
        decoder.load(folder / "bad")
    assert decoder.info.position == 1
    for name, array in decoder.states().items():
        np.testing.assert_array_equal(array, before[name])
    decoder.close()


def test_places(library: Library, tmp_path: Path) -> None:
    decoder = Decoder(library, GOLDEN / "tiny.onnx")
    with pytest.raises(Failed, match="^file: "):
        decoder.load(tmp_path / "nowhere")
    for place in (tmp_path, tmp_path / "no" / "folder"):
        with pytest.raises(Failed, match="^file: "):
            decoder.save(place)
    with pytest.raises(Failed, match="^token: "):
        decoder.save(tmp_path / "state", 17)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Failed, match="^file: "):
        decoder.save(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["link"]
