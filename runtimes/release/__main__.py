"""python -m release OUT: all packages, SHA256SUMS and sbom.cdx.json in one folder. `make release` calls it."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from pathlib import Path

from release import bill, packages, versions


def release(out: Path, names: list[str], tools: packages.Tools) -> None:
    """Build packages into an empty folder. @raises ValueError: versions differ; RuntimeError: a program failed"""
    version = versions.version()
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise ValueError(f"expected an empty folder; received {out} with files in it; remove them")
    with tempfile.TemporaryDirectory() as work:
        built = {name: packages.build(name, out, Path(work), version, tools) for name in names}
    bill.write(out, built, version, tools)
    files = sorted(path for path in out.rglob("*") if path.is_file())
    lines = [f"{bill.sha256(path)}  {path.relative_to(out).as_posix()}\n" for path in files]
    (out / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="release", description=__doc__)
    parser.add_argument("out", type=Path, help="where all goes; empty, or made")
    parser.add_argument("--only", nargs="+", choices=packages.PACKAGES, default=list(packages.PACKAGES))
    parser.add_argument("--jdk", type=shlex.split, default=[], help="words before javac and jar")
    parser.add_argument("--cmake", type=shlex.split, default=[], help="options of cmake: where ONNX Runtime is")
    parser.add_argument("--build", type=Path, default=packages.Tools.build, help="of libt2r, which is gone on with")
    given = parser.parse_args()
    tools = packages.Tools(jdk=given.jdk, cmake=given.cmake, build=given.build.resolve())
    try:
        release(given.out.resolve(), given.only, tools)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"release: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
