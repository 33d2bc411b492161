"""Untrusted files: libFuzzer, with AddressSanitizer, UndefinedBehaviorSanitizer and a bound on memory."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import fuzz_corpus
import fuzz_hours
import pytest
from cpp_build import GOLDEN, SANITIZERS, Run
from fuzz_corpus import CORPUS, LIMITS, TARGETS

RUNS = int(os.environ.get("T2R_FUZZ_RUNS", "20000"))  # per target; a release makes 1,000,000


@pytest.fixture(scope="session")
def fuzzer() -> Path:
    """The fuzzing program, compiled by clang."""
    return fuzz_hours.built()


def ran(fuzzer: Path, place: Path, target: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the fuzzer on what a target starts from in `place`, where it also stores its findings."""
    fuzz_corpus.unpack(target, place / "corpus")
    return subprocess.run(
        [fuzzer, f"-runs={RUNS}", "-seed=1", *LIMITS, f"-artifact_prefix={place}/", *options, place / "corpus"],
        capture_output=True,
        text=True,
        timeout=3600 if RUNS > 50000 else 580,
        env={**os.environ, **SANITIZERS, "T2R_FUZZ": target, **environment},
    )


def fuzz(fuzzer: Path, place: Path, target: str, **environment: str) -> None:
    done = ran(fuzzer, place, target, **environment)
    assert done.returncode == 0, done.stderr[-6000:]
    assert re.search(rf"^Done {RUNS} runs", done.stderr, re.MULTILINE), done.stderr[-1000:]


@pytest.mark.parametrize("seed", range(4))
def test_random_calls(checked: Path, run: Run, tmp_path: Path, seed: int) -> None:
    """Random calls of the C API, also with wrong arguments and closed handles, which must be errors with a line."""
    folder = Path(shutil.copytree(GOLDEN, tmp_path / "tiny"))
    said = run(checked / "api_calls", folder, seed, RUNS // 40, timeout=3600 if RUNS > 50000 else 580).stdout.split()
    assert int(said[0]) > RUNS // 200 and int(said[2]) > RUNS // 200, said  # enough calls succeed, and enough fail


def test_damaged_metadata(fuzzer: Path, tmp_path: Path) -> None:
    fuzz(fuzzer, tmp_path, "metadata")


def test_damaged_snapshots(fuzzer: Path, tmp_path: Path) -> None:
    fuzz(fuzzer, tmp_path, "snapshot")


def test_damaged_tokenizers(fuzzer: Path, tmp_path: Path) -> None:
    fuzz(fuzzer, tmp_path, "tokenizer")


@pytest.mark.parametrize("name", ["storyteller", "NFC", "NFKD"])
def test_damaged_text(fuzzer: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "tokenizer").write_text(fuzz_corpus.tokenizer_of(name), "utf-8")
    fuzz(fuzzer, tmp_path, "text", T2R_FUZZ_TOKENIZER=str(tmp_path / "tokenizer"))


@pytest.mark.parametrize("form", ["NFC", "NFKD"])
@pytest.mark.parametrize(
    "text, memory",
    [
        ("\u0323\u0301" * (1 << 18), 4 << 20),  # a 64th of the most marks that a text may have, and of the bound
        ("\u0344" * (1 << 18), 4 << 20),  # each decomposes into two marks
        ("\u0344" * (1 << 24) + "\u0344", 256 << 20),  # decompose into more bytes than a text may have
    ],
    ids=["many", "twice", "too-many"],
)
def test_memory_of_marks(fuzzer: Path, tmp_path: Path, form: str, text: str, memory: int) -> None:
    """A text of only marks takes no more memory than others. Measures normalization only: no tokens are made."""
    empty = {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "normalizer": {"type": form}}
    (tmp_path / "tokenizer").write_text(json.dumps(empty), "utf-8")
    (tmp_path / "text").write_text(text, "utf-8")
    made = {"T2R_FUZZ_TOKENIZER": str(tmp_path / "tokenizer"), "T2R_FUZZ_MEMORY": str(memory)}
    done = subprocess.run(
        [fuzzer, "-rss_limit_mb=0", tmp_path / "text"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **SANITIZERS, "T2R_FUZZ": "text", **made},
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_memory_past_the_bound_is_seen(fuzzer: Path, tmp_path: Path) -> None:
    """A bound below a tokenizer's live memory makes the run fail."""
    done = ran(fuzzer, tmp_path, "tokenizer", T2R_FUZZ_MEMORY="1000")
    assert done.returncode != 0
    assert "more memory than four times the file and 1000 bytes" in done.stderr


def test_kept_files_are_few_and_small() -> None:
    assert sorted(path.stem for path in CORPUS.iterdir()) == sorted(TARGETS)
    assert sum(path.stat().st_size for path in CORPUS.iterdir()) <= fuzz_hours.MOST
    for path in CORPUS.iterdir():
        with zipfile.ZipFile(path) as archive:
            assert len(archive.namelist()) > 20
            assert max(member.file_size for member in archive.infolist()) <= 1 << 16


def test_a_short_run_resumes_and_keeps(fuzzer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run adds to the folder of the one before, and keeps the smallest set that runs the same code."""
    monkeypatch.setattr(fuzz_corpus, "CORPUS", tmp_path / "kept")
    options = ["--minutes", "0.03", "--seed", "5", "--folder", str(tmp_path / "work"), "--target", "snapshot", "--keep"]
    counts = []
    for _ in range(2):
        assert fuzz_hours.main(options, fuzzer) == 0
        counts.append(len(list((tmp_path / "work" / "snapshot").iterdir())))
    assert 0 < counts[0] <= counts[1]
    with zipfile.ZipFile(tmp_path / "kept" / "snapshot.zip") as archive:
        assert 0 < len(archive.namelist()) <= counts[1]


def test_findings_of_a_long_run_are_told(fuzzer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a bound on memory that no file keeps."""
    options = ["--minutes", "0.1", "--folder", str(tmp_path), "--target", "tokenizer", "--memory", "1000"]
    assert fuzz_hours.main(options, fuzzer) == 1
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith("| tokenizer |") and row.endswith("| 1 |")
    assert list((tmp_path / "found").glob("tokenizer-*"))
