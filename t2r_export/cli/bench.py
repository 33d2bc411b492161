"""`t2r bench`: latency, memory and start-up time of exported graphs, side by side."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from t2r_export.cli.output import size, table
from t2r_export.cli.spelled import Inside
from t2r_export.config.bench import BenchConfig, TranslationConfig
from t2r_export.config.options import options, usual
from t2r_runtime.cli import providers
from t2r_runtime.cli.output import json_option, note, show
from t2r_runtime.errors import UserError
from t2r_runtime.session.refusals import existing_graph

if TYPE_CHECKING:
    from t2r_export.providers.bench import Bench, GraphFigures, Spread
    from t2r_export.providers.bench_translators import TranslatorFigures
    from t2r_export.providers.tune import Tried

OF_DECODERS, OF_TRANSLATORS = options(BenchConfig), options(TranslationConfig)
MEASURED = {**OF_DECODERS, **OF_TRANSLATORS}
MEASURE = "Numbers of steps, rounds and starts, lengths, and a translator's beam; help explains.  [default: " + (
    ", ".join(f"{name}={usual(field)}" for name, field in MEASURED.items()) + "]"
)
T = TypeVar("T")
TRANSLATORS_HEAD = ["graph", "sentences/s", "ratio", "tokens/s", "memory", "start, s"]
TUNED_HEAD = ["setting", "ms per step", "ratio", "prompt tokens/s", "memory"]
HEAD = ["graph", "ms per step", "ratio", "prompt tokens/s", "by steps", "memory", "start, s", "limit, ms", "distance"]


@click.command("bench")
@click.argument("graphs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="GRAPH…")
@click.option(
    "--sentences",
    type=click.Path(path_type=Path),
    help="Translators: file of lines to translate, or a .tsv whose sources to translate.",
)
@click.option("--measure", type=Inside("measure", MEASURED), is_eager=True, default="", help=MEASURE)
@providers.threads_option
@click.option("--tune", is_flag=True, help="Search for the fastest thread count and session options of one GRAPH.")
@providers.option
@json_option
def command(
    graphs: tuple[Path, ...],
    sentences: Path | None,
    tune: bool,
    measure: dict[str, Any],
    threads: int | None,
    provider: providers.Provider,
    as_json: bool,
) -> None:
    """Benchmark each GRAPH, an exported file: time per step, prompts, memory, start, distance to the bandwidth limit.

    Several graphs take turns in one run; ratios are of medians, relative to the first graph. Name a graph twice to see
    the measurement noise. Translators are measured on --sentences: sentences per second, memory and start. --tune
    compares several configurations of one graph.
    """
    for graph in graphs:
        existing_graph(graph)
    if tune and len(graphs) != 1:
        raise UserError("one GRAPH for --tune", str(len(graphs)), "tune one graph at a time")
    _require_own(measure, tune, sentences)
    given = {"threads": threads, **measure}
    given |= dict(zip(("provider", "provider_options", "allow_fallback"), provider, strict=True))
    if sentences is not None:
        return _translators(graphs, sentences, TranslationConfig(**given), as_json)

    from t2r_export.providers.bench import bench

    config = BenchConfig(**given)
    if tune:
        return _tune(graphs, config, as_json)
    found = bench(graphs, config, note)
    rows = [{**vars(figures), "distance": figures.distance} for figures in found.graphs]
    show(as_json, {**vars(found), "graphs": rows}, _text(found))
    for figures in found.graphs:
        providers.note_split(provider.name, figures.placement)


def _require_own(measure: Collection[str], tune: bool, sentences: Path | None) -> None:
    """Raise UserError if an option of the other kind of model was given."""
    if sentences is None:
        if others := [name for name in measure if name not in OF_DECODERS]:
            do = "name a file, or leave the option out"
            raise UserError(f"--sentences with --measure {others[0]}", "none", do)
    elif others := [*(f"--measure {name}" for name in measure if name not in OF_TRANSLATORS), *["--tune"][:tune]]:
        raise UserError(f"one of --sentences and {others[0]}", "both", "leave out one of them")


def _tune(graphs: Sequence[Path], config: BenchConfig, as_json: bool) -> None:
    from t2r_export.providers.tune import tune

    found = tune(graphs[0], config, note)
    rows = [_tuned_row(tried) for tried in found.tried]
    given = ", ".join(["GRAPH", *(f"{name}={value!r}" for name, value in found.best.arguments.items())])
    tried = [{"setting": vars(one.setting), **vars(one.figures)} for one in found.tried]
    result = {"machine": found.machine, "tried": tried, "best": found.best.arguments}
    show(as_json, result, f"{table(rows, TUNED_HEAD)}\n\nfastest: {found.best.name}: Decoder({given})")


def _tuned_row(tried: Tried) -> list[str]:
    figures = tried.figures
    spread, rate = _spread(figures.milliseconds), f"{figures.prompt.median:.0f}"
    return [tried.setting.name, spread, f"{tried.ratio:.2f}", rate, _shown(figures.memory, size)]


def _translators(graphs: Sequence[Path], sentences: Path, config: TranslationConfig, as_json: bool) -> None:
    from t2r_export.providers.bench_translators import bench_translations
    from t2r_export.quality.translations import read_sources

    found = bench_translations(graphs, read_sources(sentences), config, note)
    rows = [_translator_row(figures) for figures in found.graphs]
    show(as_json, {**vars(found), "graphs": [vars(one) for one in found.graphs]}, table(rows, TRANSLATORS_HEAD))
    for figures in found.graphs:
        providers.note_split(config.provider, figures.placement)


def _translator_row(figures: TranslatorFigures) -> list[str]:
    return [
        str(figures.graph),
        _spread(figures.sentences),
        f"{figures.ratio:.2f}",
        f"{figures.tokens_per_second:.0f}",
        _shown(figures.memory, size),
        _shown(figures.start, lambda start: f"{start.median:.2f}"),
    ]


def _text(found: Bench) -> str:
    text = table([_row(figures) for figures in found.graphs], HEAD)
    if found.bandwidth is None:
        return text
    speed = found.bandwidth
    rate = f"{speed.bytes_per_second / 1e9:.1f} GB/s, read by {speed.form}"
    return f"{text}\n\nthe limit assumes main memory at {rate}; a model that fits the cache can be faster"


def _row(figures: GraphFigures) -> list[str]:
    return [
        str(figures.graph),
        _spread(figures.milliseconds),
        f"{figures.ratio:.2f}",
        f"{figures.prompt.median:.0f}",
        _shown(figures.prompt_by_steps, lambda steps: f"{steps.median:.0f}"),
        _shown(figures.memory, size),
        _shown(figures.start, lambda start: f"{start.median:.2f}"),
        _shown(figures.limit, "{:.2f}".format),
        _shown(figures.distance, "{:.2f}".format),
    ]


def _shown(value: T | None, form: Callable[[T], str]) -> str:
    return "-" if value is None else form(value)


def _spread(values: Spread) -> str:
    return f"{values.median:.3g} ({values.low:.3g}-{values.high:.3g})"
