"""Wrong runtimes: a line of each that is another, and the case of the golden files that must fail then.

`mutants.json` has them for three languages: the file, what stands in it once, and what stands there instead. MUTANT in
C++ is whether this one is asked for, so that one build has them all.
"""

from __future__ import annotations

import json
from pathlib import Path

MUTANTS = json.loads((Path(__file__).parent / "mutants.json").read_text("utf-8"))
PYTHON = [name for name, mutant in MUTANTS.items() if mutant["python"]]  # zip64 and tokenizers are libraries' there


def changed(text: str, old: str, new: str) -> str:
    """A source with the one place of `old` as `new`."""
    assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
    return text.replace(old, new)


def only(folder: Path, *cases: str) -> None:
    """Leave no other cases in the index of a copy of the golden files."""
    index = json.loads((folder / "index.json").read_text())
    index["cases"] = [case for case in index["cases"] if case["case"] in cases]
    assert len(index["cases"]) == len(set(cases))
    (folder / "index.json").write_text(json.dumps(index))
