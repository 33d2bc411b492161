"""Counters and times, in Prometheus's text format."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping

TYPE = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds
COUNTERS = {
    "t2r_requests_total": "Answered requests, by status.",
    "t2r_prompt_tokens_total": "Tokens of prompts.",
    "t2r_cached_tokens_total": "Tokens of prompts that kept states made unnecessary to read.",
    "t2r_generated_tokens_total": "Generated tokens.",
    "t2r_draft_tokens_total": "Draft tokens that runs checked.",
    "t2r_draft_tokens_right_total": "Draft tokens that were right: steps that made no run.",
    "t2r_cancelled_total": "Requests whose client went away.",
}
TIMES = {
    "t2r_step_seconds": "Time of a step of all rows, with the prompts read in it.",
    "t2r_first_token_seconds": "Time from a request to its first token.",
    "t2r_request_seconds": "Time from a request to the end of its answer.",
}
GAUGES = {
    "t2r_rows": "Rows in the batch at most.",
    "t2r_rows_running": "Texts that have a row or whose prompt is being read.",
    "t2r_texts_waiting": "Texts that wait for a row.",
    "t2r_kept_bytes": "Bytes of states kept in memory.",
}
Labels = tuple[tuple[str, str], ...]


class Metrics:
    """Counters, histograms and gauges of the server. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, Labels], int] = {}
        self._times: dict[tuple[str, Labels], tuple[list[int], float]] = {}
        self._gauges: list[tuple[str, Labels, Callable[[], float]]] = []

    def count(self, name: str, by: int = 1, **labels: str) -> None:
        """Add to a counter."""
        key = name, _sorted(labels)
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + by

    def time(self, name: str, seconds: float, **labels: str) -> None:
        """Add a time to a histogram."""
        key, place = (name, _sorted(labels)), bisect_left(BOUNDS, seconds)
        with self._lock:
            found, total = self._times.setdefault(key, ([0] * (len(BOUNDS) + 1), 0.0))
            found[place] += 1
            self._times[key] = found, total + seconds

    def gauge(self, name: str, value: Callable[[], float], **labels: str) -> None:
        """Add a gauge whose value is that of a function."""
        self._gauges.append((name, _sorted(labels), value))

    def text(self) -> str:
        """All metrics."""
        with self._lock:
            counts = dict(self._counts)
            times = {key: (list(found), total) for key, (found, total) in self._times.items()}
        lines = [*_family(COUNTERS, "counter", counts), *_histograms(times)]
        lines += _family(GAUGES, "gauge", {(name, labels): value() for name, labels, value in self._gauges})
        return "\n".join(lines) + "\n"


def _family(names: Mapping[str, str], kind: str, values: Mapping[tuple[str, Labels], float]) -> Iterator[str]:
    for name, about in names.items():
        yield f"# HELP {name} {about}"
        yield f"# TYPE {name} {kind}"
        for (found, labels), value in sorted(values.items()):
            if found == name:
                yield f"{name}{_shown(labels)} {value:g}" if value % 1 else f"{name}{_shown(labels)} {int(value)}"


def _histograms(times: Mapping[tuple[str, Labels], tuple[list[int], float]]) -> Iterator[str]:
    for name, about in TIMES.items():
        yield f"# HELP {name} {about}"
        yield f"# TYPE {name} histogram"
        for (found, labels), (counts, total) in sorted(times.items()):
            if found == name:
                below = 0
                for bound, count in zip([*map("{:g}".format, BOUNDS), "+Inf"], counts, strict=True):
                    below += count
                    yield f"{name}_bucket{_shown((*labels, ('le', bound)))} {below}"
                yield f"{name}_sum{_shown(labels)} {total:.9g}"
                yield f"{name}_count{_shown(labels)} {below}"


def _sorted(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted(labels.items()))


def _shown(labels: Labels) -> str:
    def escaped(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels) + "}" if labels else ""
