"""The runtimes above libt2r: the golden files through each, faults in them, bad use, and the programs in the docs."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
from bindings_build import Place, Programs, java_tools, jdk
from cpp_build import GOLDEN, HERE, Run, headers
from golden_faults import cross_states, exchange_merges, write_late_sampler
from misuses import MISUSES, UNSAYABLE, check

from t2r_export.checkpoints.checkpoint import made
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.export import ExportConfig
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.export import export
from t2r_export.model.initialize import initialize
from t2r_runtime import Decoder, Sampling, Tokenizer

CONFIG = UniformConfig(
    vocab_size=7,
    width=8,
    layers=(LinearConfig(3),),
    attention=HeadsConfig(heads=2, kv_heads=1, head_size=4),
    ffn_size=6,
    position="rotary",
    tied_head=False,
)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "tiny"))


def failures(run: Run, folder: Path, library: Path | None = None) -> set[str]:
    lines = run("conformance", folder, status=1, library=library).stdout.decode().splitlines()
    return {line.split()[1].rstrip(":") for line in lines[:-1] if line.startswith("FAILED ")}


def test_golden_files(run: Run) -> None:
    lines = run("conformance", GOLDEN).stdout.decode().splitlines()
    cases = [case["case"] for case in json.loads((GOLDEN / "index.json").read_text())["cases"]]
    assert lines == [*(f"ok {case}" for case in cases), f"{len(cases)} passed, 0 failed"]


def test_two_states_crossed(run: Run, copy: Path) -> None:
    cross_states(copy)
    assert failures(run, copy) >= {"tiny"}


@pytest.mark.parametrize("name", ["bytes", "pieces"])
def test_two_merges_exchanged(run: Run, copy: Path, name: str) -> None:
    exchange_merges(copy, name)
    assert f"text-{name}" in failures(run, copy)


@pytest.fixture(scope="session")
def late(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libt2r of whose sampler's noise each draw takes the next but one."""
    folder = tmp_path_factory.mktemp("late")
    write_late_sampler(folder / "sampler.cpp")
    objects = release / "CMakeFiles" / "t2r_objects.dir" / "src"
    others = [path for path in objects.glob("*.o") if path.name != "sampler.cpp.o"]
    includes = [f"-I{HERE / 'src'}", f"-I{HERE / 'include'}", *headers()]
    links = [f"-L{release / 'onnxruntime'}", "-lonnxruntime", f"-Wl,-rpath,{release / 'onnxruntime'}"]
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", "-DT2R_BUILDING", "-Wl,-soname,libt2r.so.0.1"]
    made = ["-o", str(folder / "libt2r.so.0.1")]
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, *flags, *includes, str(folder / "sampler.cpp"), *map(str, others), *links, *made]
    subprocess.run(command, check=True, timeout=300)
    (folder / "libt2r.so").symlink_to("libt2r.so.0.1")
    return folder


def test_a_sampler_off_by_one_draw(run: Run, late: Path) -> None:
    assert failures(run, GOLDEN, late) >= {"sampling-tiny", "sampling-top3"}


@pytest.mark.parametrize("content", [None, "{", '{"golden": 2, "cases": []}', '{"golden": 1}'])
def test_no_golden_files(run: Run, tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "index.json").write_text(content)
    line = run("conformance", tmp_path, status=2).stderr.decode()
    assert line.startswith("file: expected ") and line.count("\n") == 1


def test_a_kind_that_is_not_known(run: Run, copy: Path) -> None:
    index = json.loads((copy / "index.json").read_text())
    index["cases"].append({"case": "new", "kind": "another", "file": "tiny.json"})
    (copy / "index.json").write_text(json.dumps(index))
    assert failures(run, copy) == {"new"}


@pytest.mark.parametrize("name", MISUSES)
def test_bad_use(run: Run, language: str, name: str) -> None:
    """One line, which begins with the kind, and the exit code 2."""
    if name in UNSAYABLE[language]:
        return
    done = run("misuse", GOLDEN, name, status=2)
    check(name, done.stdout.decode(), done.stderr.decode())


def test_a_callback_that_breaks(run: Run) -> None:
    """What it throws comes out, not through C, and the decoder can still be used."""
    assert run("misuse", GOLDEN, "callback").stdout == b"mine\n"


def test_messages_of_the_log(run: Run) -> None:
    """They are received until the log is cleared."""
    assert run("misuse", GOLDEN, "log").stdout.split() == [b"true", b"true"]


def test_vectors(run: Run, tmp_path: Path) -> None:
    """Two of each of two sequences give Python's logits; rows that are no whole vectors are refused."""
    checkpoint = made(initialize(dataclasses.replace(CONFIG, input_size=5).build(), seed=2), None, {})
    export(checkpoint, tmp_path / "ear.onnx", ExportConfig(prefill=True))
    done = run("misuse", tmp_path, "vectors", status=2)
    decoder = Decoder(tmp_path / "ear.onnx")
    decoder.reset(2)
    given = [[0.5, 1, -1, 2, 0], [1, 1, 0, 0, -2], [3, 1, 0, 1, 1], [0.25, 1, 1, 2, 3]]
    expected = decoder.prefill(np.array(given, np.float32).reshape(2, 2, 5))
    np.testing.assert_allclose(np.array(done.stdout.split(), float), expected.ravel(), atol=2e-5)
    line = "batch: expected equally many vectors of 5 elements of each sequence; received 6 elements; "
    assert done.stderr.decode().startswith(line)


def test_a_library_of_another_release(run: Run, language: str, tmp_path: Path) -> None:
    """Java looks libt2r up by its short name, and asks for its version; for others the loader compares sonames."""
    if language != "java":
        return
    source = tmp_path / "later.c"
    source.write_text("int t2r_version(void) { return 2003; }\n")
    compiler = [os.environ.get("CC", "cc"), "-shared", "-fPIC", str(source), "-o", str(tmp_path / "libt2r.so")]
    subprocess.run(compiler, check=True, timeout=60)
    told = run("misuse", GOLDEN, "token", status=1, library=tmp_path).stderr.decode()
    assert "expected libt2r.so of the version 0.1; received 0.2; update t2r.jar and libt2r together" in told


def test_the_library_is_found_or_named(place: Place, prefix: Path, language: str, tmp_path: Path) -> None:
    """build.rs finds libt2r by pkg-config too, and says in one line what is missing or of another release."""
    if language != "rust":
        return
    own, other = prefix / "lib" / "pkgconfig", tmp_path / "other"
    other.mkdir()
    (other / "t2r.pc").write_text(re.sub("Version: .*", "Version: 0.7.2", (own / "t2r.pc").read_text()))

    def told(**variables: str) -> str:
        unset = {name: value for name, value in place.environment.items() if name != "T2R_DIR"}
        known = {**unset, "CARGO_TARGET_DIR": str(tmp_path / "target"), **variables}
        command = [shutil.which("cargo", path=known["PATH"]), "check", "--locked", "--jobs", "2", "--quiet"]
        done = subprocess.run(command, env=known, cwd=place.source, capture_output=True, text=True, timeout=200)
        assert (done.returncode == 0) == (not done.stderr)
        return done.stderr

    assert "expected libt2r 0.1, the C library of t2r-export; received none from pkg-config; " in told(
        PKG_CONFIG_LIBDIR=str(tmp_path)
    )
    assert "expected libt2r 0.1; received 0.7.2; install" in told(PKG_CONFIG_PATH=str(other))
    assert f"the folder lib of T2R_DIR={tmp_path}; received none; set T2R_DIR" in told(T2R_DIR=str(tmp_path))
    assert told(PKG_CONFIG_PATH=str(own)) == ""


def test_libraries_in_the_jar(place: Place, prefix: Path, programs: Programs, language: str, tmp_path: Path) -> None:
    """They are unpacked and removed; without those of this platform, the error names the jar's."""
    if language != "java":
        return
    own = tmp_path / "natives" / "linux-x86-64"
    own.mkdir(parents=True)
    for name in ("libt2r.so", "libonnxruntime.so.1"):
        (own / name).symlink_to((prefix / "lib" / name).resolve())
    jar, other, temporary = (tmp_path / name for name in ("t2r.jar", "other.jar", "temporary"))
    temporary.mkdir()
    place.run("make", "jar", f"OUT={tmp_path}", f"NATIVES={own.parent}", *java_tools())
    with zipfile.ZipFile(jar) as read, zipfile.ZipFile(other, "w") as written:
        for name in read.namelist():
            if not name.startswith("natives/linux"):
                written.writestr(name, b"plan9-mips/libt2r.so\n" if name == "natives/index" else read.read(name))
    unset = {name: value for name, value in place.environment.items() if name != "LD_LIBRARY_PATH"}

    def story(path: Path, status: int) -> str:
        command = [*jdk(), "java", f"-Djava.io.tmpdir={temporary}", "--enable-native-access=ALL-UNNAMED", "-cp"]
        words = [*map(str, command), f"{path}:{place.build / 'programs'}", "Story", str(GOLDEN / "bytes.onnx"), "abc"]
        done = subprocess.run(words, env=unset, capture_output=True, text=True, timeout=100)
        assert done.returncode == status, done
        return done.stdout + done.stderr

    assert story(jar, 0).startswith("abc") and not [path for path in temporary.iterdir() if path.name.startswith("t2r")]
    assert "in the jar for linux-x86-64; received neither, platforms in the jar: plan9-mips; set " in story(other, 1)


def test_contexts(run: Run, language: str) -> None:
    """What Go's calls return whose context ends before, in a callback, while they read, and at a deadline."""
    if language != "go":
        return
    said = run("misuse", GOLDEN, "contexts").stdout.decode().splitlines()
    gone = ("context canceled", "context deadline exceeded")
    before = [line for why in gone for line in (f"{why} 0", *[" ".join([why] * 3)] * 2, "0")]
    assert said == [*before, "8 of 8", *(f"{why} true 1" for why in gone)]


def test_a_story(run: Run, language: str) -> None:
    """As Python writes it, piece by piece; and what is wrong with a graph or a text in one line."""
    graph, prompt = GOLDEN / "bytes.onnx", "abc"
    decoder = Decoder(graph)
    tokenizer = Tokenizer.of(decoder.signature)
    tokens = decoder.generate(tokenizer.encode(prompt), 200, Sampling(temperature=0))
    assert run("story", graph, prompt).stdout.decode() == prompt + tokenizer.decode(tokens) + "\n"
    for arguments, kind in (("nowhere.onnx", prompt), "file"), ((graph, b"\xff"), "tokenizer"):
        if kind == "tokenizer" and language == "java":
            continue  # its virtual machine makes characters of what is none
        line = run("story", *arguments, status=2).stderr.decode()
        assert line.startswith(f"{kind}: expected ") and line.count("\n") == 1
