"""Options of graph benchmarks: what they measure, and how they open graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from t2r_export.config.options import check_values, limited, option
from t2r_export.config.validation import MAX_SIZE


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """Number of measurements, and how graphs are opened. Raises UserError for a number out of range."""

    rounds: int = option("Rounds; the graphs take turns in each.", 5)
    starts: int = option("Processes started per graph to time the first token or sentence.", 3, bounds=(0, MAX_SIZE))
    threads: int | None = None
    provider: str = "cpu"
    provider_options: Mapping[str, str] = field(default_factory=dict)
    allow_fallback: bool = False
    session_config: Mapping[str, str] = field(default_factory=dict)  # ONNX Runtime's entries

    def __post_init__(self) -> None:
        check_values(self)


@dataclass(frozen=True, kw_only=True)
class BenchConfig(BenchOptions):
    """Options of t2r_export.providers.bench.bench."""

    steps: int = option("Timed steps per round.", 50)
    warmup: int = limited(5, bounds=(0, MAX_SIZE))  # untimed steps before the timed ones
    prompt: int = option("Prompt length in tokens; the steps follow it.", 128)


@dataclass(frozen=True, kw_only=True)
class TranslationConfig(BenchOptions):
    """Options of t2r_export.providers.bench_translators.bench_translations."""

    beam: int = option("Translators: beam width; 1 is greedy.", 4)
    batch: int = option("Translators: sentences per batch.", 1)
