"""Faults in a copy of the golden files, and in the sampler, that every conformance program must detect."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
from cpp_build import HERE, headers

from golden.mutants import MUTANTS, changed


def cross_states(folder: Path) -> None:
    """Exchange the states S.0 and S.1 of two layers in tiny.onnx."""
    model = onnx.load(folder / "tiny.onnx")
    names = {"present_S.0": "present_S.1", "present_S.1": "present_S.0"}
    for output in model.graph.output:
        output.name = names.get(output.name, output.name)
    for node in model.graph.node:
        node.output[:] = [names.get(name, name) for name in node.output]
        node.input[:] = [names.get(name, name) for name in node.input]
    onnx.save(model, folder / "tiny.onnx")


def exchange_merges(folder: Path, name: str) -> None:
    """Exchange the first and the last merge of a graph's tokenizer."""
    model = onnx.load(folder / f"{name}.onnx")
    (entry,) = [entry for entry in model.metadata_props if entry.key == "t2r.tokenizer"]
    tokenizer = json.loads(json.loads(entry.value))
    merges = tokenizer["model"]["merges"]
    merges[0], merges[-1] = merges[-1], merges[0]
    entry.value = json.dumps(json.dumps(tokenizer))
    onnx.save(model, folder / f"{name}.onnx")


def write_mutants(folder: Path) -> list[str]:
    """Write sources with faults that $T2R_MUTANT selects at run time, and return the compiler's arguments."""
    sources = dict[str, str]()
    for name, mutant in MUTANTS.items():
        file, old, new = mutant["cpp"]
        source = sources.get(file) or (HERE / "src" / file).read_text("utf-8")
        sources[file] = changed(source, old, new.replace("MUTANT", f"is_mutant({json.dumps(name)})"))
    for file, source in sources.items():
        (folder / file).write_text(source, "utf-8")
    (folder / "mutant.hpp").write_text(
        "#pragma once\n#include <cstdlib>\n#include <cstring>\n"
        "inline bool is_mutant(const char *name) {\n"
        '    const char *asked = std::getenv("T2R_MUTANT");\n'
        "    return asked && !std::strcmp(asked, name);\n}\n"
    )
    includes = [f"-I{HERE / 'src'}", f"-I{HERE / 'include'}", *headers(), "-include", str(folder / "mutant.hpp")]
    return [*includes, *(str(folder / file) for file in sources)]


def write_late_sampler(path: Path) -> None:
    """Write a sampler.cpp in which each draw uses the noise of the next one."""
    source = (HERE / "src" / "sampler.cpp").read_text()
    assert source.count("(draws - 1)") == 1
    path.write_text(source.replace("(draws - 1)", "draws"))
