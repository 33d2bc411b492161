"""Log of a training run: a progress bar on terminals, plain lines otherwise, and a JSON Lines file.

A resumed run appends to the file: a line with the event "start", then the steps after the saved state.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from io import FileIO
from pathlib import Path
from typing import Any

from t2r_runtime.errors import UserError
from t2r_runtime.files import unwritable

SECONDS = 20.0  # between two plain lines


class TrainingLog:
    """Bar, lines and file of one run. Only the main process has an `enabled` log; others do nothing."""

    def __init__(self, path: Path | None, enabled: bool = True, seconds: float = SECONDS) -> None:
        self.enabled, self.seconds = enabled, seconds
        self._file = _open(path) if enabled and path is not None else None
        self._stage, self._before = Stopwatch("", 0, 0, 0), 0
        self.end_seconds = 0.0  # duration of the run after its last step
        self._bar: Any = None
        self._validation = ""
        self._last_line = -math.inf

    def message(self, text: str) -> None:
        """Write a line to stderr, above the progress bar."""
        if not self.enabled:
            return
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            sys.stderr.write(f"{text}\n")

    def record(self, **fields: Any) -> None:
        """Write a line to the file. Raises UserError, and leaves the file as it was, if it cannot be written."""
        if self._file is None:
            return
        line, size = json.dumps(_plain(fields)).encode() + b"\n", self._file.seek(0, os.SEEK_END)
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(size)
            raise unwritable(self._file.name, error) from error

    def start_stage(
        self, name: str, done: int, steps: int, tokens: int, others: tuple[int, int] = (0, 0), every: int = 0
    ) -> None:
        """Begin a stage.

        Args:
            done: steps of the stage completed earlier.
            tokens: tokens of the run so far.
            others: total steps of earlier and of later stages.
            every: steps between validations; 0: none.
        """
        self.close_bar()
        self._before, behind = others
        self._stage = Stopwatch(name, done, steps, tokens, behind=behind, every=every)
        self._last_line = -math.inf
        self._validation = ""
        if self.enabled and sys.stderr.isatty():
            from tqdm import tqdm

            first, total = self._before + done, self._before + steps + behind
            self._bar = tqdm(total=total, initial=first, desc=name, unit="step", dynamic_ncols=True)

    def progress(
        self, done: int, loss: float, learning_rate: float, tokens: int, flops: float = 0.0, memory: int | None = None
    ) -> None:
        """Report `done` steps of the stage, and the mean `loss` since the last call.

        Args:
            tokens: of the run so far.
            flops: floating-point operations per token.
            memory: peak bytes so far; None: unknown.
        """
        rate = self._stage.lap(tokens)
        place = {"stage": self._stage.name, "step": done, "tokens": tokens}
        speed = {"tokens_per_second": round(rate, 1), "teraflops": round(rate * flops / 1e12, 5)}
        self.record(**place, loss=loss, learning_rate=learning_rate, **speed, memory=memory)
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.4f}{self._validation}, {rate:,.0f} tok/s", refresh=False)
            self._bar.update(self._before + done - self._bar.n)
            return
        now = time.monotonic()
        if now - self._last_line >= self.seconds or done == self._stage.steps:
            self._last_line = now
            stage = self._stage
            self.message(
                f"{stage.name} {done}/{stage.steps}: loss {loss:.4f}{self._validation}, {rate:,.0f} tokens/s, "
                f"{speed['teraflops']:.3g} TFLOP/s, "
                f"{stage.left(done) + self.end_seconds:.0f} s left of the run"
            )
            self._validation = ""  # in one line only: the next loss is of later steps

    def validation(
        self,
        done: int,
        loss: float,
        nats: float,
        error: float,
        tokens: int,
        layers: Sequence[Mapping[str, float]] = (),
    ) -> None:
        """Report a validation: loss of the stage, nats per token with standard error, statistics per layer."""
        certain = f" ± {error:.3f}" if math.isfinite(error) else ""
        self._validation = f", validation {loss:.4f} ({nats:.3f}{certain} nats/token)"
        statistics = {"layers": [dict(layer) for layer in layers]} if any(layers) else {}
        place = {"stage": self._stage.name, "step": done, "tokens": tokens}
        self.record(**place, validation_loss=loss, validation_nats=nats, validation_error=error, **statistics)

    def aside(self) -> AbstractContextManager[None]:
        """Context for evaluation and saving: its duration is excluded from tokens/s and the time left."""
        return self._stage.paused()

    def close_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def __enter__(self) -> TrainingLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_bar()
        if self._file is not None:
            self._file.close()


class Stopwatch:
    """Speed of a stage, and an estimate of the time left."""

    def __init__(
        self,
        name: str,
        done: int,
        steps: int,
        tokens: int,
        clock: Callable[[], float] = time.monotonic,
        behind: int = 0,
        every: int = 0,
    ) -> None:
        """`behind`: steps of later stages. `every`: steps between pauses; 0: none."""
        self.name, self.first, self.steps, self.tokens, self.clock = name, done, steps, tokens, clock
        self.behind, self.every, self.pause = behind, every, 0.0
        self.started = self.lapped = clock()

    def lap(self, tokens: int) -> float:
        """Tokens per second since the last lap; `tokens` counts those of the run so far."""
        now = self.clock()
        rate = (tokens - self.tokens) / max(now - self.lapped, 1e-9)
        self.lapped, self.tokens = now, tokens
        return rate

    def left(self, done: int) -> float:
        """Estimated seconds for the remaining steps and pauses of the run, at this stage's mean speed."""
        made, rest = max(done - self.first, 1), self.steps - done + self.behind
        pauses = -(-rest // self.every) if self.every else 0
        return (self.clock() - self.started) / made * rest + pauses * self.pause

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Context whose duration is excluded from the measurement."""
        began = self.clock()
        try:
            yield
        finally:
            seconds = self.clock() - began
            self.pause = max(self.pause, seconds)
            self.started += seconds
            self.lapped += seconds


def _plain(value: Any) -> Any:
    """`value` for JSON, with NaN and infinity as null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _open(path: Path) -> FileIO:
    try:
        return path.open("ab", buffering=0)  # unbuffered: closing it writes nothing
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"to be able to write the log {path}", reason, "choose another place for it") from error
