"""Saving and loading changes nothing, and invalid files are rejected."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from runtime import graphs
from runtime.conftest import Open
from t2r_runtime import Decoder, UserError
from t2r_runtime.session import archive


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["constant", "growing", "both", "silent"]),
    columns=st.integers(1, 3).flatmap(
        lambda batch: st.lists(
            st.lists(st.integers(0, graphs.VOCABULARY - 1), min_size=batch, max_size=batch), min_size=1, max_size=8
        )
    ),
    cut=st.integers(0, 8),
)
@example(kind="both", columns=[[3, 1], [4, 1], [5, 9]], cut=0)  # before the first token: caches of length 0
def test_save_load_round_trip(kind: str, columns: list[list[int]], cut: int, opened: Open, tmp_path: Path) -> None:
    batch, cut = len(columns[0]), min(cut, len(columns))
    whole, first, second = opened(kind), opened(kind), opened(kind)
    second.prefill([7, 7])  # the earlier text and batch do not matter
    for decoder in (whole, first):
        decoder.reset(batch=batch)
    for column in columns[:cut]:
        whole.step(column)
        first.step(column)
    first.save_state(tmp_path / "s.npz")
    second.load_state(tmp_path / "s.npz")
    assert (second.batch, second.position) == (batch, cut)
    for column in columns[cut:]:
        np.testing.assert_array_equal(whole.step(column), second.step(column))
    for name, state in whole.state().items():
        np.testing.assert_array_equal(state, second.state()[name])


@pytest.fixture
def saved(opened: Open, tmp_path: Path) -> tuple[Decoder, Path]:
    """A decoder that has read two tokens of two texts, and its snapshot."""
    decoder = opened("both")
    decoder.reset(batch=2)
    decoder.prefill([[3, 1], [4, 1]])
    decoder.save_state(tmp_path / "s.npz")
    return decoder, tmp_path / "s.npz"


def refused(decoder: Decoder, path: Path) -> str:
    before, position = decoder.state(), decoder.position
    with pytest.raises(UserError) as caught:
        decoder.load_state(path)
    assert decoder.position == position
    for name, state in decoder.state().items():
        np.testing.assert_array_equal(state, before[name])
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_numpy_opens_it(saved: tuple[Decoder, Path]) -> None:
    decoder, path = saved
    with np.load(path, allow_pickle=False) as opened:
        for name, state in decoder.state().items():
            np.testing.assert_array_equal(opened[name], state)


def test_snapshot_deterministic(saved: tuple[Decoder, Path], tmp_path: Path) -> None:
    saved[0].save_state(tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == saved[1].read_bytes()


def test_another_model(saved: tuple[Decoder, Path], opened: Open) -> None:
    message = "expected a snapshot of the checkpoint abababababab; received one of the checkpoint 'c0ffeec0ffee'; read"
    assert refused(opened("both", checkpoint_sha256="ab" * 32), saved[1]).startswith(message)


def test_snapshot_of_other_export(saved: tuple[Decoder, Path], opened: Open) -> None:
    assert "unexpected cache.1; take them from the same model" in refused(opened("constant"), saved[1])
    assert "(2, 3, 5, 4) for float32 ('B', 3, 5, 4)" in refused(opened("both", batch=3), saved[1])


def test_not_a_snapshot(opened: Open, tmp_path: Path) -> None:
    assert refused(opened(), tmp_path / "no.npz").endswith("no.npz, which does not exist; check the path")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    message = refused(opened(), tmp_path / "other.npz")
    assert message.startswith("expected a snapshot written by save_state; received ")
    assert message.endswith(
        "other.npz: no t2r.json, or a repeated name; read the prompt with this model and save it again"
    )


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_untrusted_snapshots(saved: tuple[Decoder, Path]) -> None:
    decoder, path = saved
    with zipfile.ZipFile(path) as opened:
        members = {name: opened.read(name) for name in opened.namelist()}
    head = json.loads(members["t2r.json"])
    attempts: list[tuple[dict[str, bytes], str]] = [
        (members | {"t2r.json": b"{"}, "Expecting"),
        (members | {"t2r.json": b"[" * 60_000}, "recursion"),
        (members | {"t2r.json": b" " * 70_000}, "t2r.json is too large"),
        (members | {"t2r.json": b"[]"}, "t2r.json is malformed"),
        (members | {"t2r.json": json.dumps(head | {"position": -1}).encode()}, "t2r.json is malformed"),
        (members | {"t2r.json": json.dumps(head | {"snapshot": 2}).encode()}, "version 1; received version 2"),
        (members | {"../z.0.npy": members["z.0.npy"]}, "unexpected ../z.0"),
        (members | {"z.0": members["z.0.npy"]}, "'z.0' is not an array"),
        (members | {"z.0.npy": npy(np.zeros((2, 3, 5)))}, "z.0 float64 (2, 3, 5) for float32"),
        (members | {"z.0.npy": npy(np.array([{}]))}, "'z.0.npy' has a size other"),
        (members | {"z.0.npy": members["z.0.npy"] + b"more"}, "'z.0.npy' has a size other"),
        (members | {"z.0.npy": npy(np.zeros(3)).replace(b"(3,)", b"(9" + b"9" * 12 + b",)")}, ""),
        (members | {"z.0.npy": b"\x93NUMPY\x02\x00" + members["z.0.npy"][8:]}, "format other than 1.0"),
        (members | {"position.npy": npy(np.array([2, -2], np.int32))}, "positions of at least 0"),
        ({name: data for name, data in members.items() if name != "S.0.npy"}, "missing S.0"),
    ]
    for contents, message in attempts:
        write(path, contents, zipfile.ZIP_STORED)
        assert message in refused(decoder, path)
    write(path, members, zipfile.ZIP_DEFLATED)
    assert "is compressed" in refused(decoder, path)
    with zipfile.ZipFile(path, "a") as opened:
        opened.writestr("z.0.npy", members["z.0.npy"])
    assert "or a repeated name" in refused(decoder, path)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_file(data: st.DataObject, saved: tuple[Decoder, Path]) -> None:
    decoder, path = saved
    good = bytearray(path.read_bytes())
    damage: Callable[[], bytearray] = data.draw(st.sampled_from([cut_off, flip]))(data, good)
    broken = path.with_name("broken.npz")
    broken.write_bytes(damage)
    assert complaint(decoder, broken).isprintable()
    assert decoder.position == 2


def complaint(decoder: Decoder, path: Path) -> str:
    try:
        decoder.load_state(path)
    except UserError as error:
        return str(error)
    return ""


def cut_off(data: st.DataObject, good: bytearray) -> bytearray:
    return good[: data.draw(st.integers(0, len(good) - 1))]


def flip(data: st.DataObject, good: bytearray) -> bytearray:
    changed = good.copy()
    for place in data.draw(st.lists(st.integers(0, len(good) - 1), min_size=1, max_size=4)):
        changed[place] = data.draw(st.integers(0, 255))
    return changed


def test_save_state_with_token(opened: Open, tmp_path: Path) -> None:
    decoder, path = opened(), tmp_path / "s.npz"
    whole = decoder.generate([3, 1], 9, graphs.GREEDY)
    decoder.reset()
    first = decoder.generate([3, 1], 4, graphs.GREEDY)
    decoder.save_state(path, first[-1])
    decoder.reset()
    token = decoder.load_state(path)
    assert token == first[-1]
    assert first + decoder.generate([token], 5, graphs.GREEDY) == whole
    decoder.save_state(path)
    assert decoder.load_state(path) is None


@pytest.mark.parametrize("token", [-1, graphs.VOCABULARY, "3", 1.0, True, [1]])
def test_save_state_invalid_token(token: Any, opened: Open, tmp_path: Path) -> None:
    decoder, path = opened(), tmp_path / "s.npz"
    with pytest.raises(UserError, match="expected a token in 0 … 10, or None"):
        decoder.save_state(path, token)
    decoder.save_state(path, 3)
    members = {info.filename: content for info, content in contents(path)}
    members["t2r.json"] = members["t2r.json"].replace(b'"token": 3', f'"token": {json.dumps(token)}'.encode())
    write(path, members, zipfile.ZIP_STORED)
    with pytest.raises(UserError, match="has a token out of range"):
        decoder.load_state(path)


def contents(path: Path) -> list[tuple[zipfile.ZipInfo, bytes]]:
    with zipfile.ZipFile(path) as opened:
        return [(info, opened.read(info)) for info in opened.infolist()]


def test_only_a_saved_state_is_replaced(saved: tuple[Decoder, Path], tmp_path: Path) -> None:
    decoder, path = saved
    decoder.save_state(path)
    archive.write(tmp_path / "others.npz", {"datastore": 1}, {}, "datastore")
    (tmp_path / "notes.txt").write_text("of a year")
    for name in ("others.npz", "notes.txt"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(UserError, match="expected a saved state or no file at .*; received another file"):
            decoder.save_state(tmp_path / name)
        assert (tmp_path / name).read_bytes() == before
    (tmp_path / "empty").touch()
    decoder.save_state(tmp_path / "empty")


def test_unwritable_output(saved: tuple[Decoder, Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="to be able to write"):
        saved[0].save_state(tmp_path / "no" / "s.npz")


def test_failed_save_keeps_old_file(saved: tuple[Decoder, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, path = saved
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    with pytest.raises(UserError, match="No space left on device"):
        decoder.save_state(path)
    assert path.read_bytes() == before
    assert list(path.parent.glob(".*")) == []


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=(1, 0), allow_pickle=True)
    return buffer.getvalue()


def write(path: Path, members: dict[str, bytes], compression: int) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def by_the_page(head: str, arrays: dict[str, np.ndarray]) -> bytes:
    """The file by the definition of runtimes/contract/snapshots.md."""
    content = {"t2r.json": head.encode()}
    for name, array in arrays.items():
        shape = f"({array.shape[0]},)" if array.ndim == 1 else str(array.shape)
        text = f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': {shape}, }}"
        text += " " * (21 - len(str(array.shape[0])))
        text += " " * (-(10 + len(text) + 1) % 64) + "\n"
        header = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()
        content[f"{name}.npy"] = header + array.tobytes()
    out, entries = b"", b""
    for name, data in content.items():
        size, crc = len(data), zlib.crc32(data)
        entries += (
            struct.pack(
                "<IHHHHHHIIIHHHHHII",
                0x02014B50,
                0x032D,
                45,
                0,
                0,
                0,
                33,
                crc,
                size,
                size,
                len(name),
                0,
                0,
                0,
                0,
                0x01800000,
                len(out),
            )
            + name.encode()
        )
        out += struct.pack("<IHHHHHIIIHH", 0x04034B50, 45, 0, 0, 0, 33, crc, 0xFFFFFFFF, 0xFFFFFFFF, len(name), 20)
        out += name.encode() + struct.pack("<HHQQ", 1, 16, size, size) + data
    count = len(content)
    return out + entries + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, len(entries), len(out), 0)


@pytest.mark.parametrize("token", [None, 3])
def test_snapshot_bytes_match_contract(token: int | None, opened: Open, tmp_path: Path) -> None:
    decoder = opened("both")
    decoder.reset(2)
    decoder.prefill([[1, 2, 3], [4, 5, 6]])
    decoder.save_state(tmp_path / "s", token)
    head = f'{{"snapshot": 1, "checkpoint_sha256": "{decoder.signature.checkpoint_sha256}", "position": 3'
    states = decoder.state()
    arrays = {spec.name: states[spec.name] for spec in decoder.signature.states}
    written = by_the_page(head + ("}" if token is None else f', "token": {token}}}'), arrays)
    assert (tmp_path / "s").read_bytes() == written
    (tmp_path / "t").write_bytes(written)
    assert opened("both").load_state(tmp_path / "t") == token


def test_fortran_order_rejected(opened: Open, tmp_path: Path) -> None:
    """numpy reads them, other languages do not."""
    decoder = opened("constant")
    path = tmp_path / "s"
    with zipfile.ZipFile(path, "w") as archive:
        head = {"snapshot": 1, "checkpoint_sha256": decoder.signature.checkpoint_sha256, "position": 0}
        archive.writestr("t2r.json", json.dumps(head))
        for name, array in decoder.state().items():
            with archive.open(name + ".npy", "w") as member:
                np.lib.format.write_array(member, np.asfortranarray(array), version=(1, 0))
    with pytest.raises(UserError, match="in Fortran order"):
        decoder.load_state(path)
