"""The contract's pages: runtimes/CONTRACT.md and its annexes in runtimes/contract/."""

from __future__ import annotations

from pathlib import Path

RUNTIMES = Path(__file__).parents[1] / "runtimes"
PATHS = (RUNTIMES / "CONTRACT.md", *sorted((RUNTIMES / "contract").glob("*.md")))
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in PATHS}
ALL = "\n".join(PAGES.values())
