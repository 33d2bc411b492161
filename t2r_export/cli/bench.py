"""`t2r bench`: what exported graphs cost where they run, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from t2r_export.cli.output import size, table
from t2r_runtime.cli import providers
from t2r_runtime.cli.output import json_option, note, show
from t2r_runtime.errors import UserError
from t2r_runtime.session.refusals import existing_graph

if TYPE_CHECKING:
    from t2r_export.providers.bench import Bench, BenchConfig, GraphFigures, Spread
    from t2r_export.providers.bench_translators import TranslatorFigures
    from t2r_export.providers.tune import Tried

OF_DECODERS, OF_TRANSLATORS = ("steps", "prompt", "tune"), ("beam", "batch_size")  # options
TRANSLATORS_HEAD = ["graph", "sentences/s", "ratio", "tokens/s", "memory", "start, s"]
TUNED_HEAD = ["setting", "ms per step", "ratio", "prompt tokens/s", "memory"]
HEAD = ["graph", "ms per step", "ratio", "prompt tokens/s", "by steps", "memory", "start, s", "limit, ms", "distance"]


@click.command("bench")
@click.argument("graphs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="GRAPH…")
@click.option("--steps", type=click.IntRange(min=1), default=50, show_default=True, help="Timed steps per round.")
@click.option(
    "--prompt",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Length of the prompt in tokens; the steps follow it.",
)
@click.option(
    "--sentences",
    type=click.Path(path_type=Path),
    help="Of translators: a file whose lines they translate, or a .tsv whose sources.",
)
@click.option(
    "--beam",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Width of the beam for --sentences; 1 is greedy.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Sentences translated side by side.",
)
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Number of rounds; in each, the graphs take turns.",
)
@click.option(
    "--starts",
    type=click.IntRange(min=0),
    default=3,
    show_default=True,
    help="Number of processes started per graph to time the first token, or sentence.",
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads per operator. Default: by the size of the graph.")
@click.option("--tune", is_flag=True, help="Try threads and session options on one GRAPH, and say which to take here.")
@providers.options
@json_option
@click.pass_context
def command(
    context: click.Context,
    graphs: tuple[Path, ...],
    steps: int,
    prompt: int,
    sentences: Path | None,
    beam: int,
    batch_size: int,
    rounds: int,
    starts: int,
    threads: int | None,
    tune: bool,
    provider: str,
    provider_options: tuple[str, ...],
    allow_fallback: bool,
    as_json: bool,
) -> None:
    """Measure each GRAPH, an exported file: time per step, prompts, memory, start, distance to the bandwidth limit.

    Several graphs take turns in one run, and the ratio is of medians, to the first. Name a graph twice to see how far
    two measurements of the same thing differ. Translators are measured on --sentences: how many they translate a
    second, memory and start. With --tune one graph takes turns with itself, opened in several ways.
    """
    for graph in graphs:
        existing_graph(graph)
    if tune and len(graphs) != 1:
        raise UserError("one GRAPH for --tune", str(len(graphs)), "tune each by itself")
    _require_own(context, OF_TRANSLATORS if sentences is None else OF_DECODERS, sentences)
    shared: dict[str, Any] = {"rounds": rounds, "starts": starts, "threads": threads, "provider": provider}
    shared |= {"provider_options": providers.parsed(provider_options), "allow_fallback": allow_fallback}
    if sentences is not None:
        return _translators(graphs, sentences, {"beam": beam, "batch": batch_size, **shared}, as_json)

    from t2r_export.providers.bench import BenchConfig, bench

    config = BenchConfig(steps=steps, prompt=prompt, **shared)
    if tune:
        return _tune(graphs, config, as_json)
    found = bench(graphs, config, note)
    rows = [{**vars(figures), "distance": figures.distance} for figures in found.graphs]
    show(as_json, {**vars(found), "graphs": rows}, _text(found))
    for figures in found.graphs:
        providers.note_split(provider, figures.placement)


def _require_own(context: click.Context, others: Sequence[str], sentences: Path | None) -> None:
    """Refuse options of the other kind of model, where they were given."""
    given = [name for name in others if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE]
    if given:
        option = f"--{given[0].replace('_', '-')}"
        if sentences is None:
            raise UserError(f"--sentences beside {option}", "none", "name a file, or leave the option out")
        raise UserError("one of --sentences and " + option, "both", "leave out one of them")


def _tune(graphs: Sequence[Path], config: BenchConfig, as_json: bool) -> None:
    from t2r_export.providers.tune import tune

    found = tune(graphs[0], config, note)
    rows = [_tuned_row(tried) for tried in found.tried]
    given = ", ".join(["GRAPH", *(f"{name}={value!r}" for name, value in found.best.arguments.items())])
    tried = [{"setting": vars(one.setting), **vars(one.figures)} for one in found.tried]
    result = {"machine": found.machine, "tried": tried, "best": found.best.arguments}
    show(as_json, result, f"{table(rows, TUNED_HEAD)}\n\ntake {found.best.name}: Decoder({given})")


def _tuned_row(tried: Tried) -> list[str]:
    figures = tried.figures
    memory = "-" if figures.memory is None else size(figures.memory)
    rate = f"{figures.prompt.median:.0f}"
    return [tried.setting.name, _spread(figures.milliseconds), f"{tried.ratio:.2f}", rate, memory]


def _translators(graphs: Sequence[Path], sentences: Path, options: Mapping[str, Any], as_json: bool) -> None:
    from t2r_export.providers.bench_translators import TranslationConfig, bench_translations
    from t2r_export.quality.translations import read_sources

    found = bench_translations(graphs, read_sources(sentences), TranslationConfig(**options), note)
    rows = [_translator_row(figures) for figures in found.graphs]
    show(as_json, {**vars(found), "graphs": [vars(one) for one in found.graphs]}, table(rows, TRANSLATORS_HEAD))
    for figures in found.graphs:
        providers.note_split(options["provider"], figures.placement)


def _translator_row(figures: TranslatorFigures) -> list[str]:
    return [
        str(figures.graph),
        _spread(figures.sentences),
        f"{figures.ratio:.2f}",
        f"{figures.tokens_per_second:.0f}",
        "-" if figures.memory is None else size(figures.memory),
        "-" if figures.start is None else f"{figures.start.median:.2f}",
    ]


def _text(found: Bench) -> str:
    text = table([_row(figures) for figures in found.graphs], HEAD)
    if found.bandwidth is None:
        return text
    speed = found.bandwidth
    rate = f"{speed.bytes_per_second / 1e9:.1f} GB/s, read by {speed.form}"
    return f"{text}\n\nthe limit is from main memory at {rate}; what fits a cache can be below it"


def _row(figures: GraphFigures) -> list[str]:
    return [
        str(figures.graph),
        _spread(figures.milliseconds),
        f"{figures.ratio:.2f}",
        f"{figures.prompt.median:.0f}",
        "-" if figures.prompt_by_steps is None else f"{figures.prompt_by_steps.median:.0f}",
        "-" if figures.memory is None else size(figures.memory),
        "-" if figures.start is None else f"{figures.start.median:.2f}",
        "-" if figures.limit is None else f"{figures.limit:.2f}",
        "-" if figures.distance is None else f"{figures.distance:.2f}",
    ]


def _spread(values: Spread) -> str:
    return f"{values.median:.3g} ({values.low:.3g}-{values.high:.3g})"
