"""A folder is written whole or not at all, with the permissions of ordinary files."""

from __future__ import annotations

import dataclasses
import os
import stat
from pathlib import Path

import pytest

import small
import texts
from checkpoints.hub.test_translator import ours
from disk import full_disk
from t2r_export.checkpoints import checkpoint
from t2r_export.cli import main

WIDE = {"ffn_size": 1999}  # so that the weights are larger than any text
MODELS = {
    "transformers": dataclasses.replace(texts.TEACHER, **WIDE),
    "marian": ours("marian", **WIDE),
    "pegasus": ours("pegasus", **WIDE),
}


@pytest.mark.parametrize("form", MODELS)
def test_a_full_disk_leaves_nothing(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out" / "folder"
    out.parent.mkdir()
    checkpoint.save(tmp_path / "model.pt", small.model(MODELS[form]), texts.tokenizer(), {})
    command = ["save", str(tmp_path / "model.pt"), str(out), "--as", form]
    assert main(command) == 0
    files = {path.name: path.stat() for path in out.iterdir()}
    umask = os.umask(0)
    os.umask(umask)
    assert {stat.S_IMODE(file.st_mode) for file in files.values()} == {0o666 & ~umask}
    weights = files.pop("model.safetensors").st_size
    largest = max(file.st_size for file in files.values())
    assert largest < weights // 2
    out.rename(tmp_path / "earlier")
    capsys.readouterr()
    for room in (0, largest, weights // 2):
        with full_disk(room):
            code = main(command)
        message = capsys.readouterr().err
        assert code == 2, message
        assert f"expected to be able to write {out}; received " in message and "File too large" in message
        assert message.count("\n") == 1
        assert list(out.parent.iterdir()) == []
    assert main(command) == 0  # nothing is in the way of the next run
    for file in (tmp_path / "earlier").iterdir():
        assert file.read_bytes() == (out / file.name).read_bytes()
