"""Build our execution provider and install it into this Python: provider.py [--optional].

The headers of ONNX Runtime are those in T2R_ONNXRUNTIME_INCLUDE, or of Debian's package, which is fetched into build/.
With --optional, a provider that cannot be built gives one line and no failure.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FETCHED = ROOT / "build" / "debian" / "headers"
HEADER = "onnxruntime_ep_c_api.h"
LOG = ROOT / "build" / "provider.log"


class Missing(Exception):
    """What the build needs and this machine lacks."""


def headers() -> Path:
    """The folder of ONNX Runtime's headers, fetched if necessary. Raises Missing."""
    default = FETCHED / "usr" / "include" / "onnxruntime"
    folder = Path(os.environ.get("T2R_ONNXRUNTIME_INCLUDE") or default)
    if (folder / HEADER).is_file():
        return folder
    do = "unpack a release of ONNX Runtime and set T2R_ONNXRUNTIME_INCLUDE to its folder include"
    if folder.resolve() != default:
        raise Missing(f"expected ONNX Runtime's headers of 1.23 or later in {folder}; received none; {do}")
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise Missing(f"expected ONNX Runtime's headers, or Debian's apt-get to fetch them; received neither; {do}")
    package = [sys.executable, ROOT / ".ci" / "debian.py", "--alone", "forky", FETCHED, "libonnxruntime-dev"]
    run(package, f"apt-get could not fetch Debian's libonnxruntime-dev; {do}", os.environ)
    return folder


def run(command: list[str | Path], failure: str, environment: "os._Environ[str] | dict[str, str]") -> None:
    """Run a command with its output in LOG. Raises Missing with the text `failure` if it fails."""
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("w") as log:
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=environment, check=False)
    if done.returncode:
        raise Missing(f"{failure}; {LOG.relative_to(ROOT)} has the output")


def build() -> None:
    """Build and install the provider. Raises Missing."""
    if not any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++"))):
        raise Missing("expected a C++ compiler; received none; install one (Debian: apt-get install g++ cmake)")
    environment = {**os.environ, "T2R_ONNXRUNTIME_INCLUDE": str(headers())}
    sys.stdout.write("building the execution provider t2r, a minute or two …\n")
    sys.stdout.flush()
    install = [sys.executable, "-m", "pip", "install", ROOT / "runtimes" / "provider"]
    run(install, "the build of runtimes/provider failed", environment)
    sys.stdout.write("built: add --provider t2r to t2r generate, chat, serve or bench\n")


def main() -> int:
    try:
        build()
    except Missing as missing:
        optional = "--optional" in sys.argv[1:]
        (sys.stdout if optional else sys.stderr).write(f"no execution provider t2r: {missing}, then: make provider\n")
        return 0 if optional else 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
