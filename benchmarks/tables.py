"""Put what `t2r bench … --json` printed into a page of Markdown, where the page says.

    python benchmarks/tables.py build/bench docs/performance.md

Between a line `<!-- table FILE NAME -->` and the next `<!-- end -->` comes the table NAME of the result FILE in the
folder: steps-2, ratios-2, memory-2, prompts-2, starts-2 and limit-2 of `t2r bench decode` (2 is the number of threads),
operators and products of `t2r bench profile`, batch and export of the other two. `machine` is the line that says where
a result was measured; `aims aims` holds the results against our aims (t2r_export/bench/aims.py). A place whose file
is not there stays as it is, and is named.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from t2r_export.bench.aims import aims_table
from t2r_export.bench.tables import (
    BATCH,
    DECODE,
    EXPORT,
    PROFILE,
    batch_table,
    decode_tables,
    export_table,
    profile_tables,
)
from t2r_runtime.files import write_bytes

PLACE = re.compile(r"(<!-- table (\S+) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
VERSIONS = ("python", "onnxruntime", "torch", "onnxruntime-genai", "llama-cpp-python")


def tables(result: dict[str, Any]) -> dict[str, str]:
    """Every table of a result as Markdown, by name."""
    made = {
        DECODE: decode_tables,
        PROFILE: profile_tables,
        BATCH: lambda found: {"batch": batch_table(found)},
        EXPORT: lambda found: {"export": export_table(found)},
    }[result["format"]](result)
    texts = {name: f"{table.title}\n\n{table.markdown()}" for name, table in made.items()}
    return {**texts, "machine": machine(result["machine"])}


def machine(found: dict[str, Any]) -> str:
    memory = f", {found['memory_bytes'] / 1e9:.0f} GB" if found["memory_bytes"] else ""
    versions = ", ".join(f"{name} {found[name]}" for name in VERSIONS if found[name])
    return f"{found['cores']} cores of an {found['cpu']}{memory}, {found['system']}; {versions}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("page", type=Path)
    options = parser.parse_args()
    results = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in options.results.glob("*.json")}
    found = {name: tables(result) for name, result in results.items()} | {
        "aims": {"aims": aims_table(results).markdown()}
    }

    def filled(place: re.Match[str]) -> str:
        head, file, name, end = place.groups()
        if name not in found.get(file, {}):
            print(f"{options.page}: nothing for {file} {name}")
            return place[0]
        return f"{head}{found[file][name]}\n{end}"

    text = options.page.read_text(encoding="utf-8")
    write_bytes(options.page, PLACE.sub(filled, text).encode())


if __name__ == "__main__":
    main()
