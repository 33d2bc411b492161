"""Build a release, or verify one; run by `make release` and `make verify-release`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from release import packages, platforms
from release.verify import verify


def main() -> int:
    parser = argparse.ArgumentParser(prog="release", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, purpose in (
        ("build", "build all packages, SHA256SUMS, sbom.cdx.json and provenance.intoto.json into a folder"),
        ("verify", "check the files of a release, build it again from its commit, and compare byte by byte"),
    ):
        verb = verbs.add_parser(name, help=purpose, description=purpose)
        verb.add_argument("folder", type=Path, help="empty or new" if name == "build" else "a release")
        verb.add_argument(
            "--only", nargs="*", choices=packages.PACKAGES, help=f"packages to {name}; after verify also none"
        )
        verb.add_argument("--jdk", type=prefix, default=[], help="command prefix for javac and jar")
        verb.add_argument(
            "--cmake", type=shlex.split, default=[], help="options of cmake, such as the path of ONNX Runtime"
        )
    verbs.choices["build"].add_argument(
        "--build", type=Path, default=packages.Tools.build, help="build folder of libt2r, reused if present"
    )
    verbs.choices["build"].add_argument(
        "--platforms", nargs="+", choices=platforms.PLATFORMS, default=[], help="other platforms that zig compiles for"
    )
    arguments = parser.parse_args()
    try:
        run(arguments)
    except (ValueError, RuntimeError, OSError) as error:
        print(f"release: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


def prefix(text: str) -> list[str]:
    """The words of a command prefix; paths are absolute, since packages are built in folders of their own."""
    return [os.path.abspath(word) if os.sep in word and Path(word).exists() else word for word in shlex.split(text)]


def run(arguments: argparse.Namespace) -> None:
    folder = arguments.folder.resolve()
    if arguments.verb == "verify":
        for line in verify(folder, arguments.only, packages.Tools(jdk=arguments.jdk, cmake=arguments.cmake)):
            print(line, flush=True)  # noqa: T201
        return
    from release.assemble import release  # with the packages of .[release], which verify does not need

    names = list(packages.PACKAGES) if arguments.only is None else arguments.only
    others = [platforms.PLATFORMS[name] for name in arguments.platforms]
    tools = packages.Tools(jdk=arguments.jdk, cmake=arguments.cmake, build=arguments.build.resolve(), others=others)
    release(folder, names, tools)


if __name__ == "__main__":
    raise SystemExit(main())
