"""python -m t2r_export.golden FOLDER"""

from __future__ import annotations

import sys
from pathlib import Path

from t2r_export.golden.files import write
from t2r_runtime.errors import T2RError

if __name__ == "__main__":
    try:
        if len(sys.argv) != 2:
            sys.exit("usage: python -m t2r_export.golden FOLDER")
        write(Path(sys.argv[1]))
    except T2RError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
