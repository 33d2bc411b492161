"""Unpack packages of any Debian release into a folder: debian.py RELEASE FOLDER PACKAGE...

Needs apt-get, dpkg and the archive's keys, but not root: apt keeps its state in the folder. --alone omits dependencies;
--architecture takes those of other processors; --unless PROGRAM does nothing if that program is on the path. A complete
folder is left as it is. If another process is filling the folder, this one waits.
"""

import argparse
import fcntl
import os
import shutil
import subprocess
from pathlib import Path

KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


def mirror() -> str:
    """The archive URL in this machine's apt configuration."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return next(uri for uri in found if "security" not in uri)


def configure(folder: Path, release: str, architecture: str | None) -> dict[str, str]:
    """Write an apt configuration for `release`; returns the environment variables that select it."""
    for part in ("lists/partial", "archives/partial"):
        (folder / part).mkdir(parents=True)
    (folder / "status").touch()  # nothing is installed, so every dependency is fetched
    (folder / "sources.list").write_text(f"deb [signed-by={KEYS}] {mirror()} {release} main\n")
    settings = {
        "Dir::State": folder,
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder,
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    if architecture:
        settings["APT::Architecture"] = architecture
    (folder / "apt.conf").write_text("".join(f'{key} "{value}";\n' for key, value in settings.items()))
    return {**os.environ, "APT_CONFIG": str(folder / "apt.conf")}


def turn_links(folder: Path) -> None:
    """Rewrite absolute links to point to the unpacked files in the folder."""
    for link in [path for path in folder.rglob("*") if path.is_symlink() and path.readlink().is_absolute()]:
        target = folder / link.readlink().relative_to("/")
        if target.exists():
            link.unlink()
            link.symlink_to(os.path.relpath(target, link.parent))


def unpack(folder: Path, release: str, packages: list[str], alone: bool, architecture: str | None) -> None:
    """Fetch the packages and unpack them; the folder is renamed into place when it is complete."""
    making = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(making, ignore_errors=True)
    apt = making / "apt"
    environment = configure(apt, release, architecture)
    fetch = ["download"] if alone else ["install", "--download-only", "--yes"]
    subprocess.run(["apt-get", "--quiet=2", "update"], check=True, env=environment)
    subprocess.run(["apt-get", "--quiet=2", *fetch, *packages], check=True, env=environment, cwd=apt / "archives")
    for package in sorted((apt / "archives").glob("*.deb")):
        subprocess.run(["dpkg", "-x", package, making], check=True)
    shutil.rmtree(apt)
    turn_links(making)
    making.rename(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--alone", action="store_true")
    parser.add_argument("--architecture")
    parser.add_argument("--unless")
    parser.add_argument("release")
    parser.add_argument("folder", type=Path)
    parser.add_argument("packages", nargs="+")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    if arguments.unless and shutil.which(arguments.unless):
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unpack(folder, arguments.release, arguments.packages, arguments.alone, arguments.architecture)


if __name__ == "__main__":
    main()
