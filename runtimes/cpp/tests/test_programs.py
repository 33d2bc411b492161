"""Programs in C and C++: counted allocations, data races, timed programs, and the examples after an install."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cpp_build import GOLDEN, HERE, ROOT, SANITIZERS, STRICT, Run, build, fenced, headers

from t2r_runtime import Decoder, Sampling, Tokenizer

CORES = json.loads((ROOT / "tests" / "cores.json").read_text("utf-8"))  # cases of all runtimes


def allocated(run: Run, release: Path, *arguments: object) -> tuple[int, int]:
    """The number of allocations, and the bytes of the largest."""
    count, largest = run(release / "allocations", *arguments).stdout.split()
    return int(count), int(largest)


@pytest.mark.parametrize("name", ["tiny", "window", "packed", "gated"])
def test_a_step_allocates_nothing(release: Path, run: Run, name: str) -> None:
    assert allocated(run, release, GOLDEN / f"{name}.onnx", 2, 200) == (0, 0)


def test_an_allocation_is_seen(release: Path, run: Run) -> None:
    assert allocated(run, release, GOLDEN / "tiny.onnx", 2, 10, "one") == (1, 4)


def test_caches_allocate_seldom(release: Path, run: Run) -> None:
    """Two caches of two buffers each, which double."""
    assert allocated(run, release, GOLDEN / "tiny-hybrid.onnx", 2, 500)[0] <= 4 * 7


@pytest.mark.parametrize("name", ["tiny", "tiny-hybrid"])
def test_rows_that_stay_take_nothing(release: Path, run: Run, name: str) -> None:
    """Only the list of rows is copied, 8 bytes each, and no state."""
    assert allocated(run, release, GOLDEN / f"{name}.onnx", 5, 20, "stay") == (20, 5 * 8)


def test_a_greedy_token_makes_no_candidates(release: Path, run: Run) -> None:
    """Choosing the largest logit allocates less than one byte for each of the 17 tokens."""
    assert 0 < allocated(run, release, GOLDEN / "tiny.onnx", 1, 20, "greedy")[1] < 17


def test_every_method_of_the_cpp_header(checked: Path, run: Run) -> None:
    assert run(checked / "header", GOLDEN).stdout == "good\n"


def test_the_cpp_header_has_every_function() -> None:
    header, wrapper = ((HERE / "include" / name).read_text("utf-8") for name in ("t2r.h", "t2r.hpp"))
    declared = set(re.findall(r"^T2R_API [^;(]*?(t2r_\w+)\(", header, re.MULTILINE))
    assert declared - set(re.findall(r"t2r_\w+", wrapper)) == {"t2r_kind_name", "t2r_version"}  # these need no wrapping


@pytest.mark.parametrize("name", ["tiny-hybrid", "prefill", "window"])
def test_two_threads_share_a_session(raced: Path, run: Run, name: str) -> None:
    assert run(raced / "threads", GOLDEN / f"{name}.onnx").stdout == "good\n"


def test_two_threads_close_one_handle(release: Path, raced: Path, run: Run) -> None:
    """One of them does; under ThreadSanitizer too, which is too slow to meet the moment between two calls."""
    assert [run(folder / "handles").stdout for folder in (release, raced)] == ["good\n"] * 2


@pytest.mark.parametrize("name", ["step", "floor"])
def test_a_timed_program_writes_what_python_does(release: Path, run: Run, tmp_path: Path, name: str) -> None:
    """The programs of benchmarks/embedding, whose speeds are reported only with the right text."""
    program, graph = timed(release, run, tmp_path, name), GOLDEN / "tiny.onnx"
    said = run(program, graph, 1, 3, text="check 12\ntime 2\ncheck 5\n").stdout.splitlines()
    written = [str(token) for token in Decoder(graph).generate([3], 12, Sampling(temperature=0, stop_tokens=()))]
    assert [said[0], said[1].split(), said[3].split()] == ["ready", written, written[:5]]
    assert len(said[2].split()) == 2 and all(float(time) > 0 for time in said[2].split())


def test_a_timed_program_encodes_what_python_does(release: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("Once upon a time\n12 été 日本\n", "utf-8")
    graph = GOLDEN / "bytes.onnx"
    said = run(timed(release, run, tmp_path, "encode"), graph, tmp_path / "text", text="check 20\n").stdout.splitlines()
    tokenizer = Tokenizer.of(Decoder(graph).signature)
    lines = ["Once upon a time", "12 été 日本"]
    tokens = [token for line in lines for token in tokenizer.encode(line, special_tokens=False)]
    assert said[1].split() == [str(token) for token in tokens[:20]]


def timed(release: Path, run: Run, tmp_path: Path, name: str) -> Path:
    """A program of benchmarks/embedding, compiled beside the library."""
    source, program = HERE.parents[1] / "benchmarks" / "embedding" / f"{name}.cpp", tmp_path / name
    libraries = [release / "libt2r.so", release / "onnxruntime" / "libonnxruntime.so"]
    found = [f"-Wl,-rpath,{library.parent}" for library in libraries]
    compiler = [os.environ.get("CXX", "c++"), "-std=c++17", "-Wall", "-Wextra"]
    run(*compiler, f"-I{HERE / 'include'}", *headers(), source, *libraries, *found, "-o", program)
    return program


@pytest.mark.parametrize(
    "files",
    ["decoder rows snapshots in_memory", "calls kinds log stops sessions", "tokenizers"],
    ids=lambda files: files.split()[0],
)
def test_whatever_the_library_reads_under_sanitizers(checked: Path, files: str) -> None:
    """Runs the tests of the C API again, in a Python process with preloaded sanitizers."""
    compiler = os.environ.get("CXX", "c++")
    loaded = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")  # libasan must find the latter's exceptions
    ]
    environment = {
        **os.environ,
        **SANITIZERS,
        "LD_PRELOAD": " ".join(loaded),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python itself leaks
        "T2R_LIBRARY": str(checked / "libt2r.so"),
    }
    slow = ("gpt2", "storyteller", "sentencepiece", "test_unigram")
    elsewhere = ("test_threads_that", "test_memory", "test_nobody_listens")  # test processes, memory or output
    chosen = " and ".join(f"not {name}" for name in (*slow, *elsewhere))
    tests = [str(HERE / "tests" / f"test_{name}.py") for name in files.split()]
    command = ["python", "-m", "pytest", "-q", "-x", "-k", chosen, *tests]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1500, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")
@pytest.mark.parametrize("case", CORES, ids=lambda case: case["groups"])
def test_a_quota_of_cpu_time(case: dict[str, Any], release: Path, run: Run, tmp_path: Path) -> None:
    files = {f"sys/fs/cgroup/{name}": text for name, text in case["files"].items()}
    for name, text in {"proc/self/cgroup": case["groups"], **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    usable = len(os.sched_getaffinity(0))
    assert (int(run(release / "cores", tmp_path).stdout) or usable) == min(usable, case["cores"] or usable)


def test_page_shows_the_example() -> None:
    assert fenced("c") == (HERE / "examples" / "story.c").read_text("utf-8")


def test_find_package(release: Path, run: Run, tmp_path: Path) -> None:
    """The page's programs after an install generate Python's text: C with the shared library, C++ with the static."""
    prefix, source = tmp_path / "installed", tmp_path / "project"
    run("cmake", "--install", release, "--prefix", prefix)
    source.mkdir()
    for language, name in (("cmake", "CMakeLists.txt"), ("c", "story.c")):
        (source / name).write_text(fenced(language), "utf-8")
    shutil.copy(HERE / "examples" / "stream.cpp", source)
    programs = build(str(tmp_path / "built"), f"-DCMAKE_PREFIX_PATH={prefix}", source=source)
    graph, prompt = GOLDEN / "bytes.onnx", "abc"
    decoder = Decoder(graph)
    tokenizer = Tokenizer.of(decoder.signature)
    tokens = decoder.generate(tokenizer.encode(prompt), 200, Sampling(temperature=0))
    for name in ("story", "stream"):
        assert run(programs / name, graph, prompt).stdout.startswith(prompt + tokenizer.decode(tokens)[:20])
        failed = run(programs / name, "nowhere", prompt, status=2)
        assert failed.stderr.startswith("expected an ONNX file; received nowhere, which does not exist")
        assert failed.stderr.count("\n") == 1 and not failed.stdout


def test_an_installed_folder_can_be_moved(release: Path, run: Run, tmp_path: Path) -> None:
    """The page's program, compiled with pkg-config in a moved folder, and run without environment variables."""
    if shutil.which("pkg-config") is None:
        (pytest.fail if STRICT else pytest.skip)("no pkg-config on the PATH")
    run("cmake", "--install", release, "--prefix", tmp_path / "installed")
    moved = (tmp_path / "installed").rename(tmp_path / "moved")
    (tmp_path / "story.c").write_text(fenced("c"), "utf-8")
    path = {"PKG_CONFIG_PATH": str(moved / "lib" / "pkgconfig"), "PATH": os.environ["PATH"]}
    asked = ["pkg-config", "--cflags", "--libs", "t2r"]
    flags = subprocess.run(asked, capture_output=True, text=True, check=True, env=path).stdout.split()
    run(os.environ.get("CC", "cc"), tmp_path / "story.c", "-o", tmp_path / "story", *flags)
    command = [str(tmp_path / "story"), str(GOLDEN / "bytes.onnx"), "abc"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"]}, timeout=100)
    assert (done.returncode, done.stdout[:3]) == (0, "abc"), done.stderr
    for library in (moved / "lib").glob("*.so*"):
        linked = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
        assert not re.search(r"R(UN)?PATH.*\[/", linked), (library, linked)


def test_make_libt2r(tmp_path: Path) -> None:
    """The commands of the target: configure with a release of ONNX Runtime, build, install into PREFIX."""
    asked = ["make", "--dry-run", "libt2r", "T2R_ONNXRUNTIME_ROOT=/unpacked", f"PREFIX={tmp_path}"]
    written = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=HERE.parents[1]).stdout
    configure, compile_, install = (line.split() for line in written.splitlines())
    assert {"-DT2R_ONNXRUNTIME_ROOT=/unpacked", "-DCMAKE_INSTALL_LIBDIR=lib"} <= set(configure)
    assert compile_[:3] == ["cmake", "--build", configure[configure.index("-B") + 1]]
    assert install[1:] == ["--install", compile_[2], "--prefix", str(tmp_path)]
