"""Arrival times of the tokens of many concurrent streams of a server, in one event loop."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from comparison.servers import HOST, Server
from t2r_runtime.errors import UserError

EVENT = b"data: {"  # start of a token's event; streams end with another event, or with [DONE]
FAULT = b'"error"'
LIMIT = 300  # timeout in seconds for all streams


def streams(server: Server, bodies: Sequence[Mapping[str, Any]], tokens: int) -> list[list[float]]:
    """Send all requests at once; returns the seconds until each token arrives, by stream.

    Raises:
        UserError: an answer is not a stream of `tokens` tokens, or takes too long.
    """

    async def all_of() -> list[list[float]]:
        started = time.perf_counter()
        async with asyncio.timeout(LIMIT):
            return await asyncio.gather(*(_times(server, body, started) for body in bodies))

    try:
        found = asyncio.run(all_of())
    except (OSError, TimeoutError) as error:
        raise UserError("streams of tokens", f"{type(error).__name__}: {error}", "request less") from error
    if any(len(times) < tokens for times in found):
        raise UserError(f"{tokens} tokens of each stream", str(min(map(len, found))), "give it more context")
    return [times[:tokens] for times in found]


def rate(times: Sequence[Sequence[float]]) -> float:
    """Total tokens per second while all streams run: from the latest first token to the earliest last token.

    Raises:
        UserError: the streams never all run at once.
    """
    start, end = max(each[0] for each in times), min(each[-1] for each in times)
    if end <= start:
        raise UserError("a time at which all streams run", "none", "request more tokens")
    return sum(start < at <= end for each in times for at in each) / (end - start)


async def _times(server: Server, body: Mapping[str, Any], started: float) -> list[float]:
    reader, writer = await asyncio.open_connection(HOST, server.port)
    data = json.dumps(body).encode()
    head = f"POST {server.path} HTTP/1.1\r\nhost: {HOST}\r\nconnection: close\r\ncontent-type: application/json\r\n"
    times: list[float] = []
    try:
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        status = await reader.readline()
        rest = b""
        while part := await reader.read(1 << 16):
            now = time.perf_counter() - started
            text = rest + part
            if b" 200 " not in status or FAULT in text:
                received = (status + text).decode(errors="replace")
                raise UserError("an answer of status 200", " ".join(received.split())[-300:], "request less")
            times += [now] * text.count(EVENT)
            rest = text[-len(EVENT) + 1 :]
    finally:
        writer.close()
    return times
