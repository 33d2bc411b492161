"""Build packages into one folder, and describe them: sbom.cdx.json, provenance.intoto.json and SHA256SUMS."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from release import bill, files, packages, provenance, versions


def release(out: Path, names: Sequence[str], tools: packages.Tools) -> None:
    """Build the packages `names` into the folder `out`.

    Raises:
        ValueError: the versions differ, or `out` is not empty.
        RuntimeError: a program failed.
    """
    version = versions.version()
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise ValueError(f"expected an empty folder; received {out}, which contains files; remove them")
    with tempfile.TemporaryDirectory() as work:
        built = {name: packages.build(name, out, Path(work), version, tools) for name in names}
    bill.write(out, built, version, tools)
    provenance.write(out, names, version, tools)
    files.write_sums(out)
