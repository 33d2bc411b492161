"""Compares our readers of calls with SGLang's, which others serve models with, on the written calls of each format.

    pip install --target FOLDER --no-deps sglang
    pip install --target FOLDER orjson partial-json-parser pydantic
    python tests/runtime/serve/reference_parsers.py FOLDER [FORMAT]

prints, by format, how many texts are read alike, whole and as a stream of pieces of five letters, by our reader and by
each of its own; with FORMAT, the texts of that format that are not. It needs no other part of SGLang and no network.
"""

from __future__ import annotations

import importlib
import json
import logging
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2])]

from runtime.serve.test_written_tools import COUNT, WRITERS, made, read  # noqa: E402
from runtime.serve.tool_shapes import FUNCTIONS, SHAPES  # noqa: E402

Read = list[tuple[str, Any]] | str  # calls, or an error
DETECTORS = {
    "hermes": ("qwen25_detector.Qwen25Detector", "hermes_detector.HermesDetector"),
    "qwen-xml": ("qwen3_coder_detector.Qwen3CoderDetector",),
    "llama3": ("llama32_detector.Llama32Detector",),
    "mistral": ("mistral_detector.MistralDetector",),
    "mistral-args": ("mistral_detector.MistralDetector",),
    "lfm2": ("lfm2_detector.Lfm2Detector",),
    "gemma4": ("gemma4_detector.Gemma4Detector",),
}
PIECE = 5


def prepare(folder: Path) -> None:
    """Make the detectors importable without what else their packages import."""
    sys.path.append(str(folder))
    logging.disable(logging.CRITICAL)
    for name in ("sglang", "sglang.srt", "sglang.srt.function_call"):
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [str(folder.joinpath(*name.split(".")))]
    setting: Any = SimpleNamespace(get=lambda: False)
    stubs: dict[str, dict[str, Any]] = {
        "sglang.srt.entrypoints.openai.protocol": {"Tool": SimpleNamespace, "ToolChoice": SimpleNamespace},
        "sglang.srt.environ": {"envs": SimpleNamespace(SGLANG_FORWARD_UNKNOWN_TOOLS=setting)},
    }
    for name, content in stubs.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(content)


def reference(place: str, functions: dict[str, Any], text: str, size: int) -> Read:
    """The calls that a detector reads from a text, whole or in pieces."""
    module, kind = place.split(".")
    detector = getattr(importlib.import_module(f"sglang.srt.function_call.{module}"), kind)()
    tools = [
        SimpleNamespace(type="function", function=SimpleNamespace(name=name, parameters=schema, strict=False))
        for name, schema in functions.items()
    ]
    try:
        if size >= len(text):
            found = [(call.name, call.parameters) for call in detector.detect_and_parse(text, tools).calls]
        else:
            parts: dict[int, list[str]] = {}
            for at in range(0, len(text), size):
                for call in detector.parse_streaming_increment(text[at : at + size], tools).calls:
                    name, written = parts.setdefault(call.tool_index, ["", ""])
                    parts[call.tool_index] = [name + (call.name or ""), written + call.parameters]
            found = [(name, written) for _, (name, written) in sorted(parts.items())]
        return [(name, json.loads(written or "{}")) for name, written in found]
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def ours(format: str, functions: dict[str, Any], text: str) -> Read:
    return [(call.name, json.loads(call.arguments)) for call in read(format, functions, [text])[1]]


def texts(format: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Written calls, then shapes by hand, some of them malformed: kind, functions, text."""
    for number in range(COUNT):
        dice = random.Random(f"{format} {number}")
        calls, functions = made(dice)
        yield "written", dict(functions), WRITERS[format](dice, calls)
    for text, _, _ in SHAPES[format]:
        yield "by hand", FUNCTIONS, text


def main(folder: Path, shown: str | None) -> None:
    prepare(folder)
    for format, detectors in DETECTORS.items():
        for place in detectors:
            for how, size in (("whole", sys.maxsize), ("stream", PIECE)):
                counts: dict[str, list[int]] = {}
                for kind, functions, text in texts(format):
                    received, expected = reference(place, functions, text, size), ours(format, functions, text)
                    counts.setdefault(kind, [0, 0])
                    counts[kind][0] += received == expected
                    counts[kind][1] += 1
                    if format == shown and received != expected:
                        print(f"{kind}, {how}: {text!r}\n    ours   {expected}\n    SGLang {received}")
                line = ", ".join(f"{kind} {alike} of {all}" for kind, (alike, all) in counts.items())
                print(f"{format:13} {place.split('.')[1]:18} {how:6}  {line}")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python tests/runtime/serve/reference_parsers.py FOLDER [FORMAT]")
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) == 3 else None)
