"""Steps in every language's runtime, tokenization, and package sizes: tables of docs/record.md.

    python benchmarks/embedding.py [--out build/bench] [--work build/embedding] [--page docs/record.md]
        [--threads 1,2] [--quick] [--keep]

`--keep` fills the page from the existing result; `--quick` is a trial run with few turns, whose figures are
meaningless. Needs cmake, a C++ compiler, ONNX Runtime's headers in $T2R_ONNXRUNTIME_ROOT, Node with `npm install` in
runtimes/js, Chromium, and an idle machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from comparison import page
from comparison.embedded import QUICK, Note, Often, encoding, side_by_side
from comparison.package_sizes import sizes
from comparison.programs import EXPECTED, JS, MODELS, ROOT, build, encoders, steps
from comparison.tables import EMBEDDING, read_result, tables
from comparison.timing import machine
from run import note
from t2r_export.cli.output import table
from t2r_export.files import write_bytes
from t2r_runtime.cli.output import plain
from t2r_runtime.errors import T2RError

RESULT = "embedding.json"
TEXT_BYTES = 1 << 18  # repeated documentation pages


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder of the result")
    parser.add_argument("--work", type=Path, default=Path("build/embedding"), help="build folder")
    parser.add_argument("--page", type=Path, default=None, help="Markdown page to fill")
    parser.add_argument("--threads", default="1,2", help="comma-separated thread counts")
    parser.add_argument("--quick", action="store_true", help="trial run with few turns")
    parser.add_argument("--keep", action="store_true", help="use the existing result")
    options = parser.parse_args(arguments)
    try:
        if not options.keep:
            threads = [int(number) for number in options.threads.split(",")]
            result = measure(options.work.resolve(), threads, QUICK if options.quick else Often(), note)
            options.out.mkdir(parents=True, exist_ok=True)
            write_bytes(options.out / RESULT, json.dumps(plain(result), ensure_ascii=False).encode())
        result = read_result(options.out / RESULT)
        for made in tables(result).values():
            print(f"{made.title}\n{table(made.rows, made.head)}\n", flush=True)
        if options.page is not None:
            for place in page.fill(options.page, {RESULT: result}, {}):
                note(f"{options.page}: nothing for {place}")
    except T2RError as error:
        note(str(error))
        return error.exit_code
    return 0


def measure(work: Path, threads: Sequence[int], often: Often, note: Note) -> dict[str, Any]:
    """All rows, as plain data."""
    started = time.perf_counter()
    work.mkdir(parents=True, exist_ok=True)
    built = build(work, note)
    with tempfile.TemporaryDirectory(dir=work) as place:
        note("making the models")
        models = [make(Path(place)) for make in MODELS]
        rows = []
        for count in threads:
            for model in models:
                setting = f"{model.name}, {count} thread{'s' if count > 1 else ''}"
                note(setting)
                rows += side_by_side({"setting": setting}, steps(built, model, count), EXPECTED, often, note)
        text = Path(place) / "text"
        text.write_bytes(_text())
        found = side_by_side(
            {"setting": models[0].name}, encoders(built, models[0].graph, text), "Python, tokenizers", often, note
        )
        found = encoding(text, found)
        shipped = sizes(built, models[0])
    return {
        "format": EMBEDDING,
        "machine": {**machine(), **_versions()},
        "seconds": time.perf_counter() - started,
        "rounds": often.rounds,
        "turns": often.turns,
        "steps": rows,
        "encode": found,
        "sizes": shipped,
    }


def _text() -> bytes:
    """TEXT_BYTES of non-empty lines of documentation."""
    pages = "\n".join(file.read_text(encoding="utf-8") for file in sorted((ROOT / "docs").glob("*.md")))
    lines = "".join(f"{line}\n" for line in pages.split("\n") if line).encode()
    return (lines * (TEXT_BYTES // len(lines) + 1))[:TEXT_BYTES].decode(errors="ignore").encode()


def _versions() -> dict[str, str]:
    """Versions outside Python."""
    found = {
        name: json.loads((JS / "node_modules" / name / "package.json").read_text(encoding="utf-8"))["version"]
        for name in ("onnxruntime-node", "onnxruntime-web")
    }
    commands = {"node": ["node", "--version"], "chromium": [str(ROOT / ".ci" / "chromium"), "--version"]}
    for name, command in commands.items():
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found[name] = said.split()[-1] if name == "node" else said.split()[1]
    return found


if __name__ == "__main__":
    raise SystemExit(main())
