"""Fill the tables of results into a Markdown page.

The table NAME of the result FILE replaces the text between `<!-- table FILE NAME -->` and the next `<!-- end -->`.
Names: steps-2, ratios-2, memory-2, prompts-2, turns-2, starts-2, limit-2 of decode (2 threads); operators, products of
profile; batch; export; parity, sentences-2, tokens-2, ratios-2, memory-2, lengths-2, starts-2 of translate; steps,
ratios, encode, sizes of embedding; streams, streams-ratios, streams-memory, prefix, overhead, rows, sessions of serve;
soak; `machine` of any result; `aims aims`. Places without a result are not changed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comparison.aims import FILES, aims_table
from comparison.plan import Forms
from comparison.tables import tables
from t2r_export.files import write_bytes

PLACE = re.compile(r"(<!-- table (\S+) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
VERSIONS = (
    *("python", "onnxruntime", "torch", "onnxruntime-genai", "llama-cpp-python", "transformers", "ctranslate2"),
    *("node", "onnxruntime-node", "onnxruntime-web", "chromium"),
)


def fill(page: Path, results: Mapping[str, Mapping[str, Any]], forms: Forms) -> list[str]:
    """Fill the tables of `results`, by file name; returns the places without a table."""
    found = {name: _texts(result) for name, result in results.items()}
    if results.keys() >= FILES:
        found["aims"] = {"aims": aims_table(results, forms).markdown()}
    empty = []

    def filled(place: re.Match[str]) -> str:
        head, file, name, end = place.groups()
        if name not in found.get(file, {}):
            empty.append(f"{file} {name}")
            return place[0]
        return f"{head}{found[file][name]}\n{end}"

    text = page.read_text(encoding="utf-8")
    write_bytes(page, PLACE.sub(filled, text).encode())
    return empty


def _texts(result: Mapping[str, Any]) -> dict[str, str]:
    """All tables of a result as Markdown, by name."""
    texts = {name: f"{table.title}\n\n{table.markdown()}" for name, table in tables(result).items()}
    return {**texts, "machine": _machine(result["machine"])}


def _machine(found: Mapping[str, Any]) -> str:
    memory = f", {found['memory_bytes'] / 1e9:.0f} GB" if found["memory_bytes"] else ""
    versions = ", ".join(f"{name} {found[name]}" for name in VERSIONS if found.get(name))
    return f"{found['cores']} cores of an {found['cpu']}{memory}, {found['system']}; {versions}."
