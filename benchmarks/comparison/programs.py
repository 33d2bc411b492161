"""The timing programs of benchmarks/embedding/, and their requirements: builds, a page, models."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnxruntime
import torch
from torch import nn

from comparison.embedded import Command, Note
from comparison.engines import as_checkpoint, require_parity
from comparison.languages import ROOT, SOURCES, Program, build_languages, run
from comparison.sizes import random_model
from t2r_export.checkpoints import checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.export import export
from t2r_export.providers.genai import export_genai
from t2r_export.python import ARGUMENTS
from t2r_export.quantize import export_quantized
from t2r_runtime.errors import UserError

JS = ROOT / "runtimes" / "js"
PYTHON = [*ARGUMENTS, str(SOURCES / "greedy.py")]
FIRST = "C++, t2r.h"  # reference of ratios
WASM = "JavaScript, Chromium, WebAssembly"  # one thread: more need cross-origin isolation headers
GENAI = "onnxruntime-genai, our folder"
EXPECTED = "Python"  # reference output; its graph passed parity


@dataclass(frozen=True)
class Model:
    """A graph for all programs."""

    name: str
    graph: Path
    genai: Path | None  # folder for onnxruntime-genai, if it supports the model
    token: int  # first token of a text


@dataclass(frozen=True)
class Built:
    """Build outputs."""

    cpp: Path
    page: Path
    languages: Mapping[str, Program]


def storyteller(work: Path) -> Model:
    """models/stories3M in float32."""
    loaded, path = checkpoint.load(ROOT / "models" / "stories3M" / "model.pt"), work / "story.onnx"
    export(loaded, path)
    require_parity(loaded, path)
    return Model("stories3M", path, _genai(loaded, work / "story.genai", None), loaded.config.bos_token or 0)


def smollm(work: Path, scheme: str) -> Model:
    """SmolLM-135M's shape with random weights, quantized."""
    model, how, path = random_model("smollm-135m"), QuantizeConfig(scheme=scheme), work / f"{scheme}.onnx"
    # otherwise the tied head would always choose the token that was read
    assert model.norm is not None and model.norm.weight is not None
    nn.init.normal_(model.norm.weight, generator=torch.Generator().manual_seed(0))
    model.config = dataclasses.replace(model.config, eos_tokens=(0,))  # required by genai
    loaded = as_checkpoint(model, "smollm-135m/embedding")
    export_quantized(loaded, path, ExportConfig(), how)
    require_parity(loaded, path)
    return Model(f"SmolLM-135M's shape, {scheme}", path, _genai(loaded, work / f"{scheme}.genai", how), 5)


MODELS: tuple[Callable[[Path], Model], ...] = (
    storyteller,
    functools.partial(smollm, scheme="w4"),
    functools.partial(smollm, scheme="int8"),  # supported by WebAssembly kernels
)


def _genai(loaded: checkpoint.Checkpoint, folder: Path, how: QuantizeConfig | None) -> Path | None:
    try:
        export_genai(loaded, folder, ExportConfig(), how)
    except UserError:
        return None
    return folder


def build(work: Path, note: Note) -> Built:
    """Build the C++ programs with cmake, those of other languages, and the web page with Node.

    Raises:
        UserError: cmake or Node is missing or fails; quotes its last line.
    """
    cpp, page, prefix = work / "cpp", work / "page", work / "installed"
    note("building the programs in C++")
    library = next((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    options = [f"-DT2R_ONNXRUNTIME_LIBRARY={library}"]
    if root := os.environ.get("T2R_ONNXRUNTIME_ROOT"):
        options.append(f"-DT2R_ONNXRUNTIME_ROOT={root}")
    run(["cmake", "-S", SOURCES, "-B", cpp, "-DCMAKE_INSTALL_LIBDIR=lib", *options])
    run(["cmake", "--build", cpp, "--parallel", os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", "2")])
    run(["cmake", "--install", cpp, "--prefix", prefix])
    note("building those of other languages")
    languages = build_languages(prefix, work)
    note("building the page")
    run(["node", JS / "demo" / "build.js", page])
    return Built(cpp, page, languages)


def steps(built: Built, model: Model, threads: int) -> Mapping[str, Command]:
    """Programs that decode greedily, by name."""
    rest = (str(model.graph), str(threads), str(model.token))

    def fixed(*command: str | Path) -> Command:
        return lambda: [str(part) for part in command]

    def above(program: Program) -> Command:
        def command() -> Sequence[str]:
            if isinstance(program, UserError):
                raise program
            return [*program, *rest]

        return command

    return {
        FIRST: fixed(built.cpp / "step", *rest),
        "C++, Session::Run alone": fixed(built.cpp / "floor", *rest),
        EXPECTED: fixed(*PYTHON, "t2r", *rest),
        **{name: above(program) for name, program in built.languages.items()},
        "JavaScript, Node": fixed("node", SOURCES / "node.js", *rest),
        **({WASM: fixed("node", SOURCES / "chromium.js", *rest, built.page)} if threads == 1 else {}),
        **({} if model.genai is None else {GENAI: fixed(*PYTHON, "genai", model.genai, *rest[1:])}),
    }


def encoders(built: Built, graph: Path, text: Path) -> Mapping[str, Command]:
    """Programs that tokenize a text, by name."""
    return {
        FIRST: lambda: [str(built.cpp / "encode"), str(graph), str(text)],
        "Python, tokenizers": lambda: [*PYTHON, "tokenizers", str(graph), str(text)],
    }
