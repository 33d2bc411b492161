"""Check a release: its files, what describes them, and a second build of the same commit."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from release import provenance, rebuild, stage
from release.files import ARCHIVES, BILL, STATEMENT, hashes, named, read_sums
from release.packages import CROSS, Tools
from release.versions import ROOT

AGAIN = "download the release again, and do not install it"


def verify(folder: Path, only: Collection[str] | None, tools: Tools) -> Iterator[str]:
    """Check the release in `folder` and build its packages again, or those in `only`; yields lines of what was found.

    Raises:
        ValueError: a file is missing, additional or changed, a description is of other files, the release is of another
            commit than the tree, or a package that was built again has other bytes.
    """
    held = read_sums(folder)
    check_files(folder, held)
    yield f"SHA256SUMS: {len(held)} files, none missing, additional or changed"
    yield f"{BILL}: the hashes of {check_bill(folder, held)} archives"
    found = provenance.read(folder, held)
    yield f"{STATEMENT}: commit {found.commit}, unsigned"
    names = [name for name in found.names if only is None or name in only]
    if not names:
        return
    if found.modified:
        raise ValueError(
            f"expected a release of a commit; received one of changes after commit {found.commit}; commit them, and "
            "build it again"
        )
    if found.commit != stage.commit():
        raise ValueError(
            f"expected a release of the commit that is checked out here, {stage.commit()}; received one of "
            f"{found.commit}; check out the commit that the project published as {named([found.version])}"
        )
    with tempfile.TemporaryDirectory() as work:
        source = rebuild.clone(ROOT, Path(work) / "t2r-export")
        yield from compare(folder, source, Path(work), names, found, tools)


def check_files(folder: Path, held: Mapping[str, str]) -> None:
    """The files in `folder` are those of SHA256SUMS, which are `held`."""
    received = hashes(folder)
    kinds = {
        "missing": [name for name in held if name not in received],
        "additional": [name for name in received if name not in held],
        "changed": [name for name in held if name in received and received[name] != held[name]],
    }
    if any(kinds.values()):
        found = "; ".join(f"{kind}: {named(names)}" for kind, names in kinds.items() if names)
        raise ValueError(f"expected the files of SHA256SUMS in {folder}; received {found}; {AGAIN}")


def check_bill(folder: Path, held: Mapping[str, str]) -> int:
    """The bill of materials has each archive with its hash, and no other; returns how many there are."""
    try:
        parts = json.loads((folder / BILL).read_text(encoding="utf-8"))["components"]
        hashed = {part["bom-ref"]: part["hashes"] for part in parts if "hashes" in part}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"expected a bill of materials in {BILL}; received {error!r}; {AGAIN}") from None
    archives = {name: held[name] for name in held if Path(name).suffix in ARCHIVES}
    expected = {name: [{"alg": "SHA-256", "content": value}] for name, value in archives.items()}
    if wrong := [str(name) for name in {**expected, **hashed} if expected.get(name) != hashed.get(name)]:
        raise ValueError(f"expected the hashes of SHA256SUMS in {BILL}; received others of {named(wrong)}; {AGAIN}")
    return len(archives)


def compare(
    folder: Path, source: Path, work: Path, names: Collection[str], found: provenance.Provenance, tools: Tools
) -> Iterator[str]:
    """Build the packages `names` of the tree `source` below `work`, and compare them; yields a line for each."""
    built, wrong, programs = set(rebuild.NOTES), list[str](), dict[str, str]()
    for name in names:
        out = work / "release" / name
        others = found.others if name in CROSS else ()
        why = rebuild.build(name, source, out, replace(tools, others=others), found.date)
        if why is not None and others:
            yield f"{name} for {named(each.name for each in others)}: not built on this machine: {why}"
            shutil.rmtree(out)
            why = rebuild.build(name, source, out, tools, found.date)
        if why is not None:
            yield f"{name}: not built on this machine: {why}"
            continue
        own = hashes(out)
        programs |= provenance.read(out, own).programs
        wrong += rebuild.differences(folder, out)
        built |= set(own)
        yield f"{name}: built again, {len(own) - len(rebuild.NOTES)} files"
    if left := [file for file in hashes(folder) if file not in built]:
        yield f"not compared with a second build: {named(left)}"
    if wrong:
        theirs = [f"{key} {value}" for key, value in found.programs.items() if programs.get(key, value) != value]
        do = f"build with {', '.join(theirs)}" if theirs else "do not install it"
        raise ValueError(f"expected the same bytes from a second build; received others of {'; '.join(wrong)}; {do}")
