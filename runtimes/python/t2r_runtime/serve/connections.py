"""Connections whose clients neither send nor read are dropped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Any

MOST = 1024  # open connections
PATIENCE = 30.0  # seconds until a client must have sent a request, or have read a part of its answer
CROWDED = 5.0  # the same, while more than half of the connections are open
TICK = 0.1


class Patience:
    """Drops connections that have waited for their clients for too long."""

    def __init__(self) -> None:
        # of those that wait: unsent bytes, the newest request, and since when both are the same
        self._waits: dict[Any, tuple[int, Any, float]] = {}

    def look(self, connections: Collection[Any], now: float) -> None:
        """Look at all open connections.

        Args:
            connections: uvicorn's protocols.
            now: seconds on any clock.
        """
        patience = CROWDED if len(connections) > MOST // 2 else PATIENCE
        before, self._waits = self._waits, {}
        for each in [*connections]:
            if (unsent := _unsent(each)) is None:
                continue
            then, request, since = before.get(each, (unsent, each.cycle, now))
            since = since if unsent == then and each.cycle is request else now
            self._waits[each] = unsent, each.cycle, since
            if now - since > patience:
                each.transport.abort()  # close() would wait until everything is sent

    async def keep(self, connections: Collection[Any]) -> None:
        """Look again and again, until this is cancelled."""
        while True:
            self.look(connections, time.monotonic())
            await asyncio.sleep(TICK)


def _unsent(connection: Any) -> int | None:
    """The unsent bytes of a connection that waits for its client; None if the server works on its request."""
    cycle = connection.cycle  # its newest request
    unsent: int = connection.transport.get_write_buffer_size()
    return unsent if unsent or cycle is None or cycle.response_complete or cycle.more_body else None
