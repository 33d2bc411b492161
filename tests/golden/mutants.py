"""Wrong runtimes: each has one changed line, and one case of the golden files that must fail.

`mutants.json` lists them for three languages: the file, a text that occurs in it once, and its replacement. In C++,
MUTANT is true if this mutant is selected, so that one build has them all.
"""

from __future__ import annotations

import json
from pathlib import Path

MUTANTS = json.loads((Path(__file__).parent / "mutants.json").read_text("utf-8"))
PYTHON = [name for name, mutant in MUTANTS.items() if mutant["python"]]  # zip64 and tokenizers are in libraries there


def changed(text: str, old: str, new: str) -> str:
    """The source with the only occurrence of `old` replaced by `new`."""
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    return text.replace(old, new)


def only(folder: Path, *cases: str) -> None:
    """Keep only these cases in the index of a copy of the golden files."""
    index = json.loads((folder / "index.json").read_text())
    index["cases"] = [case for case in index["cases"] if case["case"] in cases]
    assert len(index["cases"]) == len(set(cases))
    (folder / "index.json").write_text(json.dumps(index))
