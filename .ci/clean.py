"""Remove the files of earlier builds: setuptools would package deleted modules into the next wheel."""

import shutil
from pathlib import Path

root = Path(__file__).parent.parent
for package in (root, root / "runtimes" / "python"):
    for leftover in (package / "build", *package.glob("*.egg-info")):
        shutil.rmtree(leftover, ignore_errors=True)
