"""Write the software bill of materials (CycloneDX JSON): artifacts, third-party contents and dependencies."""

from __future__ import annotations

import datetime
import json
import re
import tomllib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from release.files import ARCHIVES, BILL, sha256
from release.packages import PACKAGES, Tools, linked
from release.platforms import PLATFORMS, Platform, onnxruntime_version
from release.stage import date
from release.versions import ROOT

LICENSE = "Apache-2.0"
CONTAINED = {"unicode": ("Unicode Character Database", "Unicode-3.0"), "onnxruntime": ("onnxruntime", "MIT")}


def write(out: Path, built: Mapping[str, Sequence[Path]], version: str, tools: Tools) -> None:
    """Write OUT/sbom.cdx.json. `built` has the artifacts of each package."""
    project = Component(name="t2r-export", version=version, type=ComponentType.APPLICATION, bom_ref="t2r-export")
    bom = Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_OID, f"t2r-export {version} {date()}"),
        metadata=BomMetaData(component=project, timestamp=datetime.datetime.fromtimestamp(date(), datetime.UTC)),
    )
    needed: dict[str, Component] = {}
    artifacts = []
    for name, paths in built.items():
        dependencies = [needed.setdefault(str(one.bom_ref), one) for one in _needs(name)]
        for path in (path for path in paths if path.suffix in ARCHIVES):
            artifact = _artifact(name, path, out, version, tools)
            artifacts.append(artifact)
            bom.register_dependency(artifact, dependencies)
    bom.components.update(artifacts, needed.values())
    bom.register_dependency(project, artifacts)
    make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_to_file(str(out / BILL), indent=2)


def _artifact(name: str, path: Path, out: Path, version: str, tools: Tools) -> Component:
    package = PACKAGES[name]
    file = path.relative_to(out).as_posix()
    space, _, last = package.name.rpartition("/")
    binary = "source" not in path.name
    return Component(
        name=package.name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=file,
        purl=PackageURL(package.kind, space or None, last, version, {"file_name": path.name}),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=sha256(path))],
        licenses=[LicenseFactory().make_from_string(LICENSE)],
        properties=[Property(name="t2r:file", value=file), *_ran(_platform(path.name))],
        components=[_contained(one, file, tools) for one in package.contains if binary or one == "unicode"],
    )


def _platform(file: str) -> Platform | None:
    """The other platform that a file is for."""
    return next((each for each in PLATFORMS.values() if each.label in file or each.tag in file), None)


def _ran(platform: Platform | None) -> Iterator[Property]:
    """Where a library for another platform was run."""
    if platform:
        yield Property(name="t2r:run", value=platform.ran or "no: built only")


def _contained(what: str, file: str, tools: Tools) -> Component:
    name, licence = CONTAINED[what]
    return Component(
        name=name,
        version=_onnxruntime(file, tools) if what == "onnxruntime" else None,
        type=ComponentType.DATA if what == "unicode" else ComponentType.LIBRARY,
        bom_ref=f"{file}#{what}",
        licenses=[LicenseFactory().make_from_string(licence)],
    )


def _onnxruntime(file: str, tools: Tools) -> str | None:
    """The version of ONNX Runtime in an archive, from the library's file name; None if the name has none."""
    if _platform(file):
        return onnxruntime_version()
    library = linked(tools.build)
    number = re.search(r"\d+\.\d+\.\d+", library.name) if library else None
    return number[0] if number else None


def _needs(name: str) -> Iterator[Component]:
    """The dependencies of a package, without extras. No package contains them."""
    package = PACKAGES[name]
    if package.kind == "pypi":
        project = tomllib.loads((ROOT / package.folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        for requirement in project["dependencies"]:
            known = re.fullmatch(r"([\w.-]+)(\[\w+\])?(.*)", requirement)
            assert known is not None
            yield _needed("pypi", None, known[1], known[3])
    elif package.kind == "npm":
        described = json.loads((ROOT / package.folder / "package.json").read_text(encoding="utf-8"))
        for full, version in {**described["dependencies"], **described["peerDependencies"]}.items():
            space, _, last = full.rpartition("/")
            yield _needed("npm", space or None, last, version)
    elif name not in ("c", "java"):
        yield _needed("generic", None, "t2r", "of the same minor version")  # libt2r


def _needed(kind: str, space: str | None, name: str, version: str) -> Component:
    return Component(
        name=f"{space}/{name}" if space else name,
        type=ComponentType.LIBRARY,
        bom_ref=f"needed:{kind}/{space or ''}/{name} {version}",
        purl=PackageURL(kind, space, name),
        properties=[Property(name="t2r:version-range", value=version)],
    )
