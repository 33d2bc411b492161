"""`python -m t2r_export` is `t2r`."""

from t2r_export.cli import main

raise SystemExit(main())
