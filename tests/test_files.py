"""Files in a user's folder: reads are bounded, and files that disappear meanwhile are no error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from t2r_export import files
from t2r_export.checkpoints.build_record import content
from t2r_export.paths import text_files
from t2r_export.providers import pack
from t2r_runtime.errors import UserError


def test_entries(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c.txt").write_text("c")
    (tmp_path / "up").symlink_to(tmp_path)
    assert sorted(files.entries(tmp_path)) == [tmp_path / "a" / "b" / "c.txt", tmp_path / "up"]


def test_large_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_ENTRIES", 5)
    for n in range(5):
        (tmp_path / f"{n}.txt").write_text("text")
    assert len(text_files([tmp_path])) == 5
    (tmp_path / "6").mkdir()
    for read in (lambda: text_files([tmp_path]), lambda: content(tmp_path), lambda: list(pack.entries(tmp_path))):
        with pytest.raises(UserError, match="at most 5 files and folders below it; received more in .*"):
            read()


def test_a_folder_that_is_gone_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    (tmp_path / "a.txt").write_text("text")
    scan = os.scandir

    def late(path: str) -> object:
        if str(path).endswith("gone"):
            raise FileNotFoundError(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", late)
    assert text_files([tmp_path]) == (tmp_path / "a.txt",)
