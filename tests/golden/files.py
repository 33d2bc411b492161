"""All golden files, and the index that names them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from golden import (
    adapters,
    bad,
    calls,
    drafts,
    edited,
    families,
    history,
    parts,
    prefixes,
    rows,
    sentences,
    texts,
    translator,
)
from golden.choices import sampling
from golden.models import MODELS, write_graph
from golden.texts import Case
from golden.traces import trace
from t2r_export.files import write_bytes

INDEX = "index.json"


def write(folder: Path) -> None:
    """Write all golden files to a folder, and last the index."""
    cases = []
    for make in KINDS:
        for name, kind, content in make(folder):
            entries = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
            write_bytes(folder / f"{name}.json", ("{\n" + ",\n".join(entries) + "\n}\n").encode())
            cases.append({"case": name, "kind": kind, "file": f"{name}.json"})
    write_bytes(folder / sentences.NAME, sentences.written())
    write_bytes(folder / drafts.NAME, drafts.written())
    write_bytes(folder / prefixes.NAME, prefixes.written())
    lines = ",\n".join(json.dumps(case) for case in cases)
    write_bytes(folder / INDEX, f'{{"golden": 1, "cases": [\n{lines}\n]}}\n'.encode())


def _traces(folder: Path) -> Iterator[Case]:
    for name in MODELS:
        yield name, "trace", trace(name, write_graph(name, folder))


def _sampled(folder: Path) -> Iterator[Case]:
    # all logits, the graph's largest logits, the graph's options
    for name in ("tiny", "top3", "options"):
        yield f"sampling-{name}", "sampling", sampling(name)


KINDS: tuple[Callable[[Path], Iterator[Case]], ...] = (
    _traces,
    _sampled,
    edited.cases,
    history.cases,
    drafts.cases,
    texts.cases,
    parts.cases,
    families.cases,
    rows.cases,
    calls.cases,
    adapters.cases,
    translator.cases,
    bad.cases,
)
