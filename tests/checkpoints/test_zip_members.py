"""What is checked is what torch loads, whatever else is in the archive."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from archives import CHANGES, PICKLE, appended
from t2r_export.checkpoints.archive import read_archive, write_archive
from t2r_runtime.errors import UserError

DATA = {"a": torch.arange(3), "b": [1, "x"], 4: None}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_archive(tmp_path / "model.pt", DATA)
    return tmp_path / "model.pt"


@pytest.mark.parametrize("mapped", [True, False])
def test_archive_is_read(path: Path, mapped: bool) -> None:
    found = read_archive(path, "a file", "make it again", mapped)
    assert torch.equal(found["a"], DATA["a"]) and found["b"] == [1, "x"] and found[4] is None


def test_archive_written_by_zipfile_is_read(path: Path) -> None:
    """A copy by another program, without zip64 records."""
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as old, zipfile.ZipFile(path, "w") as new:
        for member in old.namelist():
            new.writestr(member, old.read(member))
    assert read_archive(path, "a file", "make it again")["b"] == [1, "x"]


@pytest.mark.parametrize("change, message", CHANGES.values(), ids=CHANGES)
def test_archive_of_two_meanings_is_refused(path: Path, change: Callable[[bytes], bytes], message: str) -> None:
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=f"^expected a file in .*(?:{message}).*; make it again$"):
        read_archive(path, "a file", "make it again")


def test_appended_member_is_what_torch_would_load(path: Path) -> None:
    """The reason for the check: torch ignores case."""
    path.write_bytes(appended("archive/DATA.PKL", PICKLE)(path.read_bytes()))
    with zipfile.ZipFile(path) as archive:
        assert archive.read("archive/data.pkl") != PICKLE
    assert torch.load(path, weights_only=True) == {}


def test_advice_of_torch_is_not_repeated(path: Path) -> None:
    """An archive of TorchScript, about which torch advises weights_only=False."""
    path.write_bytes(appended("archive/constants.pkl", PICKLE)(path.read_bytes()))
    with pytest.raises(UserError, match="received contents that torch refuses; make it again") as caught:
        read_archive(path, "a file", "make it again")
    assert not re.search("weights_only|torch.load", str(caught.value))
