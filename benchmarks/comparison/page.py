"""Put the tables of results into a page of Markdown, where the page says.

Between a line `<!-- table FILE NAME -->` and the next `<!-- end -->` comes the table NAME of the result FILE:
steps-2, ratios-2, memory-2, prompts-2, turns-2, starts-2 and limit-2 of a decode (2 is the number of threads),
operators and products of a profile, batch and export of their results; parity, sentences-2, tokens-2, ratios-2,
memory-2, lengths-2 and starts-2 of translations; steps, ratios, encode and sizes of embedding. `machine` is the line
that says where a result was measured; `aims aims` holds the results against our aims. A place whose result is not
there stays as it is.
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
    """Write the tables of `results`, by the names of their files; returns the places for which there was nothing."""
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
    """Every table of a result as Markdown, by name."""
    texts = {name: f"{table.title}\n\n{table.markdown()}" for name, table in tables(result).items()}
    return {**texts, "machine": _machine(result["machine"])}


def _machine(found: Mapping[str, Any]) -> str:
    memory = f", {found['memory_bytes'] / 1e9:.0f} GB" if found["memory_bytes"] else ""
    versions = ", ".join(f"{name} {found[name]}" for name in VERSIONS if found.get(name))
    return f"{found['cores']} cores of an {found['cpu']}{memory}, {found['system']}; {versions}."
