"""Headers of earlier versions: libraries of one minor version keep their functions and types, compared by libabigail.

Each header becomes a library whose functions do nothing: test_abi.py compares the exported names with the header's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from cpp_build import HERE, ROOT, STRICT

HEADER = (HERE / "include" / "t2r.h").read_text("utf-8")
MINOR = ".".join(re.findall(r"T2R_VERSION_(?:MAJOR|MINOR) (\d+)$", HEADER, re.MULTILINE))
KEPT = sorted((ROOT / "tests" / "versions").glob(f"{MINOR}.*/t2r.h"))
UNPACKED = Path(os.environ.get("T2R_ABIGAIL", "/nowhere")) / "usr"
# structures carry their size, and grow at their ends
GROWTH = "[suppress_type]\n  type_kind = struct\n  has_data_member_inserted_at = end\n"
DEFAULTS = "t2r_defaults(t2r_options *options, size_t size);"


def compiled(header: str, folder: Path) -> Path:
    folder.mkdir()
    source = folder / "t2r.c"
    text, count = re.subn(r"^(T2R_API [^;{]*\));", r"\1 { __builtin_trap(); }", header, flags=re.MULTILINE)
    assert count == header.count("\nT2R_API ") > 30
    source.write_text(text, "utf-8")
    command = [os.environ.get("CC", "cc"), "-std=c11", "-g", "-shared", "-fPIC", source, "-o", folder / "libt2r.so"]
    subprocess.run(command, check=True, timeout=100)
    return folder / "libt2r.so"


def changes(kept: str, header: str, folder: Path) -> str:
    """The report of abidiff without what was added; empty if a program of the kept header runs with the other one."""
    program = shutil.which("abidiff") or UNPACKED / "bin" / "abidiff"
    if not Path(program).exists():
        (pytest.fail if STRICT else pytest.skip)("no abidiff on the PATH, nor unpacked where $T2R_ABIGAIL says")
    (folder / "growth.ini").write_text(GROWTH)
    libraries = [compiled(kept, folder / "kept"), compiled(header, folder / "now")]
    command = [program, "--no-added-syms", "--suppressions", folder / "growth.ini", *libraries]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(UNPACKED / "lib" / "x86_64-linux-gnu")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)
    assert done.stderr == "", done.stderr
    return done.stdout if done.returncode else ""


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: kept.parent.name)
def test_functions_and_types_are_kept(kept: Path, tmp_path: Path) -> None:
    report = changes(kept.read_text("utf-8"), HEADER, tmp_path)
    assert report == "", report


def test_this_version_or_an_earlier_one_is_kept() -> None:
    assert KEPT


CHANGES = {  # old text, new text, and a line of the report
    "a function is gone": ("T2R_API int32_t t2r_version(void);", "", "1 Removed function"),
    "a result": ("int32_t t2r_version(void)", "int64_t t2r_version(void)", "return type changed"),
    "a parameter": (DEFAULTS, DEFAULTS.replace("size_t", "int32_t"), "parameter 2"),
    "a field of another type": ("int64_t input_size;", "int32_t input_size;", "input_size"),
    "a field before others": ("    double top_p;", "    double odd;\n    double top_p;", "odd"),
    "a number of an error": ("T2R_OK = 0,", "T2R_OK = 0, T2R_ODD,", "T2R_ODD"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: str, tmp_path: Path) -> None:
    old, new, line = CHANGES[change]
    assert HEADER.count(old) == 1
    assert line in changes(HEADER, HEADER.replace(old, new), tmp_path)


def test_additions_are_none(tmp_path: Path) -> None:
    more = HEADER.replace("} t2r_beam;", "    int64_t odd;\n} t2r_beam;")
    more = more.replace(f"T2R_API t2r_kind {DEFAULTS}", f"T2R_API t2r_kind {DEFAULTS}\nT2R_API int32_t t2r_odd(void);")
    assert more.count("odd") == 2 and changes(HEADER, more, tmp_path) == ""
