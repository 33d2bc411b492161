"""The library's ABI: exported symbols, soname, and programs compiled with an older or a newer header."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from cpp_build import GOLDEN, HERE, Run, clang, headers
from t2r_library import Decoder, Failed, Library, Sampling

HEADER = (HERE / "include" / "t2r.h").read_text("utf-8")
STRUCTURES = ("t2r_options", "t2r_info", "t2r_sampling", "t2r_beam")
VERSION = [int(number) for number in re.findall(r"T2R_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", HEADER, re.MULTILINE)]


def test_only_the_header_is_exported(release: Path, run: Run) -> None:
    said = run("nm", "--dynamic", "--defined-only", release / "libt2r.so").stdout.splitlines()
    declared = re.findall(r"^T2R_API [^;(]*?(t2r_\w+)\(", HEADER, re.MULTILINE)
    assert len(declared) > 30 and sorted(line.split()[-1] for line in said) == sorted(declared)


def test_versions_agree(release: Path, run: Run, library: Library) -> None:
    """Versions of the header, the library, its soname and the CMake package; the soname has major and minor."""
    major, minor, patch = VERSION
    assert library.version() == major * 1_000_000 + minor * 1000 + patch
    assert f"[libt2r.so.{major}.{minor}]" in run("readelf", "--dynamic", release / "libt2r.so").stdout
    package = (release / "t2rConfigVersion.cmake").read_text()
    assert f'"{major}.{minor}.{patch}"' in package and "CVF_VERSION_MINOR" in package  # SameMinorVersion
    assert f"Version: {major}.{minor}.{patch}\n" in (release / "t2r.pc").read_text()


class Later(ctypes.Structure):
    """Sampling options of a later header."""

    _fields_ = [("known", Sampling), ("behind", ctypes.c_uint8 * 16)]


def test_libraries_of_other_onnx_runtimes_fit(release: Path, run: Run) -> None:
    """Each release versions its one symbol. A program linked with it needs that version; libt2r does not."""
    asks = {
        name: "libonnxruntime" in run("readelf", "--version-info", release / name).stdout
        for name in ("libt2r.so", "stream")
    }
    assert asks == {"libt2r.so": False, "stream": True}
    assert "[libonnxruntime.so.1]" in run("readelf", "--dynamic", release / "libt2r.so").stdout


def full(header: Path, target: str) -> subprocess.CompletedProcess[str]:
    """Compile t2r.h for another system, and assert that none of its structures ends in padding."""
    without_comments = re.sub(r"/\*.*?\*/", "", header.read_text("utf-8"), flags=re.DOTALL)
    lines = ["#include <t2r.h>"]
    for name in STRUCTURES:
        last = re.search(rf"(\w+);\s*\}} {name};", without_comments)
        assert last, name
        lines.append(
            f'_Static_assert(offsetof({name}, {last[1]}) + sizeof(({name} *)0)->{last[1]} == sizeof({name}), "");'
        )
    command = [clang(), "-x", "c", "-std=c11", f"--target={target}", "-ffreestanding", "-fsyntax-only"]
    flags = ["-Wall", "-Wextra", "-Werror", "-DT2R_SHARED", f"-I{header.parent}", "-"]
    return subprocess.run([*command, *flags], input="\n".join(lines), capture_output=True, text=True, timeout=100)


TARGETS = [
    "x86_64-pc-windows-msvc",
    "arm64-apple-macos",
    "aarch64-linux-android",
    "armv7-linux-androideabi",
    "i686-linux",
]


@pytest.mark.parametrize("target", TARGETS)
def test_no_structure_ends_in_padding(target: str) -> None:
    """An added field could be placed in the padding, and the size would not change."""
    done = full(HERE / "include" / "t2r.h", target)
    assert done.returncode == 0, done.stderr


def test_padding_is_seen(tmp_path: Path) -> None:
    (tmp_path / "t2r.h").write_text(HEADER.replace("int64_t input_size;", "int64_t input_size; int32_t odd;"), "utf-8")
    assert "sizeof(t2r_info)" in full(tmp_path / "t2r.h", TARGETS[0]).stderr


def grow(folder: Path) -> Path:
    """A folder with today's header, in which every structure with a size has one more field."""
    text = HEADER
    for name in STRUCTURES:
        assert text.count(f"}} {name};") == 1
        text = text.replace(f"}} {name};", f"    int64_t grown;\n}} {name};")
    folder.mkdir()
    (folder / "t2r.h").write_text(text, "utf-8")
    return folder


@pytest.fixture(scope="session")
def grown(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the header of a later release, and a libt2r built with it that requires `grown` to be 0."""
    folder = tmp_path_factory.mktemp("grown")
    header = grow(folder / "include")
    wants = 'if (found.grown != 0) fail(T2R_ARGUMENT, "0 in grown", number(found.grown), "set it");\n    '
    source = (HERE / "src" / "api.cpp").read_text("utf-8")
    assert source.count("Options options;\n") == 1
    (folder / "api.cpp").write_text(source.replace("Options options;\n", wants + "Options options;\n"), "utf-8")
    shutil.copyfile(HERE / "src" / "api_translator.cpp", folder / "api_translator.cpp")
    names = ("api.cpp", "api_translator.cpp")
    objects = release / "CMakeFiles" / "t2r_objects.dir" / "src"
    others = [path for path in objects.glob("*.o") if path.name.removesuffix(".o") not in names]
    links = [f"-L{release / 'onnxruntime'}", "-lonnxruntime", f"-Wl,-rpath,{release / 'onnxruntime'}"]
    soname = f"libt2r.so.{VERSION[0]}.{VERSION[1]}"
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-DT2R_BUILDING", f"-Wl,-soname,{soname}"]
    includes = [f"-I{header}", f"-I{HERE / 'src'}", f"-I{HERE / 'include'}", *headers()]
    sources = [str(folder / name) for name in names]
    command = [os.environ.get("CXX", "c++"), *flags, *includes, *sources, *map(str, others), *links]
    subprocess.run([*command, "-o", str(folder / soname)], check=True, timeout=300)
    return folder


def program(release: Path, folder: Path, include: Path, *flags: str) -> Path:
    """abi.c, compiled with a header."""
    made = folder / "abi"
    compiler = [os.environ.get("CC", "cc"), "-std=c11", "-Wall", "-Wextra", "-Werror", *flags, f"-I{include}"]
    runtime = f"-Wl,-rpath-link,{release / 'onnxruntime'}"
    links = [str(HERE / "tests" / "abi.c"), str(release / "libt2r.so"), runtime, "-o", str(made)]
    subprocess.run([*compiler, *links], check=True, timeout=100)
    return made


def said(program: Path, library: Path, *loaded: Path) -> str:
    places = ":".join(str(folder) for folder in (library, *loaded))
    environment = {**os.environ, "LD_LIBRARY_PATH": places}
    done = subprocess.run([program, GOLDEN], env=environment, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def test_an_older_program_with_a_newer_library(release: Path, grown: Path, tmp_path: Path) -> None:
    """Its structures are shorter: nothing is written or read past their end."""
    today = program(release, tmp_path, HERE / "include")
    assert said(today, grown) == said(today, release) != ""


def test_a_newer_program_with_an_older_library(release: Path, grown: Path, tmp_path: Path) -> None:
    """Its structures are longer: the library fills in unknown fields with 0, and refuses other values in them."""
    tomorrow = program(release, tmp_path, grown / "include", "-DGROWN")
    (tmp_path / "today").mkdir()
    tokens = said(program(release, tmp_path / "today", HERE / "include"), release).strip()
    assert said(tomorrow, release).strip() == f"{tokens} argument"
    assert said(tomorrow, grown).strip() == f"{tokens} ok"  # this library has the field


def test_what_is_set_and_not_known_is_named(library: Library) -> None:
    decoder, known = Decoder(library, GOLDEN / "tiny.onnx"), library.sampling()
    known.temperature = 0  # a drawn text may end before its third token
    later = Later.from_buffer_copy(bytes(known) + bytes(16))
    later.known.size = ctypes.sizeof(later)
    assert len(decoder.generate_with([1], 3, later.known)) == 3
    later.behind[9] = 1
    size = ctypes.sizeof(known)
    line = f"^argument: expected options of at most {size} bytes, .*; received one that is set at byte {size + 9}; "
    with pytest.raises(Failed, match=line):
        decoder.generate_with([1], 3, later.known)
