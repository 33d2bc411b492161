"""Timing programs in Python, controlled as in protocol.hpp: greedy.py ENGINE ARGUMENT...

t2r GRAPH THREADS TOKEN       a greedy text with t2r_runtime
genai FOLDER THREADS TOKEN    the same with onnxruntime-genai
tokenizers GRAPH TEXT         the tokens of a text's lines, with the library `tokenizers`
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DISCARDED = 5  # warm-up turns
LONGEST = 1 << 12  # maximum tokens of a text of genai

Start = Callable[[], Iterator[list[int]]]  # starts a new text; yields the numbers of each turn


def serve(start: Start) -> None:
    """Answer the lines of stdin."""
    print("ready", flush=True)
    for line in sys.stdin:
        word, count = line.split()
        turns = start()
        print(*(checked(turns, int(count)) if word == "check" else timed(turns, int(count))), flush=True)


def checked(turns: Iterator[list[int]], count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count and (more := next(turns, [])):
        found += more
    return found[:count]


def timed(turns: Iterator[list[int]], count: int) -> list[float]:
    for _ in range(DISCARDED):
        next(turns)
    found = []
    for _ in range(count):
        before = time.perf_counter()
        next(turns)
        found.append(1e3 * (time.perf_counter() - before))
    return found


def t2r(graph: str, threads: str, token: str) -> Start:
    from t2r_runtime import Decoder

    decoder = Decoder(graph, threads=int(threads))

    def text() -> Iterator[list[int]]:
        decoder.reset()
        last = int(token)
        while True:
            last = int(decoder.step(last).argmax())
            yield [last]

    return text


def genai(folder: str, threads: str, token: str) -> Start:
    import onnxruntime_genai

    config = onnxruntime_genai.Config(folder)
    options = {"intra_op_num_threads": int(threads), "inter_op_num_threads": 1}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
    model = onnxruntime_genai.Model(config)

    def text() -> Iterator[list[int]]:
        parameters = onnxruntime_genai.GeneratorParams(model)
        parameters.set_search_options(max_length=LONGEST, min_length=LONGEST, do_sample=False)
        generator = onnxruntime_genai.Generator(model, parameters)
        generator.append_tokens([int(token)])
        while True:
            generator.generate_next_token()
            yield [int(generator.get_next_tokens()[0])]

    return text


def tokenizers(graph: str, text: str) -> Start:
    from t2r_runtime import Decoder
    from t2r_runtime.text.tokenizer_file import Library

    made: Any = Library(Decoder(graph).signature.tokenizer or "").tokenizer
    lines = Path(text).read_text(encoding="utf-8").split("\n")

    def read() -> Iterator[list[int]]:
        while True:
            yield [token for line in lines for token in made.encode(line, add_special_tokens=False).ids]

    return read


if __name__ == "__main__":
    engines: dict[str, Callable[..., Start]] = {"t2r": t2r, "genai": genai, "tokenizers": tokenizers}
    serve(engines[sys.argv[1]](*sys.argv[2:]))
