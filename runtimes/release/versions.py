"""The version of all packages, in t2r_export/version.py, and the other files that contain it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = "t2r_export/version.py"
VERSION = r"(\d+)\.(\d+)\.(\d+)"
MINOR = r"(\d+)\.(\d+)"
# the groups of a pattern are the leading parts of the version that the file contains
STATED: Mapping[str, tuple[str, ...]] = {
    "pyproject.toml": (rf'"t2r-runtime\[[\w,]+\]~={MINOR}\.0"',),
    "runtimes/python/t2r_runtime/__init__.py": (rf'(?m)^__version__ = "{VERSION}"$',),
    "runtimes/provider/pyproject.toml": (rf'(?m)^version = "{VERSION}"$',),
    "runtimes/js/package.json": (rf'(?m)^  "version": "{VERSION}",$',),
    "runtimes/rust/Cargo.toml": (rf'(?m)^version = "{VERSION}"$',),
    "runtimes/rust/Cargo.lock": (rf'name = "t2r"\nversion = "{VERSION}"',),
    "benchmarks/embedding/rust/Cargo.lock": (rf'name = "t2r"\nversion = "{VERSION}"',),
    "runtimes/cpp/include/t2r.h": (
        r"T2R_VERSION_MAJOR (\d+)\n#define T2R_VERSION_MINOR (\d+)\n#define T2R_VERSION_PATCH (\d+)\n",
    ),
    "runtimes/cpp/README.md": (rf"find_package\(t2r {MINOR} REQUIRED\)",),
    "docs/embedding.md": (
        rf"find_package\(t2r {MINOR} REQUIRED\)",
        rf"t2r.internal/t2r@v{VERSION}",
    ),
    # the newest section describes this version
    "CHANGELOG.md": (rf"\A# Changelog\n(?:(?!\n## ).)*?\n## {VERSION} ",),
}


def version(root: Path = ROOT) -> str:
    """The version of all packages.

    Raises:
        ValueError: a file contains another version, or none.
    """
    text = (root / SOURCE).read_text(encoding="utf-8")
    [held] = _stated(rf'__version__ = "{VERSION}"', text, SOURCE)
    for file, patterns in STATED.items():
        text = (root / file).read_text(encoding="utf-8")
        for pattern in patterns:
            for stated in _stated(pattern, text, file):
                if stated != held[: len(stated)]:
                    received, expected = ".".join(stated), ".".join(held[: len(stated)])
                    raise ValueError(f"expected the version {expected} in {file}; received {received}; change it")
    return ".".join(held)


def _stated(pattern: str, text: str, file: str) -> list[tuple[str, ...]]:
    """The parts of every version that a pattern finds in a file."""
    found = [match.groups() for match in re.finditer(pattern, text, re.DOTALL)]
    if not found:
        raise ValueError(f"expected a version in {file}; received none; add one that matches {pattern}")
    return found
