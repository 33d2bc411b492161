"""Reproducible plots: equal data gives equal files. Needs the extra `plot` (matplotlib)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from t2r_runtime.errors import UserError
from t2r_runtime.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# on dark pages, with equal hues: browsers and GitHub take the scheme of the page, or of the system
DARK = "@media (prefers-color-scheme: dark){svg{filter:invert(.9) hue-rotate(180deg)}}</style>"
FORMATS = {".svg": "Date", ".png": "Software"}  # format → metadata key that differs between runs


@contextlib.contextmanager
def drawing(*paths: Path, size: tuple[float, float], dpi: int = 120) -> Iterator[Figure]:
    """A figure of `size` inches, written to every path at the end of the context; an .svg is dark on dark pages.

    Raises:
        UserError: matplotlib is missing, or a path is neither .svg nor .png.
    """
    for path in paths:
        if path.suffix not in FORMATS:
            raise UserError(f"a file that ends in {' or '.join(FORMATS)}", str(path), "choose one of the two")
    try:
        import matplotlib
        from matplotlib.figure import Figure  # not pyplot: no window, no global state
    except ImportError as error:
        raise UserError("matplotlib, to draw with", str(error), "pip install matplotlib") from error
    with matplotlib.rc_context({"svg.hashsalt": "t2r", "svg.fonttype": "none"}):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        for path in paths:
            with replacing(path) as part:
                ending = path.suffix
                figure.savefig(os.fspath(part), format=ending[1:], dpi=dpi, metadata={FORMATS[ending]: None})
                if ending == ".svg":
                    text = part.read_text(encoding="utf-8")
                    part.write_text(text.replace("</style>", DARK, 1), encoding="utf-8")
