"""Let a tox environment use the packages of another: borrow.py OTHER_ENVIRONMENT.

A .pth file appends the other environment's site-packages to sys.path, so packages of this environment take precedence.
It saves a copy of torch per provider, and a provider's own onnxruntime still comes first.
"""

import sys
import sysconfig
from pathlib import Path

own = Path(sysconfig.get_path("purelib"))
lender = Path(sys.argv[1]) / own.relative_to(sys.prefix)
if not (lender / "t2r_export").is_dir():
    raise SystemExit(f"expected installed packages in {lender}; found none; run `tox run -e {Path(sys.argv[1]).name}`")
(own / "borrowed.pth").write_text(f"{lender}\n")
