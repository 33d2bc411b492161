"""LICENSE and NOTICE in what packaging tools make straight from the repository, without a release."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from bindings_build import refuse
from build import ProjectBuilder
from cpp_build import ROOT
from installs import Released, contents, output
from release.packages import PACKAGES
from release.stage import LEGAL


@pytest.mark.parametrize("folder", sorted({package.folder for package in PACKAGES.values()}))
def test_folder_of_a_package_has_copies(folder: str) -> None:
    for name in LEGAL:
        assert (ROOT / folder / name).read_bytes() == (ROOT / name).read_bytes()


def wheel(folder: Path, out: Path, released: Released) -> Path:
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", out)
    output(folder, sys.executable, "-m", "pip", "wheel", *options, ".")
    return next(out.glob("*.whl"))


def provider(folder: Path, out: Path, released: Released) -> Path:
    """The metadata of the wheel: to compile it takes half a minute."""
    place = ProjectBuilder(folder, sys.executable).metadata_path(out)
    return Path(shutil.make_archive(str(out / "metadata"), "gztar", place))


def npm(folder: Path, out: Path, released: Released) -> Path:
    """Without the script that compiles types, which has nothing to do with them."""
    output(folder, "npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", out, HOME=str(out))
    return next(out.glob("*.tgz"))


def crate(folder: Path, out: Path, released: Released) -> Path:
    command = ("cargo", "package", "--no-verify", "--offline", "--quiet", "--target-dir", out)
    output(folder, *command, **released.environment)
    return next(out.glob("package/*.crate"))


def jar(folder: Path, out: Path, released: Released) -> Path:
    programs = [f"{name.upper()}={' '.join(map(str, [*released.tools.jdk, name]))}" for name in ("javac", "jar")]
    output(folder, "make", "jar", f"OUT={out}", *programs, LC_ALL="C.UTF-8")
    return out / "t2r.jar"


MAKERS: Mapping[str, Callable[[Path, Path, Released], Path]] = {
    "t2r-export": wheel,
    "t2r-runtime": wheel,
    "provider": provider,
    "js": npm,
    "rust": crate,
    "java": jar,
}


@pytest.mark.parametrize("name", MAKERS)
def test_package_from_the_repository(name: str, copied: Path, released: Released, tmp_path: Path) -> None:
    if name in released.missing:
        refuse(released.missing[name])
    files = contents(MAKERS[name](copied / PACKAGES[name].folder, tmp_path, released))
    for legal in LEGAL:
        [found] = [member for member in files if Path(member).name == legal]
        assert files[found] == (ROOT / legal).read_bytes()
