"""Bytes of the runtime that an app ships, and that a web page loads."""

from __future__ import annotations

import gzip
import io
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from comparison.programs import JS, Built, Model


def sizes(built: Built, model: Model) -> list[dict[str, Any]]:
    """Rows of sizes, raw and gzipped: the library, the package, and the parts of the page.

    Raises:
        OSError: `strip` is missing.
    """
    with tempfile.TemporaryDirectory() as place:
        stripped = Path(place) / "libt2r.so"
        library = (built.cpp / "t2r" / "libt2r.so").resolve()
        subprocess.run(["strip", "-o", stripped, library], check=True)
        rows = [_row("libt2r.so, stripped", [stripped])]
    tokenizers = JS / "node_modules" / "@huggingface" / "tokenizers" / "dist" / "tokenizers.min.mjs"
    sources = sorted((JS / "src").glob("*.js"))
    rows.append(_row("the JavaScript package: src/", sources))
    rows.append(_row("its dependency @huggingface/tokenizers", [tokenizers]))
    vendor = built.page / "vendor"
    wasm, webgpu = (_with(vendor, *words) for words in WAYS)
    ours = [file for file in built.page.iterdir() if file.is_file()]
    rows += [
        _row("the page: its own files", ours),
        _row("the page: the runtime and its dependency", [*sources, tokenizers]),
        _row("the page: ONNX Runtime for WebAssembly", wasm),
        _row("the page: ONNX Runtime for WebGPU", webgpu),
        _row(f"the page: the model, {model.name}", sorted(model.graph.parent.glob(f"{model.graph.name}*"))),
    ]
    return rows


# JavaScript bundle and WebAssembly file of each backend
WAYS = (
    ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"),
    ("ort.webgpu.bundle.min.mjs", "ort-wasm-simd-threaded.asyncify.wasm"),
)


def _with(folder: Path, *names: str) -> list[Path]:
    return [folder / name for name in names]


def _row(name: str, files: Iterable[Path]) -> dict[str, Any]:
    files = list(files)
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as stream, tarfile.open(fileobj=stream, mode="w") as archive:
        for file in files:
            archive.add(file.resolve(), file.name)
    return {"name": name, "bytes": sum(file.stat().st_size for file in files), "gzipped": len(packed.getvalue())}
