"""Untrusted files: libFuzzer, with AddressSanitizer, UndefinedBehaviorSanitizer and a bound on memory."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from cpp_build import CHECKED, GOLDEN, SANITIZERS, Run, build, clang
from made_tokenizers import added_token, fallback, storyteller, unigram

RUNS = int(os.environ.get("T2R_FUZZ_RUNS", "20000"))  # per target; a release makes 1,000,000
LONGEST = 1 << 16  # bytes of a generated file
SLOWEST = 20  # seconds per file


@pytest.fixture(scope="session")
def fuzzer() -> Path:
    """The fuzzing program, compiled by clang."""
    options = ["-DT2R_SANITIZE=fuzzer", f"-DCMAKE_CXX_COMPILER={clang()}"]
    return build("fuzzer", *options, *CHECKED, targets=["fuzz"]) / "fuzz"


def ran(
    fuzzer: Path, place: Path, target: str, seeds: Iterable[Path], *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the fuzzer on copies of the seeds in `place`, where it also stores its findings."""
    corpus = place / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds):
        shutil.copyfile(seed, corpus / f"{number}-{seed.name}")
    limits = [f"-max_len={LONGEST}", f"-timeout={SLOWEST}", "-rss_limit_mb=0", f"-artifact_prefix={place}/"]
    return subprocess.run(
        [fuzzer, f"-runs={RUNS}", "-seed=1", *limits, *options, corpus],
        capture_output=True,
        text=True,
        timeout=3600 if RUNS > 50000 else 580,
        env={**os.environ, **SANITIZERS, "T2R_FUZZ": target, **environment},
    )


def fuzz(fuzzer: Path, place: Path, target: str, seeds: Iterable[Path], **environment: str) -> None:
    done = ran(fuzzer, place, target, seeds, **environment)
    assert done.returncode == 0, done.stderr[-6000:]
    assert re.search(rf"^Done {RUNS} runs", done.stderr, re.MULTILINE), done.stderr[-1000:]


@pytest.mark.parametrize("seed", range(4))
def test_random_calls(checked: Path, run: Run, tmp_path: Path, seed: int) -> None:
    """Random calls of the C API, also with wrong arguments and closed handles, which must be errors with a line."""
    folder = Path(shutil.copytree(GOLDEN, tmp_path / "tiny"))
    said = run(checked / "api_calls", folder, seed, RUNS // 40, timeout=3600 if RUNS > 50000 else 580).stdout.split()
    assert int(said[0]) > RUNS // 200 and int(said[2]) > RUNS // 200, said  # enough calls succeed, and enough fail


def test_damaged_metadata(fuzzer: Path, tmp_path: Path) -> None:
    fuzz(fuzzer, tmp_path, "metadata", sorted([*GOLDEN.glob("*.onnx"), *GOLDEN.glob("bad/*.onnx")]))


def test_damaged_snapshots(fuzzer: Path, tmp_path: Path) -> None:
    fuzz(fuzzer, tmp_path, "snapshot", sorted([*GOLDEN.glob("*.state"), *GOLDEN.glob("bad/*.state")]))


def test_damaged_tokenizers(fuzzer: Path, tmp_path: Path) -> None:
    """Small tokenizers: in a large vocabulary, a change seldom has an effect."""
    sources = {"bytes": fallback(), "unigram": unigram(byte_fallback=False)}
    sources |= {form: json.dumps(normalized(form)) for form in FORMS} | {"growing": json.dumps(growing())}
    seeds = [tmp_path / name for name in sources]
    for seed, source in zip(seeds, sources.values(), strict=True):
        seed.write_text(small(source), "utf-8")
    fuzz(fuzzer, tmp_path, "tokenizer", seeds)


CHARSMAP = base64.b64encode(struct.pack("<5I", 16, 0x400, 0x161, 0x80000000, 0x400) + b"b\0c\0").decode()


FORMS = ("NFC", "NFD", "NFKC", "NFKD")


def normalized(form: str) -> dict[str, Any]:
    """Byte-pair encoding with byte fallback, after a normalization form."""
    return json.loads(fallback()) | {"normalizer": {"type": form}}


def growing() -> dict[str, Any]:
    """Parts that each multiply a text, just within the bounds, and added tokens that they multiply too."""
    several = [replaced("a", "b" * 16), replaced("b", "a" * 16), {"type": "Prepend", "prepend": "a" * 9}]
    marks = [{"type": "Metaspace", "replacement": mark, "prepend_scheme": "always", "split": True} for mark in "_▁"]
    content = "a" * 3
    return json.loads(fallback()) | {
        "normalizer": {"type": "Sequence", "normalizers": several},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": marks},
        "decoder": {"type": "Sequence", "decoders": [replaced("a", "b" * 8), replaced("b", "a" * 8), {"type": "Fuse"}]},
        "added_tokens": [added_token(content, len(json.loads(fallback())["model"]["vocab"]), normalized=True)],
    }


def replaced(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def small(source: str) -> str:
    """A tokenizer with a smaller vocabulary or fewer merges."""
    made = json.loads(source)
    if made["model"]["type"] == "Unigram":
        made["model"]["vocab"] = made["model"]["vocab"][:60]
        made["added_tokens"] = [token for token in made["added_tokens"] if token["id"] < 60]
        made["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}
        return json.dumps(made)
    made["model"]["merges"] = made["model"]["merges"][:20]
    return json.dumps(made)


PLAIN = "Once upon a time, 12 été 日本 <s> 😀\n  it's"
# characters that the forms decompose, reorder and compose
MARKED = "e\u0323\u0301 \u0301\u0323x \u1100\u1161\u11a8각 ﬁ ½ \u0344\ufdfa\u1e9b\u0323"


@pytest.mark.parametrize("name", ["storyteller", "NFC", "NFKD"])
def test_damaged_text(fuzzer: Path, tmp_path: Path, name: str) -> None:
    source = storyteller() if name == "storyteller" else json.dumps(normalized(name))
    (tmp_path / "tokenizer").write_text(source, "utf-8")
    seeds = [tmp_path / "plain", tmp_path / "marked"]
    for seed, text in zip(seeds, (PLAIN, MARKED), strict=True):
        seed.write_text(text, "utf-8")
    fuzz(fuzzer, tmp_path, "text", seeds, T2R_FUZZ_TOKENIZER=str(tmp_path / "tokenizer"))


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
    (tmp_path / "bytes").write_text(small(fallback()), "utf-8")
    done = ran(fuzzer, tmp_path, "tokenizer", [tmp_path / "bytes"], T2R_FUZZ_MEMORY="1000")
    assert done.returncode != 0
    assert "more memory than four times the file and 1000 bytes" in done.stderr
