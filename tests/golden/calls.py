"""Successive calls of one decoder: the result of each, and that a refused call changes nothing."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from golden.choices import ATTEMPTS, MARGIN, NearAnEdge, choose
from golden.computed import Array, Eager, States
from golden.models import SMALLEST, checkpoint, seeded
from golden.rows import SAVED, TOKEN, as_float64, bound
from golden.texts import Case
from golden.traces import array
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.export import export
from t2r_export.files import write_bytes
from t2r_runtime import Decoder

ENDS = 7  # positions of the graph whose metadata do not state them
# each alone is refused before any token is read
BAD_OPTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": -0.5},
    {"top_k": -1},
    {"top_p": 0},
    {"top_p": 1.25},
    {"min_p": -0.25},
    {"min_p": 1.25},
    {"repetition_penalty": 0},
    {"repetition_penalty": 100.5},
    {"no_repeat_ngram": -1},
    {"no_repeat_ngram": 65},
)


def cases(folder: Path) -> Iterator[Case]:
    """Calls of graphs from other golden cases, and of one that fails in the middle of a prompt."""
    yield "calls-options", "calls", _attempted("tiny", lambda script, seed: _options(script, seed, folder))
    yield "calls-texts", "calls", _attempted("tiny", lambda script, seed: _texts(script, seed, folder))
    yield "calls-ends", "calls", _ends(Script("ends.onnx", checkpoint("ends"), 2))
    yield "calls-fails", "calls", _fails(folder)


@dataclass
class Script:
    """Records calls of one decoder, each with its expected result."""

    graph: str
    golden: Checkpoint
    rows: int = 1
    operations: list[dict[str, Any]] = field(default_factory=list)
    position: int = 0
    occurred: list[int] = field(default_factory=list)  # tokens read, if there is one row

    def __post_init__(self) -> None:
        self.made = Eager(self.golden)
        self.states: States = self.made.initial(self.rows)

    def refused(self, kind: str, **call: Any) -> None:
        self.operations.append({**call, "error": kind, "position": self.position})

    def reset(self, rows: int) -> None:
        self.states, self.position, self.occurred = self.made.initial(rows), 0, []
        self.operations.append({"reset": rows})

    def step(self, tokens: Sequence[int]) -> None:
        self.operations.append({"step": list(tokens), "logits": array(self._read(tokens)), "position": self.position})

    def prefill(self, rows: Sequence[Sequence[int]]) -> None:
        for column in zip(*rows, strict=True):
            logits = self._read(column)
        self.operations.append({"prefill": [*map(list, rows)], "logits": array(logits), "position": self.position})

    def load(self, file: str, states: States, position: int) -> None:
        self.states, self.position, self.occurred = as_float64(states), position, []
        self.operations.append({"load": file, "position": position})

    def generate(self, prompt: Sequence[int], most: int, options: dict[str, Any], ends_at: int | None = None) -> int:
        """Record a call; return the last token, which is unread. The callback returns false after `ends_at` tokens."""
        tokens = list(prompt)
        stop = options.get("stop_tokens", self.golden.config.eos_tokens)
        for token in tokens[:-1]:
            self._read([token])
        for draw in range(most):
            token, margin = choose(self._read(tokens[-1:])[0].tolist(), self.occurred, draw, **options)
            if margin < MARGIN:
                raise NearAnEdge
            tokens.append(token)
            if token in stop or draw + 1 == ends_at:
                break
        call = {"generate": list(prompt), "max_tokens": most, "options": options}
        watched = {} if ends_at is None else {"ends_at": ends_at}
        written = {"tokens": tokens[len(prompt) :], "position": self.position}
        self.operations.append({**call, **watched, **written})
        return tokens[-1]

    def case(self) -> dict[str, Any]:
        end = {name: array(value) for name, value in self.states.items()}
        return {"graph": self.graph, "tolerance": bound(), "operations": self.operations, "end": end}

    def _read(self, tokens: Sequence[int]) -> Array:
        logits, self.states = self.made.step(np.array(tokens), self.states)
        self.position += 1
        self.occurred += list(tokens)
        return logits


def _attempted(name: str, write: Any) -> dict[str, Any]:
    for attempt in range(ATTEMPTS):
        script = Script(f"{name}.onnx", checkpoint(name))
        try:
            write(script, attempt)
        except NearAnEdge:
            continue
        return script.case()
    raise AssertionError("too few attempts")


def _options(script: Script, seed: int, folder: Path) -> None:
    """Calls that are refused in the middle of a text, which then continues."""
    script.prefill([[1, 5, 9]])
    plain = {"generate": [4], "max_tokens": 3, "options": {}}
    for options in BAD_OPTIONS:
        script.refused("sampling", **{**plain, "options": options})
    script.refused("sampling", **{**plain, "max_tokens": 0})
    # the first that fails is the error
    script.refused("sampling", **{**plain, "generate": [], "max_tokens": 0})
    script.refused("sampling", **{**plain, "generate": [17], "options": {"top_p": 0}})
    for prompt in ([], [17], [-1], [3, 17, 4]):
        script.refused("token", **{**plain, "generate": prompt})
    for stop in ([17], [3, -1]):
        script.refused("token", **{**plain, "options": {"stop_tokens": stop}})
    script.refused("graph", top_k=[[3]])
    for token in (17, -1):
        script.refused("token", prefill=[[3, 8, token]])
    for rows in ([], [1], [0, -1]):
        script.refused("batch", reorder=rows)
    script.refused("batch", step=[3, 4])
    script.refused("snapshot", load="tiny-hybrid.state")
    script.refused("file", load="bad/nothing.state")
    whole = bytearray((folder / "tiny.state").read_bytes())
    whole[whole.index(b"PK\x01\x02") - 1] ^= 1  # the last byte of the last state, so that its CRC-32 is wrong
    write_bytes(folder / "damaged.state", whole)
    script.refused("snapshot", load="damaged.state")
    script.generate([4], 6, {"repetition_penalty": 1.5, "no_repeat_ngram": 2, "seed": seed})
    script.step([6])


def _texts(script: Script, seed: int, folder: Path) -> None:
    """One text in several calls: start and draw number of each, reason to stop, and tokens that penalties see."""
    given: dict[str, Any] = {"seed": seed, "stop_tokens": []}
    last = script.generate([1, 3], 5, given)
    last = script.generate([last], 5, given)
    last = script.generate([last], 6, given, ends_at=2)
    last = script.generate([last], 6, {**given, "temperature": 0}, ends_at=1)
    script.generate([last, 3], 7, {"temperature": 0, "no_repeat_ngram": 1, "stop_tokens": []})
    states = _loaded(folder, "tiny")
    script.load("tiny.state", states, SAVED)
    script.generate([TOKEN], 9, {"temperature": 0, "no_repeat_ngram": 1, "stop_tokens": []})
    write_bytes(folder / "zip64.state", zip64((folder / "tiny.state").read_bytes()))
    script.load("zip64.state", states, SAVED)
    script.step([11])


def _ends(script: Script) -> dict[str, Any]:
    """A fixed batch size and limited positions."""
    script.step([3, 4])
    for tokens in ([17, 0], [0, -1]):
        script.refused("token", step=tokens)
    for tokens in ([1], [1, 2, 3]):
        script.refused("batch", step=tokens)
    script.refused("batch", reset=3)
    for rows in ([0], [0, 2]):
        script.refused("batch", reorder=rows)
    script.refused("batch", generate=[1], max_tokens=3, options={})
    script.refused("position", prefill=[[n % 17 for n in range(40)], [n % 13 for n in range(40)]])
    script.prefill([[n % 17 for n in range(38)], [n % 13 for n in range(38)]])
    script.step([5, 6])
    script.refused("position", step=[7, 8])
    return script.case()


def _fails(folder: Path) -> dict[str, Any]:
    """A graph that fails past its positions without stating their number. Its metadata stand behind the graph."""
    golden = seeded("fails", replace(SMALLEST, position="learned", max_positions=ENDS))
    place = folder / "fails.onnx"
    export(golden, place)
    model = onnx.load(place)
    for entry in model.metadata_props:
        entry.value = "null" if entry.key == "t2r.max_positions" else entry.value
    write_bytes(place, model.SerializeToString())
    script = Script("fails.onnx", golden)
    prompt = [3, 1, 4, 1, 0, 2, 4, 3, 0]
    for token in prompt[:ENDS]:
        script._read([token])
    script.refused("runtime", prefill=[prompt])
    script.reset(1)
    for token in (3, 1, 4):
        script.step([token])
    for token in (2, 0, 1, 3):
        script._read([token])
    script.refused("runtime", generate=[2, 0, 1, 3, 4], max_tokens=3, options={"temperature": 0})
    return script.case()


def _loaded(folder: Path, name: str) -> States:
    decoder = Decoder(folder / f"{name}.onnx", threads=1)
    decoder.load_state(folder / f"{name}.state")
    return decoder.state()


def zip64(archive: bytes) -> bytes:
    """A snapshot with the same members and zip64 fields for all numbers of its directory."""
    end = len(archive) - 22
    count, size, at = struct.unpack("<10xHII", archive[end : end + 20])
    entries = b""
    for _ in range(count):
        head, crc, length, n, offset = struct.unpack("<16sI4xIH12xI", archive[at : at + 46])
        name, extra = archive[at + 46 : at + 46 + n], struct.pack("<HHQQQ", 1, 24, length, length, offset)
        full = 0xFFFFFFFF
        entries += head + struct.pack("<IIIHHHHHII", crc, full, full, n, len(extra), 0, 0, 0, 0x01800000, full)
        entries += name + extra
        at += 46 + n
    place = end - size
    end64 = struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, len(entries), place)
    locator = struct.pack("<IIQI", 0x07064B50, 0, place + len(entries), 1)
    last = struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return archive[:place] + entries + end64 + locator + last
