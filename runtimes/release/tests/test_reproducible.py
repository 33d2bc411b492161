"""Two builds of a tree, in two folders and with other settings of the machine, give the same bytes."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from installs import Released, program
from release import rebuild, stage
from release.files import BILL, STATEMENT, SUMS
from release.packages import PACKAGES

# packages that take the longest: one of them in each run of .ci/run, all of them without T2R_TURN
LONG = ("c", "provider")
OTHERS = {"TZ": "Asia/Kolkata", "LC_ALL": "C"}


def turns(turn: str | None) -> set[str]:
    """The packages of LONG that a run builds again."""
    return set(LONG) if turn is None else {LONG[int(turn.partition("/")[0]) % len(LONG)]}


CHOSEN = [name for name in PACKAGES if name not in LONG or name in turns(os.environ.get("T2R_TURN"))]


@pytest.fixture
def other_settings(released: Released, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Another time zone, language and mask of files."""
    for name, value in {**released.environment, **OTHERS}.items():
        monkeypatch.setenv(name, value)
    old = os.umask(0o027)
    yield
    os.umask(old)


def test_each_long_package_has_its_turn() -> None:
    assert turns("0/3") | turns("1/3") | turns("2/3") == turns(None) == set(LONG) <= set(PACKAGES)


@pytest.mark.usefixtures("other_settings")
@pytest.mark.parametrize("name", CHOSEN)
def test_second_build_elsewhere(name: str, released: Released, copied: Path, tmp_path: Path) -> None:
    if name in released.missing:
        released.file(name, "")
    assert rebuild.build(name, copied, tmp_path / "out", released.tools, stage.date()) is None
    assert rebuild.differences(released.out, tmp_path / "out") == []
    files = {path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert len(files) > 3 and all((released.out / file).is_file() for file in files)


def test_whole_folders_are_equal(copied: Path, small: Path, tmp_path: Path) -> None:
    """With the bill of materials, the statement of provenance and SHA256SUMS."""
    program(rebuild.clone(copied, tmp_path / "tree"), "build", tmp_path / "out", "--only", "t2r-runtime", "go")
    one, other = (
        {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
        for out in (small, tmp_path / "out")
    )
    assert one == other and {Path(BILL), Path(STATEMENT), Path(SUMS)} < set(one)


def written(folder: Path, name: str, **changes: int) -> Path:
    """A folder with a bill of materials of nothing and an archive of two members; the second has these changes."""
    folder.mkdir()
    (folder / BILL).write_text("{}")
    content = b"t2r" * (2 + changes.pop("content", 0))
    with tarfile.open(folder / name, "w:gz") as packed:
        for member in ("one/a", "one/b"):
            entry = tarfile.TarInfo(member)
            entry.size = len(content) if member == "one/b" else 6
            for attribute, value in changes.items() if member == "one/b" else ():
                setattr(entry, attribute, value)
            packed.addfile(entry, io.BytesIO(content))
    return folder


@pytest.mark.parametrize("what", ["mode", "mtime", "uid", "gid", "content"])
def test_difference_of_a_member_is_found(what: str, tmp_path: Path) -> None:
    one, other = written(tmp_path / "one", "a.crate"), written(tmp_path / "other", "a.crate", **{what: 7})
    assert rebuild.differences(one, other) == ["a.crate (one/b)"]


def test_differences_between_archives(tmp_path: Path) -> None:
    one, other = written(tmp_path / "one", "a.tgz"), written(tmp_path / "other", "a.tgz")
    for folder, order in ((one, "ab"), (other, "ba")):
        (folder / "b.whl").write_bytes(b"no archive" + order.encode())
        with zipfile.ZipFile(folder / "c.jar", "w") as archive:
            for name in order:
                archive.writestr(zipfile.ZipInfo(name), "t2r")
    (other / "only-here.zip").touch()
    first, second = rebuild.differences(one, other)
    assert first.startswith("b.whl (BadZipFile(") and second == "c.jar (order or compression)"
    (other / BILL).write_text(json.dumps({"components": [{"bom-ref": "a.tgz", "hashes": []}]}))
    assert rebuild.differences(one, other)[2:] == ["the entry of a.tgz in sbom.cdx.json"]
