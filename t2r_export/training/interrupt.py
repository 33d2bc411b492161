"""Ctrl-C during training."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Interrupt:
    """Context in which Ctrl-C requests a stop after the current step; a second one stops at once."""

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> Interrupt:
        # only the main thread may set a handler
        self.mine = threading.current_thread() is threading.main_thread()
        if self.mine:
            self.previous = signal.signal(signal.SIGINT, self._ask)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            # the previous handler decides what happens
            (self.previous if callable(self.previous) else signal.default_int_handler)(number, frame)
        self.requested = True

    def __exit__(self, *_: object) -> None:
        if self.mine:
            signal.signal(signal.SIGINT, self.previous)
