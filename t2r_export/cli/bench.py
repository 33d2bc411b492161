"""`t2r bench`: measure time and memory; tables for people, one JSON object for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from t2r_export.cli.output import json_option, note, show, table

if TYPE_CHECKING:
    from t2r_export.bench.tables import Table
    from t2r_export.config.export import ExportConfig


def _numbers(_: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Whole numbers from 1 with commas between them; `none` is none of them."""
    parts = [] if text == "none" else text.split(",")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"{text!r} is not whole numbers from 1, as 16,128", param=parameter)
    return tuple(int(part) for part in parts)


size_option = click.option("--size", "model", default="smollm-135m", show_default=True)
rounds_option = click.option("--rounds", type=click.IntRange(min=1), default=30, show_default=True)
threads_option = click.option("--threads", type=click.IntRange(min=1), help="Default: one a physical core.")
engines_option = click.option(
    "--engine",
    "engines",
    multiple=True,
    metavar="ENGINE:FORM[:OPTION=VALUE…]",
    help="Repeat. As in t2r:w4:K=64:block=128:target=fused, genai:int4:block=128, llama.cpp:Q4_0, torch:softmax; "
    "`:again` at the end makes a control.",
)
turns_option = click.option("--rounds", type=click.IntRange(min=1), default=9, show_default=True)
each_option = click.option("--threads", callback=_numbers, default="2", show_default=True, help="One after the other.")


@click.group("bench")
def command() -> None:
    """Measure time and memory on models of well-known sizes with random weights."""


@command.command("decode")
@size_option
@engines_option
@each_option
@click.option("--contexts", callback=_numbers, default="16,128,1024,4096,8192,100000", show_default=True)
@turns_option
@click.option("--tokens", type=click.IntRange(min=1), default=20, show_default=True, help="Of each turn.")
@click.option("--prompts", callback=_numbers, default="512,4096", show_default=True, help="Lengths, or none.")
@click.option("--prompt-rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--starts", type=click.IntRange(min=0), default=5, show_default=True, help="Of each process.")
@click.option("--plots", type=click.Path(path_type=Path), metavar="FOLDER", help="Draw time and memory there.")
@json_option
def decode(
    model: str,
    engines: tuple[str, ...],
    threads: tuple[int, ...],
    contexts: tuple[int, ...],
    rounds: int,
    tokens: int,
    prompts: tuple[int, ...],
    prompt_rounds: int,
    starts: int,
    plots: Path | None,
    as_json: bool,
) -> None:
    """Our decoders beside others': time per token against length, prompts, memory, start, and the machine's limit."""
    from t2r_export.bench.decode import STANDARD, Plan, bench_decode
    from t2r_export.bench.plots import draw, require_plots
    from t2r_export.bench.tables import decode_tables

    if plots is not None:
        require_plots()
    plan = Plan(model, engines or STANDARD, threads, contexts, rounds, tokens, prompts, prompt_rounds, starts)
    result = bench_decode(plan, note)
    _show(as_json, result, decode_tables(result).values())
    if plots is not None:  # after the result, which took too long to be lost to a folder that cannot be written to
        for path in draw(result, plots):
            note(f"wrote {path}")


@command.command("batch")
@size_option
@engines_option
@click.option("--batches", callback=_numbers, default="1,4,16,64", show_default=True)
@each_option
@turns_option
@click.option("--tokens", type=click.IntRange(min=1), default=10, show_default=True, help="Of each turn.")
@json_option
def batch(
    model: str,
    engines: tuple[str, ...],
    batches: tuple[int, ...],
    threads: tuple[int, ...],
    rounds: int,
    tokens: int,
    as_json: bool,
) -> None:
    """Tokens a second with many sequences side by side in one graph."""
    from t2r_export.bench.batches import BatchPlan, bench_batches
    from t2r_export.bench.tables import batch_table

    forms = {"engines": engines} if engines else {}
    result = bench_batches(
        BatchPlan(model, batches=batches, threads=threads, rounds=rounds, tokens=tokens, **forms), note
    )
    _show(as_json, result, [batch_table(result)])


@command.command("export")
@click.option(
    "--size", "sizes", multiple=True, default=("gpt2-small", "smollm-135m"), show_default=True, help="Repeat."
)
@engines_option
@click.option("--rounds", type=click.IntRange(min=1), default=1, show_default=True)
@json_option
def export(sizes: tuple[str, ...], engines: tuple[str, ...], rounds: int, as_json: bool) -> None:
    """Seconds and peak memory of an export, each in a process of its own."""
    from t2r_export.bench.exports import bench_export
    from t2r_export.bench.tables import EXPORT, export_table
    from t2r_export.bench.timing import machine

    figures = bench_export(sizes, engines or ("t2r:float32",), rounds)
    rows = [{**vars(f), "memory_ratio": f.memory_ratio} for f in figures]
    result = {"format": EXPORT, "machine": machine(), "rounds": rounds, "export": rows}
    _show(as_json, result, [export_table(result)])


@command.command("profile")
@size_option
@engines_option
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True)
@click.option("--steps", type=click.IntRange(min=1), default=100, show_default=True)
@json_option
def profile(model: str, engines: tuple[str, ...], threads: int, steps: int, as_json: bool) -> None:
    """Where the time of a step goes, by operator and by product of weights."""
    from t2r_export.bench.profile import bench_profile
    from t2r_export.bench.tables import profile_tables

    result = bench_profile(model, engines or ("t2r:w4",), threads, steps, note)
    _show(as_json, result, profile_tables(result).values())


@command.command("bandwidth")
@click.option("--threads", callback=_numbers, default="1,2", show_default=True, help="One after the other.")
@json_option
def bandwidth(threads: tuple[int, ...], as_json: bool) -> None:
    """How fast the machine reads memory: what no decoder can be faster than."""
    from t2r_export.bench.limit import bandwidth as measure
    from t2r_export.bench.timing import machine

    found = [measure(count) for count in threads]
    rows = [[b.threads, name, f"{speed / 1e9:.1f}"] for b in found for name, speed in b.forms.items()]
    show(as_json, {"machine": machine(), "bandwidth": found}, table(rows, ["threads", "read by", "GB/s"]))


@command.command("plot")
@click.argument("result", type=click.Path(path_type=Path))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--only", multiple=True, metavar="NAME", help="Repeat. Default: all but controls.")
def plot(result: Path, folder: Path, only: tuple[str, ...]) -> None:
    """Draw a RESULT of `t2r bench decode --json` again, into FOLDER."""
    from t2r_export.bench.plots import draw
    from t2r_export.bench.tables import read_result

    for path in draw(read_result(result), folder, only):
        click.echo(path)


@command.command("layouts")
@size_option
@rounds_option
@threads_option
@json_option
def layouts(model: str, rounds: int, threads: int | None, as_json: bool) -> None:
    """Step time with a state tensor a layer and with all layers' states packed."""
    from t2r_export.bench.graphs import LAYOUTS

    _graphs("state layout", LAYOUTS, model, rounds, threads, as_json)


@command.command("targets")
@size_option
@rounds_option
@threads_option
@json_option
def targets(model: str, rounds: int, threads: int | None, as_json: bool) -> None:
    """Step time of each target on the CPU provider."""
    from t2r_export.bench.graphs import TARGETS

    _graphs("target", TARGETS, model, rounds, threads, as_json)


def _show(as_json: bool, result: Mapping[str, Any], tables: Iterable[Table]) -> None:
    texts = [f"{t.title}\n{table(t.rows, t.head)}" for t in tables]
    show(as_json, result, "\n\n".join(texts))


def _graphs(
    what: str, forms: Mapping[str, ExportConfig], model: str, rounds: int, threads: int | None, as_json: bool
) -> None:
    from t2r_export.bench.graphs import bench_graphs
    from t2r_export.bench.timing import machine

    figures = bench_graphs(forms, model, rounds, threads)
    rows = [[f.name, f"{f.milliseconds:.2f}", f"{f.low:.2f}-{f.high:.2f}", f"{f.ratio:.3f}"] for f in figures]
    text = table(rows, [what, "ms a step", "10-90 %", "ratio"])
    show(as_json, {"machine": machine(), "size": model, "graphs": figures}, text)
