"""Wheels of our execution provider for platforms that zig compiles for."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

import pytest
from release import platforms


@pytest.mark.parametrize("name", platforms.PLATFORMS)
def test_wheel_has_the_library_of_its_platform(name: str, tmp_path: Path) -> None:
    platform = platforms.PLATFORMS[name]
    native = tmp_path / "onnxruntime_ep_t2r-0.3.1-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(native, "w") as archive:
        archive.writestr("onnxruntime_ep_t2r/__init__.py", "x = 1\n")
        archive.writestr("onnxruntime_ep_t2r/libt2r_provider.so", b"native")
        archive.writestr(
            "onnxruntime_ep_t2r-0.3.1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-linux_x86_64\n\n"
        )
        archive.writestr("onnxruntime_ep_t2r-0.3.1.dist-info/RECORD", "")
    (tmp_path / platform.provider).write_bytes(b"of another platform")
    made = platforms.wheel(native, tmp_path / platform.provider, platform, tmp_path)
    assert made.name == f"onnxruntime_ep_t2r-0.3.1-py3-none-{platform.tag}.whl"
    with zipfile.ZipFile(made) as archive:
        files = {each: archive.read(each) for each in archive.namelist()}
    libraries = [each for each in files if "t2r_provider." in each]
    assert libraries == [f"onnxruntime_ep_t2r/{platform.provider}"] and files[libraries[0]] == b"of another platform"
    folder = "onnxruntime_ep_t2r-0.3.1.dist-info"
    assert files[f"{folder}/WHEEL"].decode().splitlines()[1] == f"Tag: py3-none-{platform.tag}"
    rows = dict(line.split(",", 1) for line in files[f"{folder}/RECORD"].decode().splitlines())
    assert rows.pop(f"{folder}/RECORD") == "," and set(rows) == set(files) - {f"{folder}/RECORD"}
    for each, row in rows.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[each]).digest()).rstrip(b"=").decode()
        assert row == f"sha256={digest},{len(files[each])}"
