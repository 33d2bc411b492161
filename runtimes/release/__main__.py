"""Build all packages, SHA256SUMS and sbom.cdx.json into one folder; run by `make release`."""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from pathlib import Path

from release import bill, packages, versions


def release(out: Path, names: list[str], tools: packages.Tools) -> None:
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
    files = sorted(path for path in out.rglob("*") if path.is_file())
    lines = [f"{bill.sha256(path)}  {path.relative_to(out).as_posix()}\n" for path in files]
    (out / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="release", description=__doc__)
    parser.add_argument("out", type=Path, help="output folder, empty or new")
    parser.add_argument(
        "--only", nargs="+", choices=packages.PACKAGES, default=list(packages.PACKAGES), help="packages to build"
    )
    parser.add_argument("--jdk", type=shlex.split, default=[], help="command prefix for javac and jar")
    parser.add_argument(
        "--cmake", type=shlex.split, default=[], help="options of cmake, such as the path of ONNX Runtime"
    )
    parser.add_argument(
        "--build", type=Path, default=packages.Tools.build, help="build folder of libt2r, reused if present"
    )
    arguments = parser.parse_args()
    tools = packages.Tools(jdk=arguments.jdk, cmake=arguments.cmake, build=arguments.build.resolve())
    try:
        release(arguments.out.resolve(), arguments.only, tools)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"release: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
