"""A release: versions, checksums, bill of materials, licences, and only files tracked by git."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import onnxruntime
import pytest
from cpp_build import ROOT
from installs import Released, contents, output
from release import stage, versions
from release.__main__ import main, prefix
from release.assemble import release
from release.files import ARCHIVES
from release.packages import Tools

from t2r_export.version import __version__


def copied(folder: Path) -> Path:
    """Copy the files that contain the version."""
    for name in (versions.SOURCE, *versions.STATED):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def test_one_version() -> None:
    assert versions.version() == __version__


@pytest.mark.parametrize("file, place", [(file, n) for file, all_ in versions.STATED.items() for n in range(len(all_))])
def test_another_version_is_refused(file: str, place: int, tmp_path: Path) -> None:
    path = copied(tmp_path) / file
    text = path.read_text("utf-8")
    found = re.search(versions.STATED[file][place], text, re.DOTALL)
    assert found is not None
    path.write_text(f"{text[: found.start(2)]}7{text[found.end(2) :]}", "utf-8")
    with pytest.raises(ValueError, match=rf"expected the version [\d.]+ in {file}; received \d+\.7"):
        versions.version(tmp_path)
    path.write_text(re.sub(versions.STATED[file][place], "", text, flags=re.DOTALL), "utf-8")
    with pytest.raises(ValueError, match=f"expected a version in {file}; received none"):
        versions.version(tmp_path)


def test_every_manifest_with_a_version_is_listed() -> None:
    """Except those of programs that are not published."""
    manifests = re.compile(r"(^|/)(pyproject\.toml|package\.json|Cargo\.toml)$")
    own = {"benchmarks/embedding/rust/Cargo.toml"}
    listed = output(ROOT, "git", "ls-files").split()
    found = {name for name in listed if manifests.search(name) and '"0.' in (ROOT / name).read_text("utf-8")}
    stated = {
        name for name in found if re.search(r'(?m)^\s*"?version"?\s*[:=]\s*"\d', (ROOT / name).read_text("utf-8"))
    }
    assert stated - own <= set(versions.STATED) and len(stated) > 2


def test_checksums(released: Released) -> None:
    """SHA256SUMS lists every other file, in the format of `sha256sum --check`."""
    lines = (released.out / "SHA256SUMS").read_text("utf-8").splitlines()
    named = {line.split("  ")[1] for line in lines}
    files = {path.relative_to(released.out).as_posix() for path in released.out.rglob("*") if path.is_file()}
    assert named == files - {"SHA256SUMS"} and len(named) > 10
    assert output(released.out, "sha256sum", "--check", "--quiet", "SHA256SUMS") == ""


def test_bill_of_materials(released: Released) -> None:
    document = json.loads((released.out / "sbom.cdx.json").read_text("utf-8"))
    assert (document["bomFormat"], document["specVersion"], document["metadata"]["component"]["version"]) == (
        "CycloneDX",
        "1.6",
        __version__,
    )
    parts = {part["bom-ref"]: part for part in document["components"]}
    dependencies = {entry["ref"]: set(entry.get("dependsOn", ())) for entry in document["dependencies"]}
    files = [path for path in released.out.rglob("*") if path.suffix in ARCHIVES]
    assert len(files) == len(dependencies["t2r-export"]) > 8
    for path in files:
        name = path.relative_to(released.out).as_posix()
        assert parts[name]["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}]
        assert f"@{__version__}?" in parts[name]["purl"] and dependencies[name] <= set(parts)
        contained = {part["name"] for part in parts[name].get("components", ())}
        assert contained == {
            ".deb": {"Unicode Character Database", "onnxruntime"},
            ".jar": {"Unicode Character Database", "onnxruntime"},
            ".gz": {"Unicode Character Database"} if "source" in name else contained,
        }.get(path.suffix, set()), name
        linked = {part.get("version") for part in parts[name].get("components", ()) if part["name"] == "onnxruntime"}
        assert linked <= {onnxruntime.__version__}, name
    [wheel] = released.out.glob("t2r_runtime-*.whl")
    assert {ref.partition(" ")[0] for ref in dependencies[wheel.name]} == {
        f"needed:pypi//{name}" for name in ("numpy", "onnxruntime", "tokenizers")
    }


def test_every_archive_has_the_licences(released: Released) -> None:
    paths = [path for path in released.out.rglob("*") if path.suffix in ARCHIVES - {".deb"}]
    assert len(paths) > 7
    for path in paths:
        files = contents(path)
        for legal in stage.LEGAL:
            [name] = [name for name in files if Path(name).name == legal]
            assert files[name] == (ROOT / legal).read_bytes(), path
        if any("libonnxruntime" in name for name in files):
            kept = {Path(name).name for name in files}
            assert {"onnxruntime-LICENSE", "onnxruntime-ThirdPartyNotices.txt"} <= kept, path


def test_python_packages_are_typed(released: Released) -> None:
    paths = sorted(released.out.glob("t2r_*.whl")) + sorted(released.out.glob("t2r_*-*.tar.gz"))
    assert len(paths) == 4
    for path in paths:
        assert any(name.endswith("/py.typed") for name in contents(path)), path


def test_npm_archive_contains_its_modules_and_types(released: Released) -> None:
    """Type declarations are generated when it is packed."""
    files = contents(released.file("js", "*.tgz"))
    described = json.loads(files["package/package.json"])
    named = re.findall(r'"\./((?:src|types)/[^"]+)"', json.dumps(described))
    assert {"types/index.d.ts", "src/worker.js", "src/platform_browser.js"} <= set(named)
    assert {f"package/{name}" for name in named} <= set(files)


def test_manifests_name_no_host(released: Released) -> None:
    """The project has no home page."""
    for name in (
        "pyproject.toml",
        "runtimes/python/pyproject.toml",
        "runtimes/rust/Cargo.toml",
        "runtimes/js/package.json",
    ):
        assert "://" not in (ROOT / name).read_text("utf-8"), name


def test_only_tracked_files_are_staged(tmp_path: Path) -> None:
    place = stage.stage("runtimes/rust", tmp_path / "stage")
    listed = output(ROOT / "runtimes/rust", "git", "ls-files").split()
    assert {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()} == set(listed)


def test_folder_with_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old").touch()
    with pytest.raises(ValueError, match="expected an empty folder"):
        release(tmp_path, [], Tools())
    monkeypatch.setattr("sys.argv", ["release", "build", str(tmp_path), "--only", "go"])
    assert main() == 2
    assert capsys.readouterr().err.startswith("release: expected an empty folder; received ")


def test_output_of_a_failed_program_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="expected cmake .* to succeed; received:"):
        release(tmp_path / "out", ["java"], Tools(cmake=["--wrong"], build=tmp_path / "build"))


def test_paths_of_the_jdk_are_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative one would be looked for in the folder where the jar is built."""
    monkeypatch.chdir(ROOT)
    assert prefix("'.ci/debian_java' nowhere/jdk -J-x") == [str(ROOT / ".ci" / "debian_java"), "nowhere/jdk", "-J-x"]
