"""Requests with large and damaged bodies, measured by the characters that reach a tokenizer; damaged kept sessions."""

from __future__ import annotations

import asyncio
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.kinds import graph_folder, kind
from fuzz.mutations import damage_file, damage_json
from fuzz.runner import SilentlyWrong
from fuzz.translators import GRAPH
from t2r_runtime import Decoder, Translator
from t2r_runtime.serve import run
from t2r_runtime.serve.access import Access
from t2r_runtime.serve.app import application
from t2r_runtime.serve.encoders import MAX_TEXT
from t2r_runtime.serve.log import Log
from t2r_runtime.serve.models import MAX_BODY, Limits
from t2r_runtime.serve.prefixes import Prefixes, digests_of, space_of
from t2r_runtime.session import snapshot
from t2r_runtime.text.tokenizer_file import Library

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "abc", "stop": ["cab", "b"], "logprobs": 2, "echo": True, "session_id": "s"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "abc"}], "stop": "cab"},
    "/v1/translate": {"source": ["abc. abc", "a"]},
    "/tokenize": {"prompt": "abc"},
    "/detokenize": {"tokens": [1, 2, 3]},
}
SIZES = (10, 20, 1000, MAX_TEXT // 4, MAX_TEXT + 1, MAX_BODY - 1000)  # of a body
MOST = 3 * MAX_TEXT  # characters of a request: a prompt is encoded twice for its echo, and a chat template adds some


@kind
def request_body(base: Path, here: Path, chance: random.Random) -> str:
    path = chance.choice(sorted(BODIES))
    graph = base / (GRAPH if path == "/v1/translate" else "graph.onnx")
    encoded = 0
    one, many = Library.encode, Library.encode_batch

    def encode(self: Library, text: str, *rest: Any) -> list[int]:
        nonlocal encoded
        encoded += len(text)
        return one(self, text, *rest)

    def encode_batch(self: Library, texts: list[str], *rest: Any, **more: Any) -> list[Any]:
        nonlocal encoded
        encoded += sum(map(len, texts))
        return many(self, texts, *rest, **more)

    Library.encode, Library.encode_batch = encode, encode_batch  # type: ignore[assignment, method-assign]
    limits = Limits(rows=2, queue=2, max_tokens=3, seconds=3.0)
    served = run.served([graph], _decoder, Translator, limits, None, 10**6, Access(), Log())
    body = damage_json(chance, BODIES[path]) if chance.randrange(2) else BODIES[path]
    body = _grown(chance, body) if chance.randrange(4) else body
    status = asyncio.run(_asked(application(served), path, json.dumps(body).encode("utf-8", "replace")))
    if encoded > MOST:
        raise SilentlyWrong(f"{encoded} characters reached the tokenizer, at most {MOST} should")
    return "accepted" if status == 200 else "refused" if status < 500 or status == 503 else "exit 3"


def _decoder(path: Path) -> Decoder:
    return Decoder(path, threads=1)


def _grown(chance: random.Random, body: Any) -> Any:
    """A body with a text, or a list, repeated to one of SIZES."""
    size = chance.choice(SIZES)
    values = body.items() if isinstance(body, dict) else ()
    names = [name for name, value in values if isinstance(value, str | list) and value]
    if not names:
        return body
    value = body[name := chance.choice(names)]
    if isinstance(value, list) and chance.randrange(2) and isinstance(value[0], str):
        grown: Any = [value[0] * (size // len(value) // max(len(value[0]), 1))] * len(value)
    else:
        grown = value * (size // max(len(json.dumps(value)), 1))
    return {**body, name: grown}


async def _asked(app: Any, path: str, body: bytes) -> int:
    """The status of an answer, without a network."""
    sent: list[Any] = []
    parts = [{"type": "http.request", "body": body, "more_body": False}]
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}

    async def receive() -> Any:
        return parts.pop() if parts else await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    async with app.router.lifespan_context(app):
        await app(scope, receive, send)
    status: int = sent[0]["status"]
    return status


@kind
def kept_states(base: Path, here: Path, chance: random.Random) -> str:
    """Damaged files, and those that no server wrote, among kept states: found states are those that were kept."""
    graph_folder(base, here)
    decoder = _decoder(here / "graph.onnx")
    signature, largest = decoder.signature, snapshot.most_bytes(decoder.signature)
    ids, spaces = np.arange(9) % 5, [space_of(b"", name) for name in "ab"]
    decoder.prefill(ids[np.newaxis, :6])
    states = decoder.state()
    files = []
    for space in spaces:
        Prefixes(here / "keep", 3 * largest, largest).put(space, signature, ids[:6], states)
        [digest] = digests_of(space, ids, [6])
        files.append(here / "keep" / digest[:2] / f"{digest}.6.state")
    _planted(chance, *files)
    prefixes = Prefixes(here / "keep", 3 * largest, largest)
    prefixes.put(space_of(b"", "c"), signature, ids[:6], states)
    found = [prefixes.find(space, signature, ids) for space in spaces]
    if found[1] is None:
        raise SilentlyWrong("states of another session were lost")
    for start in found:
        if start is not None and start.history != ids[: start.position].tolist():
            raise SilentlyWrong("states of another text")
    if not all(np.array_equal(found[1].states[name], states[name]) for name in states):
        raise SilentlyWrong("other states")
    return "accepted" if found[0] is not None else "refused"


def _planted(chance: random.Random, mine: Path, other: Path) -> None:
    """Damage the file of a state, or put something else in its place or beside it."""
    place = mine if chance.randrange(2) else mine.with_name(mine.name.replace(".6.", ".7."))
    match chance.randrange(6):
        case 0:
            damage_file(chance, mine)
        case 1:
            place.unlink(missing_ok=True)
            with place.open("wb") as sparse:
                sparse.truncate(1 << chance.choice((10, 20, 30)))
        case 2:
            place.unlink(missing_ok=True)
            place.symlink_to(chance.choice((other, Path("/dev/zero"), place.parent)))
        case 3:
            place.unlink(missing_ok=True)
            os.mkfifo(place)
        case 4:
            place.unlink(missing_ok=True)
            place.mkdir()
        case _:
            mine.rename(mine.with_name(mine.name.replace(".6.", chance.choice((".5.", ".99.", ".x.")))))
