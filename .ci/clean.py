"""Remove the files of earlier builds: setuptools would package deleted modules into the next wheel."""

import shutil
from pathlib import Path

root = Path(__file__).parent.parent
for package in (root, root / "runtimes" / "python"):
    # the rest of build/ is not setuptools': releases, libt2r, downloads, and what fuzzers found
    for pattern in ("build/lib", "build/lib.*", "build/bdist.*", "*.egg-info"):
        for leftover in package.glob(pattern):
            shutil.rmtree(leftover, ignore_errors=True)
