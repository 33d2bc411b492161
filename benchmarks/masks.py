"""Cost of masks that hold answers to a JSON schema: steps with masks against steps without, and the first token.

    python benchmarks/masks.py GRAPH [--rows 1,8] [--steps 200] [--threads 1]

GRAPH has a tokenizer. Two pools of rows make steps in turns, as a server's does, one with masks of a schema of 4 kB.
Times are processor time, of all threads, of a step and what follows each token. A text that is complete begins again,
outside of the times. The first token waits for its schema to be compiled: the first one in a process, for which
llguidance reads the vocabulary, and later ones, each another schema.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from t2r_export.cli.output import table
from t2r_runtime import Decoder, Sampling, Tokenizer
from t2r_runtime.decode.pool import Pool
from t2r_runtime.decode.text import Text
from t2r_runtime.serve.grammars import Form, Grammars, Mask

BYTES, SCHEMAS, WARM = 4096, 9, 8
PARTS = (
    {"type": "string", "maxLength": 40},
    {"type": "integer", "minimum": 1, "maximum": 5000},
    {"enum": ["new", "used", "refurbished", None]},
    {"type": "array", "items": {"type": "number"}, "minItems": 1, "maxItems": 3},
    {"type": "object", "properties": {"on": {"type": "boolean"}, "since": {"type": "string", "format": "date"}}},
)


def forms() -> Iterator[Form]:
    """Different schemas of at least `BYTES` bytes: objects with many required properties."""
    for number in itertools.count():
        properties: dict[str, object] = {}
        schema = {"type": "object", "properties": properties, "additionalProperties": False, "required": [""]}
        while len(text := json.dumps(schema)) < BYTES:
            properties[f"field {number}, {len(properties)}"] = PARTS[(number + len(properties)) % len(PARTS)]
            schema["required"] = [*properties]
        yield Form("json", text, "response_format")


class Rows:
    """A pool whose texts begin again where they end, with masks or without."""

    def __init__(self, decoder: Decoder, count: int, sampling: Sampling, mask: Mask | None) -> None:
        self._pool, self._count, self._sampling, self._mask = Pool(decoder, count), count, sampling, mask
        self._masks: dict[Text, Mask | None] = {}
        self._seeds = itertools.count()

    def step(self) -> float:
        """Seconds of a step of all rows."""
        while self._pool.running + self._pool.waiting < self._count:
            self._begin()
        begun = time.process_time()
        for text, token in self._pool.step():
            mask = self._masks[text]
            if token is not None and mask is not None and text.ended is None and mask.take(token):
                self._pool.remove(text)
        return time.process_time() - begun

    def _begin(self) -> None:
        mask = None if self._mask is None else self._mask.copy()
        stop = () if mask is None else None
        how = Sampling(self._sampling.temperature, top_p=self._sampling.top_p, seed=next(self._seeds), stop_tokens=stop)
        [text] = self._pool.add([0], 1 << 30, [how], edits=[] if mask is None else [mask])
        self._masks = {text: mask, **{each: kept for each, kept in self._masks.items() if each.ended is None}}


def first_tokens(grammars: Grammars, stop: list[int]) -> tuple[Mask, list[float]]:
    """A mask, and the seconds to compile each of some schemas."""
    seconds = []
    for form in itertools.islice(forms(), SCHEMAS):
        begun = time.process_time()
        mask = grammars.mask(form, stop)
        seconds.append(time.process_time() - begun)
    return mask, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--rows", default="1,8")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    decoder = Decoder(given.graph, threads=given.threads)
    signature = decoder.signature
    grammars = Grammars(Tokenizer.of(signature), signature.vocab_size)
    mask, seconds = first_tokens(grammars, [*signature.eos_tokens])
    later = 1e3 * float(np.median(seconds[1:]))
    print(f"{BYTES:,} bytes of schema, {signature.vocab_size:,} tokens: {1e3 * seconds[0]:.0f} ms for the first in a")
    print(f"process, {later:.1f} for later ones ({1e3 * min(seconds[1:]):.1f}-{1e3 * max(seconds[1:]):.1f})\n")
    found = []
    for count, (name, sampling) in itertools.product(
        map(int, given.rows.split(",")),
        {"greedy": Sampling(0), "temperature 0.8, top_p 0.95": Sampling(0.8, top_p=0.95)}.items(),
    ):
        both = [Rows(decoder, count, sampling, each) for each in (None, mask)]
        times = np.array([[rows.step() for rows in both] for _ in range(WARM + given.steps)])[WARM:]
        plain, masked = 1e3 * np.median(times, axis=0)
        found.append([str(count), name, f"{plain:.2f}", f"{masked:.2f}", f"{masked / plain:.3f}"])
    print(table(found, ["rows", "sampling", "ms", "with masks", "ratio"]))


if __name__ == "__main__":
    main()
