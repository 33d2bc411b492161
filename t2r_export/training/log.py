"""The log of a training run: a progress bar on a terminal, plain lines otherwise, and JSON lines in a file.

The file is for programs: one object per line, appended, so that a resumed run continues it (and writes the steps after
its last saved state again, after a line with the event "start").
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from t2r_runtime.errors import UserError

SECONDS = 20.0  # between two plain lines


class TrainingLog:
    """Bar, lines and file of one run. A log that is not `enabled` (every process but the main one) does nothing."""

    def __init__(self, path: Path | None, enabled: bool = True, seconds: float = SECONDS) -> None:
        self.enabled, self.seconds = enabled, seconds
        self._file = _open(path) if enabled and path is not None else None
        self._stage, self._before = Stopwatch("", 0, 0, 0), 0
        self.end_seconds = 0.0  # that the run takes behind its last step
        self._bar: Any = None
        self._validation = ""
        self._last_line = -math.inf

    def message(self, text: str) -> None:
        """A line on stderr; above the progress bar where there is one."""
        if not self.enabled:
            return
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            sys.stderr.write(f"{text}\n")

    def record(self, **fields: Any) -> None:
        """A line in the file."""
        if self._file is not None:
            self._file.write(json.dumps(_plain(fields)) + "\n")
            self._file.flush()

    def start_stage(
        self, name: str, done: int, steps: int, tokens: int, others: tuple[int, int] = (0, 0), every: int = 0
    ) -> None:
        """Begin this stage, of which `done` of `steps` steps were run earlier, after `tokens` tokens of the run.

        Args:
            others: steps of the stages before this one, and behind it.
            every: steps between two validations; 0: there are none.
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

    def progress(self, done: int, loss: float, learning_rate: float, tokens: int) -> None:
        """`done` steps of the stage are complete; `loss` is the mean since the last call, `tokens` those of the run."""
        rate = self._stage.lap(tokens)
        place = {"stage": self._stage.name, "step": done, "tokens": tokens}
        self.record(**place, loss=loss, learning_rate=learning_rate, tokens_per_second=round(rate, 1))
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
                f"{stage.left(done) + self.end_seconds:.0f} s left of the run"
            )

    def validation(
        self, done: int, loss: float, nats: float, tokens: int, layers: Sequence[Mapping[str, float]] = ()
    ) -> None:
        """On the valid part after `done` steps and `tokens` tokens of the run: the stage's own loss, nats per token,
        and the statistics of each layer's features (none for most kinds of mixer)."""
        self._validation = f", validation {loss:.4f} ({nats:.3f} nats/token)"
        statistics = {"layers": [dict(layer) for layer in layers]} if any(layers) else {}
        place = {"stage": self._stage.name, "step": done, "tokens": tokens}
        self.record(**place, validation_loss=loss, validation_nats=nats, **statistics)

    def aside(self) -> Pause:
        """A context whose duration counts neither in tokens/s nor in the time left: evaluation, saving."""
        return Pause(self._stage)

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
    """Time spent on the steps of a stage, and what the run is expected to take from there on."""

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
        """`behind`: steps of later stages. `every`: steps between two pauses; 0: there are none."""
        self.name, self.first, self.steps, self.tokens, self.clock = name, done, steps, tokens, clock
        self.behind, self.every, self.pause = behind, every, 0.0
        self.started = self.lapped = clock()

    def lap(self, tokens: int) -> float:
        """Tokens per second since the last lap, where the run has seen `tokens`."""
        now = self.clock()
        rate = (tokens - self.tokens) / max(now - self.lapped, 1e-9)
        self.lapped, self.tokens = now, tokens
        return rate

    def left(self, done: int) -> float:
        """Seconds for the steps of the run that are left, at this stage's mean speed so far, and for their pauses."""
        made, rest = max(done - self.first, 1), self.steps - done + self.behind
        pauses = -(-rest // self.every) if self.every else 0
        return (self.clock() - self.started) / made * rest + pauses * self.pause

    def shift(self, seconds: float) -> None:
        """Leave a pause of so many `seconds` out of the measurement."""
        self.pause = max(self.pause, seconds)
        self.started += seconds
        self.lapped += seconds


class Pause:
    """A context whose duration a stopwatch leaves out."""

    def __init__(self, watch: Stopwatch) -> None:
        self.watch = watch

    def __enter__(self) -> None:
        self.began = self.watch.clock()

    def __exit__(self, *_: object) -> None:
        self.watch.shift(self.watch.clock() - self.began)


def _plain(value: Any) -> Any:
    """`value` as JSON can say it: NaN and infinity are null."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _open(path: Path) -> IO[str]:
    try:
        return path.open("a", encoding="utf-8")
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"to be able to write the log {path}", reason, "choose another place for it") from error
