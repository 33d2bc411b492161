"""`t2r bench`: latency, memory and start-up time of exported graphs, side by side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from t2r_export.cli.output import size, table
from t2r_export.cli.spelled import Inside
from t2r_export.config.bench import BenchConfig
from t2r_export.config.options import options, usual
from t2r_runtime.cli import providers
from t2r_runtime.cli.output import json_option, note, show
from t2r_runtime.session.refusals import existing_graph

if TYPE_CHECKING:
    from t2r_export.providers.bench import GraphFigures, Spread

MEASURED = options(BenchConfig)
MEASURE = "Numbers of steps, rounds and starts, and the prompt's length; help explains.  [default: " + (
    ", ".join(f"{name}={usual(field)}" for name, field in MEASURED.items()) + "]"
)
T = TypeVar("T")
HEAD = ["graph", "ms per step", "ratio", "prompt tokens/s", "by steps", "memory", "start, s"]


@click.command("bench")
@click.argument("graphs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="GRAPH…")
@click.option("--measure", type=Inside("measure", MEASURED), is_eager=True, default="", help=MEASURE)
@providers.threads_option
@providers.option
@json_option
def command(
    graphs: tuple[Path, ...], measure: dict[str, Any], threads: int | None, provider: providers.Provider, as_json: bool
) -> None:
    """Benchmark each GRAPH, an exported decoder: time per step, prompts, memory, start.

    Several graphs take turns in one run; ratios are of medians, relative to the first graph. Name a graph twice to see
    the measurement noise.
    """
    for graph in graphs:
        existing_graph(graph)

    from t2r_export.providers.bench import bench

    given = {"threads": threads, **measure}
    given |= dict(zip(("provider", "provider_options", "allow_fallback"), provider, strict=True))
    with providers.own_stdout():
        found = bench(graphs, BenchConfig(**given), note)
    rows = [_row(figures) for figures in found.graphs]
    show(as_json, {**vars(found), "graphs": [vars(figures) for figures in found.graphs]}, table(rows, HEAD))
    for figures in found.graphs:
        providers.note_split(provider.name, figures.placement)


def _row(figures: GraphFigures) -> list[str]:
    return [
        str(figures.graph),
        _spread(figures.milliseconds),
        f"{figures.ratio:.2f}",
        f"{figures.prompt.median:.0f}",
        _shown(figures.prompt_by_steps, lambda steps: f"{steps.median:.0f}"),
        _shown(figures.memory, size),
        _shown(figures.start, lambda start: f"{start.median:.2f}"),
    ]


def _shown(value: T | None, form: Callable[[T], str]) -> str:
    return "-" if value is None else form(value)


def _spread(values: Spread) -> str:
    return f"{values.median:.3g} ({values.low:.3g}-{values.high:.3g})"
