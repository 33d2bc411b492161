"""What verify checks: files, bill of materials, provenance, and a second build."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cpp_build import ROOT
from installs import Released, output, program, relist
from release.files import BILL, STATEMENT, SUMS, hashes, write_sums
from release.packages import PACKAGES

WHEEL = "t2r_runtime-*.whl"


@pytest.fixture
def folder(small: Path, tmp_path: Path) -> Path:
    """A copy of a release."""
    return Path(shutil.copytree(small, tmp_path / "release"))


def edited(path: Path, change: Callable[[Any], object]) -> None:
    """Change a JSON document, and list its new hash in SHA256SUMS."""
    document = json.loads(path.read_text("utf-8"))
    change(document)
    path.write_text(json.dumps(document), "utf-8")
    write_sums(path.parent)


def test_release_is_accepted(copied: Path, folder: Path) -> None:
    lines = program(copied, "verify", folder).splitlines()
    count = len(hashes(folder))
    assert lines == [
        f"SHA256SUMS: {count} files, none missing, additional or changed",
        f"{BILL}: the hashes of 3 archives",
        f"{STATEMENT}: commit {output(copied, 'git', 'rev-parse', 'HEAD').strip()}, unsigned",
        "t2r-runtime: built again, 2 files",
        "go: built again, 4 files",
    ]
    assert output(folder, "sha256sum", "--check", "--quiet", SUMS) == ""


def test_missing_additional_and_changed_files_are_named(copied: Path, folder: Path) -> None:
    [wheel] = folder.glob(WHEEL)
    wheel.write_bytes(wheel.read_bytes()[:-1])
    [sources] = folder.glob("*.tar.gz")
    sources.unlink()
    (folder / "go" / "more\x1b.zip").touch()
    assert program(copied, "verify", folder, code=2) == (
        f"release: expected the files of SHA256SUMS in {folder}; received missing: {sources.name}; additional: "
        f"go/more\\x1b.zip; changed: {wheel.name}; download the release again, and do not install it\n"
    )


@pytest.mark.parametrize(
    "text, received",
    [
        (None, "received {folder} without it; name another folder"),
        ("a" * 64 + " go.zip\n", "received '" + "a" * 64 + " go.zip'; download"),
        (f"{'a' * 64}  go.zip\n" * 2, "a name that no other line has; received"),
    ],
)
def test_other_checksums_are_refused(text: str | None, received: str, copied: Path, folder: Path) -> None:
    (folder / SUMS).unlink() if text is None else (folder / SUMS).write_text(text)
    assert received.format(folder=folder) in program(copied, "verify", folder, code=2)


def wheel_of(bill: Any) -> Any:
    return next(part for part in bill["components"] if part["bom-ref"].endswith(".whl"))


def other_hash(bill: Any) -> None:
    wheel_of(bill)["hashes"][0]["content"] = "0" * 64


def missing_archive(bill: Any) -> None:
    bill["components"].remove(wheel_of(bill))


def additional_archive(bill: Any) -> None:
    bill["components"].append({**wheel_of(bill), "bom-ref": "other.whl"})


@pytest.mark.parametrize("change", [other_hash, missing_archive, additional_archive])
def test_bill_of_other_archives_is_refused(change: Callable[[Any], None], copied: Path, folder: Path) -> None:
    edited(folder / BILL, change)
    name = "other.whl" if change is additional_archive else next(folder.glob(WHEEL)).name
    expected = f"expected the hashes of SHA256SUMS in {BILL}; received others of {name}; download"
    assert expected in program(copied, "verify", folder, code=2)


def other_subject(statement: Any) -> None:
    statement["subject"][0]["digest"]["sha256"] = "0" * 64


def missing_subject(statement: Any) -> None:
    del statement["subject"][0]


def other_type(statement: Any) -> None:
    statement["predicateType"] = "https://slsa.dev/provenance/v0.2"


def other_package(statement: Any) -> None:
    statement["predicate"]["buildDefinition"]["externalParameters"]["packages"].append("cobol")


def other_commit(statement: Any) -> None:
    statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"]["gitCommit"] = "5" * 40


def changed_tree(statement: Any) -> None:
    statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]["annotations"] = {"modified": True}


@pytest.mark.parametrize(
    "change, received",
    [
        (other_subject, "received others of go/t2r.internal/t2r/@v/list; download"),
        (missing_subject, "received others of go/t2r.internal/t2r/@v/list; download"),
        (other_type, "received ('https://in-toto.io/Statement/v1', 'https://slsa.dev/provenance/v0.2', "),
        (other_package, f"expected a statement of provenance in {STATEMENT}; received KeyError('cobol'); download"),
        (other_commit, f"received one of {'5' * 40}; check out the commit that the project published as"),
        (changed_tree, "expected a release of a commit; received one of changes after commit"),
    ],
)
def test_other_provenance_is_refused(change: Callable[[Any], None], received: str, copied: Path, folder: Path) -> None:
    edited(folder / STATEMENT, change)
    assert received in program(copied, "verify", folder, code=2)


def forged(folder: Path) -> Path:
    """Change a file in the wheel of a release, and the hashes; returns the wheel."""
    [wheel] = folder.glob(WHEEL)
    before = hashes(folder)
    with zipfile.ZipFile(wheel) as archive:
        members = [(entry, archive.read(entry)) for entry in archive.infolist()]
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry, data in members:
            archive.writestr(entry, data + b"import os" if entry.filename == "t2r_runtime/files.py" else data)
    relist(folder, wheel, before)
    return wheel


def test_other_bytes_than_those_of_a_second_build_are_refused(copied: Path, folder: Path) -> None:
    """Even if all descriptions have their hash. Without a second build they are not seen."""
    wheel = forged(folder)
    received = f"received others of {wheel.name} (t2r_runtime/files.py); the entry of {wheel.name} in {BILL}; "
    assert f"{received}do not install it" in program(copied, "verify", folder, code=2)
    edited(folder / STATEMENT, other_program)
    assert f"{received}build with python 3.4.5" in program(copied, "verify", folder, "--only", "t2r-runtime", code=2)
    lines = program(copied, "verify", folder, "--only", "go").splitlines()
    sources = next(folder.glob("*.tar.gz")).name
    assert lines[3:] == ["go: built again, 4 files", f"not compared with a second build: {wheel.name}, {sources}"]
    assert len(program(copied, "verify", folder, "--only").splitlines()) == 3


def other_program(statement: Any) -> None:
    statement["predicate"]["buildDefinition"]["internalParameters"]["programs"]["python"] = "3.4.5"


def rust(statement: Any) -> None:
    statement["predicate"]["buildDefinition"]["externalParameters"]["packages"] = ["rust", "go"]


def test_package_without_its_programs_is_named(copied: Path, folder: Path, tmp_path: Path) -> None:
    edited(folder / STATEMENT, rust)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").symlink_to(str(shutil.which("git")))
    lines = program(copied, "verify", folder, PATH=str(tmp_path / "bin")).splitlines()
    assert lines[3] == (
        "rust: not built on this machine: expected the program cargo on the PATH; received none; install it"
    )
    assert lines[4] == "go: built again, 4 files" and lines[5].startswith(
        "not compared with a second build: t2r_runtime"
    )


def test_statement_of_provenance(released: Released) -> None:
    """Of all packages: their inputs, and the versions of the programs that built them."""
    statement = json.loads((released.out / STATEMENT).read_text("utf-8"))
    definition = statement["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["packages"] == [name for name in PACKAGES if name not in released.missing]
    names = {one["name"] for one in statement["subject"]}
    assert names == set(hashes(released.out)) - {STATEMENT} and len(names) > 10
    source, library = definition["resolvedDependencies"]
    assert source["digest"] == {"gitCommit": output(ROOT, "git", "rev-parse", "HEAD").strip()}
    with tarfile.open(released.file("c", "t2r-*-linux-*.tar.gz")) as packed:
        [held] = [packed.extractfile(one) for one in packed if one.name.endswith("/libonnxruntime.so.1")]
        assert held is not None and library["digest"] == {"sha256": hashlib.sha256(held.read()).hexdigest()}
    programs = definition["internalParameters"]["programs"]
    assert {"python", "setuptools", "scikit-build-core", "cmake", "c++"} <= set(programs)
    assert all(re.search(r"\d+\.\d+", version) for version in programs.values()), programs
