"""What the fuzzers start from: files of each target made here, and those that earlier runs have kept in corpus/.

A corpus is an archive of small files, each of which runs code that no other does. fuzz_hours.py writes them.
"""

from __future__ import annotations

import base64
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

from cpp_build import GOLDEN, HERE
from made_tokenizers import added_token, fallback, storyteller, unigram

TARGETS = ("metadata", "tokenizer", "text", "snapshot")
LIMITS = ("-max_len=65536", "-timeout=20", "-rss_limit_mb=0")  # bytes and seconds of a file; fuzz.cpp bounds memory
CORPUS = HERE / "tests" / "corpus"
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


def sources(target: str) -> dict[str, bytes]:
    """The files that a target starts from, without those of earlier runs."""
    if target == "metadata":
        return {path.name: path.read_bytes() for path in sorted([*GOLDEN.glob("*.onnx"), *GOLDEN.glob("bad/*.onnx")])}
    if target == "snapshot":
        return {path.name: path.read_bytes() for path in sorted([*GOLDEN.glob("*.state"), *GOLDEN.glob("bad/*.state")])}
    if target == "text":
        return {"plain": PLAIN.encode(), "marked": MARKED.encode()}
    # small tokenizers: in a large vocabulary, a change seldom has an effect
    made = {"bytes": fallback(), "unigram": unigram(byte_fallback=False), "growing": json.dumps(growing())}
    made |= {form: json.dumps(normalized(form)) for form in FORMS}
    return {name: small(source).encode() for name, source in made.items()}


def tokenizer_of(name: str) -> str:
    """The tokenizer that reads the texts of a run: the storyteller's, or one with a normalization form."""
    return storyteller() if name == "storyteller" else json.dumps(normalized(name))


def unpack(target: str, folder: Path) -> None:
    """Write what a target starts from into a new folder."""
    folder.mkdir(parents=True)
    kept = CORPUS / f"{target}.zip"
    found = sources(target)
    if kept.exists():
        with zipfile.ZipFile(kept) as archive:
            found |= {name: archive.read(name) for name in archive.namelist()}
    for name, content in found.items():
        (folder / name).write_bytes(content)


def pack(target: str, folder: Path, most: int) -> int:
    """Keep a folder's files, the smallest first, in an archive of at most `most` bytes; returns their number."""
    CORPUS.mkdir(exist_ok=True)
    files = sorted(folder.iterdir(), key=lambda path: (path.stat().st_size, path.name))
    path = CORPUS / f"{target}.zip"
    while True:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for number, file in enumerate(files):
                archive.writestr(zipfile.ZipInfo(f"{number:04}"), file.read_bytes(), zipfile.ZIP_DEFLATED)
        if path.stat().st_size <= most:
            return len(files)
        files = files[: len(files) * 9 // 10]
