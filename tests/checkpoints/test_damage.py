"""Damaged files, and unbounded data with valid checksums."""

from __future__ import annotations

import contextlib
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoint_files import put, refused
from t2r_export.checkpoints import checkpoint
from t2r_runtime.errors import UserError


def same(found: checkpoint.Checkpoint, other: checkpoint.Checkpoint) -> bool:
    """Whether two checkpoints have identical config, tokenizer, provenance and weights."""
    ours, theirs = found.model.state_dict(), other.model.state_dict()
    rest = [(one.config, one.tokenizer, one.provenance) for one in (found, other)]
    return rest[0] == rest[1] and all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.parametrize("seed", range(20))
def test_flipped_bit_is_detected_or_harmless(saved: Path, seed: int) -> None:
    """The bit is anywhere in the file; bytes without a checksum (padding, times) are not read."""
    before, content = checkpoint.load(saved), bytearray(saved.read_bytes())
    damaged, found = saved.with_name("damaged.pt"), 0
    generator = torch.Generator().manual_seed(seed)
    for place in torch.randint(0, len(content), (5,), generator=generator).tolist():
        bit = 1 << int(torch.randint(0, 8, (), generator=generator))
        content[place] ^= bit
        damaged.write_bytes(content)
        content[place] ^= bit
        try:
            assert same(checkpoint.load(damaged), before)
        except UserError:
            found += 1
    assert found


def rewritten(saved: Path, change: Callable[[bytes], bytes]) -> Path:
    """The archive with another data.pkl and valid checksums: deliberate damage."""
    path = saved.with_name("made.pt")
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, change(data) if name.endswith("/data.pkl") else data)
    return path


def test_flipped_bit_in_weight_names_member(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    with zipfile.ZipFile(saved) as archive:
        member = archive.getinfo("archive/data/3")
    content[member.header_offset + 100] ^= 1
    saved.write_bytes(content)
    expected = "a checkpoint without damage in .*; received archive/data/3 that differs from its checksum"
    refused(saved, f"{expected}; copy or download")


@pytest.mark.parametrize("seed", range(60))
def test_damaged_pickle_is_refused(saved: Path, seed: int) -> None:
    """With a valid checksum, any damage in the pickle gives a model or a one-line error."""
    generator = torch.Generator().manual_seed(seed)

    def change(data: bytes) -> bytes:
        content = bytearray(data)
        content[int(torch.randint(2, len(data), (), generator=generator))] ^= int(
            torch.randint(1, 256, (), generator=generator)
        )
        return bytes(content)

    with contextlib.suppress(UserError):
        checkpoint.load(rewritten(saved, change))


def doubled(empty: Any, times: int = 60) -> Any:
    """A nested list, dict or tuple, each holding the next one twice: 2^60 values in 60."""
    value = empty
    for _ in range(times):
        value = {"a": value, "b": value} if isinstance(empty, dict) else type(empty)((value, value))
    return value


def itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


ENDLESS: list[Any] = [doubled([]), doubled({}), itself()]


@pytest.mark.parametrize("value", ENDLESS, ids=["lists", "objects", "itself"])
@pytest.mark.parametrize(
    "place",
    [
        ("provenance", "x"),
        ("config", "width"),
        ("config", "layers"),
        ("tokenizer",),
        ("version",),
        ("format",),
        ("more",),
    ],
)
def test_exponential_data_is_refused(saved: Path, place: tuple[str, ...], value: Any) -> None:
    data = torch.load(saved, weights_only=True)
    put(*place, value=value)(data)
    torch.save(data, saved)
    refused(saved, f"plain data as '{place[0]}' in .*; received more than 1048576 values, .*; do not trust this file")


@pytest.mark.parametrize("key", [doubled(()), 10**30, None, (1, 2)])
def test_exponential_key_is_refused(saved: Path, key: Any) -> None:
    data = torch.load(saved, weights_only=True)
    data["provenance"]["x"] = [1]
    data["weights"] = {}
    torch.save(data, saved)
    # pickled as a list, then rewritten as a dict item: Python could not hash the first key
    pair = pickle.dumps([key, 1], protocol=2)[2:-1]
    path = rewritten(saved, lambda content: b"\x80\x02}(" + keyed(pair) + b"u.")
    refused(path, "received something else: an object with keys that are no texts or integers; pass a model.pt")


def keyed(pair: bytes) -> bytes:
    """The pickle instructions of a list of two values, without those of the list."""
    start = pair.index(b"(") + 1
    assert pair[0:1] == b"]"
    assert pair[-1:] == b"e"
    return pair[start:-1]


@pytest.mark.parametrize(
    "instructions",
    [
        b"cbuiltins\nbytearray\n\x8a\x06\x00\x00\x00\x00\x00\x10\x85R.",
        b"ctorch\nFloatStorage\n\x8a\x06\x00\x00\x00\x00\x00\x10\x85R.",
        b"ccollections\nOrderedDict\n]\x85R.",
        b"ccollections\nOrderedDict\n)R}b.",
        b"\x8f.",
    ],
)
def test_needless_calls_are_refused(saved: Path, instructions: bytes) -> None:
    refused(rewritten(saved, lambda data: b"\x80\x02" + instructions), "a reference to builtins|something else: ")
