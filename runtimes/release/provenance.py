"""Write and read the provenance of a release: an in-toto statement v1 with the SLSA provenance predicate v1, unsigned.

It follows from the commit and from the programs of the machine, without times and places of builds, so two builds have
the same bytes. A signer wraps the file as it is in an envelope (DSSE) with the payload type
application/vnd.in-toto+json. Specifications: in-toto.io/Statement/v1, slsa.dev/provenance/v1.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from release.files import STATEMENT, hashes, named, sha256
from release.packages import CROSS, PACKAGES, Command, Tools, linked
from release.platforms import PLATFORMS, Platform
from release.stage import commit, date, modified

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:t2r-export:make-release:1"
# programs and Python packages whose versions may change the bytes of a package
PROGRAMS: Mapping[str, Sequence[str]] = {
    "provider": ("cmake", "c++"),
    "c": ("cmake", "c++"),
    "rust": ("cargo",),
    "java": ("javac", "cmake", "c++"),
    "js": ("node", "npm"),
}
MODULES: Mapping[str, Sequence[str]] = {
    "t2r-export": ("build", "setuptools"),
    "t2r-runtime": ("build", "setuptools"),
    "provider": ("build", "scikit-build-core"),
}


@dataclass(frozen=True)
class Provenance:
    """What a statement says of a release."""

    commit: str
    modified: bool  # files differed from the commit
    date: int  # SOURCE_DATE_EPOCH of the build
    names: Sequence[str]  # of packages
    others: Sequence[Platform]  # that packages were compiled for, besides that of the build
    version: str
    programs: Mapping[str, str]


def write(out: Path, names: Sequence[str], version: str, tools: Tools) -> None:
    """Write OUT/provenance.intoto.json for the files in `out`."""
    source: dict[str, Any] = {"name": "t2r-export", "digest": {"gitCommit": commit()}}
    if modified():
        source["annotations"] = {"modified": True}
    inputs = [source]
    builds = {"onnxruntime": tools.build}
    builds |= {f"onnxruntime-{each.name}": tools.folder(each) / "libt2r" for each in tools.others}
    for name, folder in builds.items() if "c" in names else ():
        if library := linked(folder):
            inputs.append({"name": name, "digest": {"sha256": sha256(library)}})
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": held}} for name, held in hashes(out).items()],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "version": version,
                    "packages": list(names),
                    "platforms": [each.name for each in tools.others],
                    "date": date(),
                },
                "internalParameters": {"programs": programs(names, tools)},
                "resolvedDependencies": inputs,
            },
            "runDetails": {"builder": {"id": BUILD_TYPE}},
        },
    }
    (out / STATEMENT).write_text(json.dumps(statement, indent=2) + "\n", encoding="utf-8")


def programs(names: Sequence[str], tools: Tools) -> dict[str, str]:
    """The versions of what builds the packages `names` on this machine, as each program prints its own."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    found |= {module: installed(module) for name in names for module in MODULES.get(name, ())}
    if tools.others and set(names) & set(CROSS):
        found["ziglang"] = installed("ziglang")
    for program in dict.fromkeys(one for name in names for one in PROGRAMS.get(name, ())):
        command: Command = [*(tools.jdk if program == "javac" else ()), program, "--version"]
        words = [str(word) for word in command]
        if shutil.which(words[0]):
            done = subprocess.run(words, capture_output=True, text=True)
            found[program] = (done.stdout.strip().splitlines() or ["unknown"])[0]
    return dict(sorted(found.items()))


def read(folder: Path, held: Mapping[str, str]) -> Provenance:
    """Read FOLDER/provenance.intoto.json, whose subjects must be the other files in `held`, with their hashes.

    Raises:
        ValueError: it is no such statement, or it is of other files.
    """
    again = "download the release again, and do not install it"
    try:
        statement = json.loads((folder / STATEMENT).read_text(encoding="utf-8"))
        subjects = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
        definition = statement["predicate"]["buildDefinition"]
        kinds = (statement["_type"], statement["predicateType"], definition["buildType"])
        parameters = definition["externalParameters"]
        source = definition["resolvedDependencies"][0]
        found = Provenance(
            commit=re.fullmatch("[0-9a-f]{40,64}", source["digest"]["gitCommit"])[0],  # type: ignore[index]
            date=int(parameters["date"]),
            names=[name for name in parameters["packages"] if PACKAGES[name]],
            others=[PLATFORMS[name] for name in parameters["platforms"]],
            version=str(parameters["version"]),
            modified=bool(source.get("annotations", {}).get("modified")),
            programs={str(key): str(value) for key, value in definition["internalParameters"]["programs"].items()},
        )
    except (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"expected a statement of provenance in {STATEMENT}; received {error!r}; {again}") from None
    if kinds != (STATEMENT_TYPE, PREDICATE_TYPE, BUILD_TYPE):
        raise ValueError(
            f"expected {STATEMENT_TYPE} with {PREDICATE_TYPE} of {BUILD_TYPE}; received {kinds!a}; {again}"
        )
    expected = {name: value for name, value in held.items() if name != STATEMENT}
    if wrong := [name for name in {**expected, **subjects} if expected.get(name) != subjects.get(name)]:
        raise ValueError(
            f"expected the hashes of SHA256SUMS in {STATEMENT}; received others of {named(wrong)}; {again}"
        )
    return found
