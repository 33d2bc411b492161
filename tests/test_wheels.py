"""What pip installs: both wheels are built, and hold the modules of their package, its py.typed, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {"t2r_export": ROOT, "t2r_runtime": ROOT / "runtimes" / "python"}
PACKAGING = ("setup.cfg", "setup.py", "README.md", "LICENSE")
BUILT = shutil.ignore_patterns("__pycache__", "*.pyc")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, zipfile.ZipFile]:
    """By package; built from copies, so that nothing is left in the source tree."""
    made = {}
    for package, folder in FOLDERS.items():
        place = tmp_path_factory.mktemp(package)
        # everything that could end up in a wheel by mistake is there
        for name in ("tests", "benchmarks", "models", "docs"):
            (place / "source" / name).mkdir(parents=True)
            (place / "source" / name / "__init__.py").touch()
        shutil.copytree(folder / package, place / "source" / package, ignore=BUILT)
        for name in PACKAGING:
            if (folder / name).exists():
                shutil.copy(folder / name, place / "source")
        options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", place]
        command = [sys.executable, "-m", "pip", "wheel", *map(str, options), str(place / "source")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        [wheel] = place.glob("*.whl")
        made[package] = zipfile.ZipFile(wheel)
    return made


@pytest.mark.parametrize("package", FOLDERS)
def test_a_wheel_holds_its_package_and_nothing_else(package: str, wheels: dict[str, zipfile.ZipFile]) -> None:
    source = FOLDERS[package] / package
    modules = {f"{package}/{path.relative_to(source)}" for path in source.rglob("*.py")}
    found = {name for name in wheels[package].namelist() if ".dist-info/" not in name}
    assert found == modules | {f"{package}/py.typed"}


@pytest.mark.parametrize("package", FOLDERS)
def test_the_source_has_nothing_that_a_wheel_would_lack(package: str) -> None:
    files = {path.name for path in (FOLDERS[package] / package).rglob("*") if path.is_file()}
    assert {name for name in files if not name.endswith((".py", ".pyc"))} == {"py.typed"}


def metadata(wheel: zipfile.ZipFile) -> Message:
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(wheel.read(name).decode())


def test_the_runtime_needs_three_packages(wheels: dict[str, zipfile.ZipFile]) -> None:
    needed = metadata(wheels["t2r_runtime"]).get_all("Requires-Dist") or []
    extra = [text for text in needed if "extra ==" in text]
    assert {text.partition(">")[0] for text in needed if text not in extra} == {"numpy", "onnxruntime", "tokenizers"}
    assert [text.partition(">")[0] for text in extra] == ["jinja2"]


def test_commands_and_extras(wheels: dict[str, zipfile.ZipFile]) -> None:
    wheel = wheels["t2r_export"]
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt")]
    lines = wheel.read(name).decode().split("\n")
    assert [line for line in lines if "=" in line] == [
        "t2r = t2r_export.__main__:t2r",
        "t2r-export = t2r_export.__main__:export",
    ]
    assert metadata(wheel).get_all("Provides-Extra") == ["bleu", "peers", "plot", "test", "dev"]
    versions = {package: metadata(wheel)["Version"] for package, wheel in wheels.items()}
    assert versions == {package: __import__(package).__version__ for package in FOLDERS}
