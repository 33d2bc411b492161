"""The golden files of models/tiny: graphs of a few kilobytes and their expected results, for runtimes in any language.

    python -m tests.golden models/tiny

runtimes/contract/conformance.md describes the files and what a runtime does with each. The numbers are the eager
model's in float64, so that every runtime is compared with the same reference and none with another's rounding.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from golden.files import write  # noqa: E402
from t2r_runtime.errors import T2RError  # noqa: E402

if __name__ == "__main__":
    try:
        if len(sys.argv) != 2:
            sys.exit("usage: python -m tests.golden FOLDER")
        write(Path(sys.argv[1]))
    except T2RError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
