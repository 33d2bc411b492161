"""Options of graph benchmarks: what they measure, and how they open graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from t2r_export.config.options import check_values, limited, option
from t2r_export.config.validation import MAX_SIZE


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """Options of t2r_export.providers.bench.bench. Raises UserError for a number out of range."""

    rounds: int = option("Rounds; the graphs take turns in each.", 5)
    starts: int = option("Processes started per graph for memory and the first token.", 3, bounds=(0, MAX_SIZE))
    steps: int = option("Timed steps per round.", 50)
    warmup: int = limited(5, bounds=(0, MAX_SIZE))  # untimed steps before the timed ones
    prompt: int = option("Prompt length in tokens; the steps follow it.", 128)
    threads: int | None = None
    provider: str = "cpu"
    provider_options: Mapping[str, str] = field(default_factory=dict)
    allow_fallback: bool = False

    def __post_init__(self) -> None:
        check_values(self)
