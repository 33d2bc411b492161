"""Programs of C and C++: counted allocations, threads that race, damaged files, and the examples, installed."""

from __future__ import annotations

import base64
import json
import os
import re
import struct
import subprocess
from pathlib import Path

import pytest
from cpp_build import GOLDEN, HERE, SANITIZERS, Run, build
from made_tokenizers import fallback, storyteller, unigram

from t2r_runtime import Decoder, Sampling, Tokenizer

RUNS = int(os.environ.get("T2R_FUZZ_RUNS", "50000"))  # of each fuzzer; a release has 1,000,000


@pytest.mark.parametrize("name", ["tiny", "window", "packed", "gated"])
def test_a_step_allocates_nothing(release: Path, run: Run, name: str) -> None:
    assert run(release / "allocations", GOLDEN / f"{name}.onnx", 2, 200).stdout == "0\n"


def test_an_allocation_is_seen(release: Path, run: Run) -> None:
    assert run(release / "allocations", GOLDEN / "tiny.onnx", 2, 10, "one").stdout == "1\n"


def test_caches_allocate_seldom(release: Path, run: Run) -> None:
    """Two caches of two buffers each, which double."""
    assert int(run(release / "allocations", GOLDEN / "tiny-hybrid.onnx", 2, 500).stdout) <= 4 * 7


@pytest.mark.parametrize("name", ["tiny-hybrid", "prefill", "loop"])
def test_two_threads_share_a_session(raced: Path, run: Run, name: str) -> None:
    assert run(raced / "threads", GOLDEN / f"{name}.onnx").stdout == "good\n"


def fuzz(checked: Path, run: Run, target: str, seeds: list[Path], runs: int = RUNS) -> None:
    assert run(checked / "fuzz", target, runs, 1, *seeds, timeout=580).stdout == "good\n"


def test_damaged_metadata(checked: Path, run: Run) -> None:
    fuzz(checked, run, "metadata", sorted([*GOLDEN.glob("*.onnx"), *GOLDEN.glob("bad/*.onnx")]))


def test_damaged_snapshots(checked: Path, run: Run) -> None:
    fuzz(checked, run, "snapshot", sorted([*GOLDEN.glob("*.state"), *GOLDEN.glob("bad/*.state")]))


def test_damaged_tokenizers(checked: Path, run: Run, tmp_path: Path) -> None:
    """Small ones: a change of a large vocabulary seldom matters."""
    (tmp_path / "bytes").write_text(small(fallback()))
    (tmp_path / "unigram").write_text(small(unigram(byte_fallback=False)))
    fuzz(checked, run, "tokenizer", [tmp_path / "bytes", tmp_path / "unigram"])


CHARSMAP = base64.b64encode(struct.pack("<5I", 16, 0x400, 0x161, 0x80000000, 0x400) + b"b\0c\0").decode()


def small(source: str) -> str:
    """A tokenizer with less of a vocabulary."""
    made = json.loads(source)
    if made["model"]["type"] == "Unigram":
        made["model"]["vocab"] = made["model"]["vocab"][:60]
        made["added_tokens"] = [token for token in made["added_tokens"] if token["id"] < 60]
        made["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}
        return json.dumps(made)
    made["model"]["merges"] = made["model"]["merges"][:20]
    return json.dumps(made)


def test_damaged_text(checked: Path, run: Run, tmp_path: Path) -> None:
    (tmp_path / "tokenizer").write_text(storyteller())
    (tmp_path / "text").write_text("Once upon a time, 12 été 日本 <s> 😀\n  it's", "utf-8")
    fuzz(checked, run, "text", [tmp_path / "tokenizer", tmp_path / "text"])


def test_whatever_the_library_reads_under_sanitizers(checked: Path) -> None:
    """The tests of the C API once more, in a Python that the sanitizers are loaded into first."""
    compiler = os.environ.get("CXX", "c++")
    loaded = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")  # whose exceptions the former must find
    ]
    environment = {
        **os.environ,
        **SANITIZERS,
        "LD_PRELOAD": " ".join(loaded),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python's own
        "T2R_LIBRARY": str(checked / "libt2r.so"),
    }
    tests = ["test_decoder.py", "test_snapshots.py", "test_tokenizers.py"]
    chosen = "not gpt2 and not storyteller and not sentencepiece and not test_unigram"
    command = ["python", "-m", "pytest", "-q", "-x", "-k", chosen, *(str(HERE / "tests" / test) for test in tests)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=590, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


PAGES = {page: (HERE.parents[1] / page).read_text("utf-8") for page in ("README.md", "docs/embedding.md")}


def program(page: str, language: str) -> str:
    """The first program of a language on a page."""
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGES[page], re.DOTALL | re.MULTILINE)
    assert found, f"no program in {language} in {page}"
    return found[1]


def test_pages_show_the_examples() -> None:
    for page, language, example in (
        ("README.md", "c", "story.c"),
        ("docs/embedding.md", "c", "story.c"),
        ("docs/embedding.md", "cpp", "stream.cpp"),
    ):
        assert program(page, language) == (HERE / "examples" / example).read_text("utf-8")


def test_find_package(release: Path, run: Run, tmp_path: Path) -> None:
    """The page's programs after an install, C with the shared library and C++ with the static one: as Python writes."""
    prefix, source = tmp_path / "installed", tmp_path / "project"
    run("cmake", "--install", release, "--prefix", prefix)
    source.mkdir()
    for language, name in (("cmake", "CMakeLists.txt"), ("c", "story.c"), ("cpp", "stream.cpp")):
        (source / name).write_text(program("docs/embedding.md", language), "utf-8")
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
