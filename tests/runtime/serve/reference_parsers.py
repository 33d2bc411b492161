"""Compares our readers of calls with SGLang's and vLLM's, on the written calls of each format.

    pip install --target FOLDER --no-deps sglang
    pip install --target FOLDER orjson partial-json-parser pydantic regex openai
    pip download --dest FOLDER --no-deps --no-binary vllm vllm      # its source, without its libraries
    tar -xzf FOLDER/vllm-*.tar.gz -C FOLDER --strip-components 1
    python tests/runtime/serve/reference_parsers.py FOLDER [FORMAT]

prints, by format, how many texts each of theirs reads as ours does, SGLang's also in a stream of five letters a piece;
with FORMAT, the texts that it reads differently. Only the parsers are imported: other modules are replaced.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import random
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2])]

from runtime.serve.test_written_tools import COUNT, WRITERS, made, read  # noqa: E402
from runtime.serve.tool_shapes import FUNCTIONS, SHAPES  # noqa: E402
from t2r_runtime.serve.tools.formats import FORMATS  # noqa: E402

SGLANG = "sglang.srt.function_call."
PARSERS = {
    "hermes": (f"{SGLANG}qwen25_detector.Qwen25Detector", f"{SGLANG}hermes_detector.HermesDetector"),
    "qwen-xml": (f"{SGLANG}qwen3_coder_detector.Qwen3CoderDetector", "vllm.parser.qwen3.Qwen3Parser"),
    "llama3": (f"{SGLANG}llama32_detector.Llama32Detector",),
    "mistral": (f"{SGLANG}mistral_detector.MistralDetector",),
    "mistral-args": (f"{SGLANG}mistral_detector.MistralDetector",),
    "granite": ("vllm.parser.granite.GraniteParser",),
    "lfm2": (f"{SGLANG}lfm2_detector.Lfm2Detector",),
    "functiongemma": ("vllm.tool_parsers.functiongemma_tool_parser.FunctionGemmaToolParser",),
    "gemma4": (f"{SGLANG}gemma4_detector.Gemma4Detector", "vllm.parser.gemma4.Gemma4Parser"),
}
TOKENS = {tag: n for n, tag in enumerate(tag for each in FORMATS.values() for tag in each.special)}
REAL = ("sglang.srt.function_call", "vllm.parser", "vllm.tool_parsers")
REPLACED = {"sglang", "vllm", "xgrammar", "openai_harmony", "prometheus_client"}


class Empty(SimpleNamespace):
    """Data with any fields; those that are not given are None."""

    def __getattr__(self, name: str) -> None:
        return None

    def model_dump(self, **_: object) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


class EmptyModule(ModuleType):
    """A module in which every name is a class of data."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__dict__.setdefault(name, type(name, (Empty,), {}))


class Parsers(MetaPathFinder, Loader):
    """Finds the parsers in the folder, and an empty module in place of any other one of their packages."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> ModuleSpec | None:
        if fullname.split(".")[0] not in REPLACED:
            return None
        file = Path(sys.argv[1]).joinpath(*fullname.split(".")).with_suffix(".py")
        if fullname.startswith(REAL) and file.exists():
            return importlib.util.spec_from_file_location(fullname, file)
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return EmptyModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        settings = Empty(SGLANG_FORWARD_UNKNOWN_TOOLS=Empty(get=lambda: False))
        vars(module).update(init_logger=logging.getLogger, envs=settings)


def parts_of(place: str, functions: dict[str, Any], text: str, size: int) -> Iterator[tuple[int, str, str]]:
    """What a parser returns of calls: the number of the call, a part of its name and one of its arguments."""
    parser = getattr(importlib.import_module(place.rpartition(".")[0]), place.rpartition(".")[2])
    tool = importlib.import_module("vllm.entrypoints.openai.chat_completion.protocol").ChatCompletionToolsParam
    tools = [tool(type="function", function=Empty(name=name, parameters=one)) for name, one in functions.items()]
    if not place.startswith(SGLANG):
        tokenizer = Empty(get_vocab=lambda: TOKENS, all_special_ids=[], all_special_tokens=[*TOKENS])
        found = parser(tokenizer, tools).extract_tool_calls(text, Empty(tools=tools, tool_choice="auto")).tool_calls
        yield from ((n, call.function.name, call.function.arguments) for n, call in enumerate(found or []))
    elif size >= len(text):
        found = parser().detect_and_parse(text, tools).calls
        yield from ((n, call.name, call.parameters) for n, call in enumerate(found))
    else:
        stream = parser()
        for at in range(0, len(text), size):
            found = stream.parse_streaming_increment(text[at : at + size], tools).calls
            yield from ((call.tool_index, call.name or "", call.parameters) for call in found)


def theirs(place: str, functions: dict[str, Any], text: str, size: int) -> list[tuple[str, Any]] | str:
    """The calls, or an error."""
    calls: dict[int, tuple[str, str]] = {}
    try:
        for number, name, arguments in parts_of(place, functions, text, size):
            before = calls.get(number, ("", ""))
            calls[number] = before[0] + name, before[1] + arguments
        return [(name, json.loads(arguments or "{}")) for _, (name, arguments) in sorted(calls.items())]
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def texts(format: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Written calls, then shapes by hand, some of them malformed: kind, functions, text."""
    for dice in (random.Random(f"{format} {number}") for number in range(COUNT)):
        calls, functions = made(dice)
        yield "written", dict(functions), WRITERS[format](dice, calls)
    yield from (("by hand", FUNCTIONS, text) for text, _, _ in SHAPES[format])


def compare(format: str, place: str, size: int, shown: bool) -> str:
    """How many texts of each kind both read alike."""
    alike: dict[str, list[bool]] = {}
    for kind, functions, text in texts(format):
        received = theirs(place, functions, text, size)
        expected = [(call.name, json.loads(call.arguments)) for call in read(format, functions, [text])[1]]
        alike.setdefault(kind, []).append(received == expected)
        if shown and received != expected:
            print(f"{kind}: {text!r}\n    ours   {expected}\n    theirs {received}")
    return ", ".join(f"{kind} {sum(found)} of {len(found)}" for kind, found in alike.items())


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    sys.path.append(sys.argv[1])
    sys.meta_path.insert(0, Parsers())
    logging.disable(logging.CRITICAL)
    for format in sys.argv[2:] or PARSERS:
        for place in PARSERS[format]:
            for how, size in {"whole": sys.maxsize, **({"stream": 5} if place.startswith(SGLANG) else {})}.items():
                line = compare(format, place, size, shown=len(sys.argv) == 3)
                print(f"{format:13} {place.split('.')[0]:6} {place.rsplit('.', 1)[1]:23} {how:6}  {line}")
