"""`t2r bench`: measure time and memory; a table for people, one JSON object for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import click

from t2r_export.cli.output import json_option, show, size, table

if TYPE_CHECKING:
    from t2r_export.export import ExportConfig

size_option = click.option("--size", "model", default="smollm-135m", show_default=True)
rounds_option = click.option("--rounds", type=click.IntRange(min=1), default=30, show_default=True)
threads_option = click.option("--threads", type=click.IntRange(min=1), help="Default: one a physical core.")


@click.group("bench")
def command() -> None:
    """Measure time and memory on models of well-known sizes with random weights."""


@command.command("export")
@click.option(
    "--size", "sizes", multiple=True, default=("gpt2-small", "smollm-135m"), show_default=True, help="Repeat."
)
@json_option
def export(sizes: tuple[str, ...], as_json: bool) -> None:
    """Seconds and peak memory of an export, each in a process of its own."""
    from t2r_export.bench import bench_export, machine

    figures = bench_export(sizes)
    rows = [
        [
            f.size,
            f"{f.parameters:,}",
            f"{f.seconds:.1f}",
            size(f.peak_bytes),
            f"{f.memory_ratio:.2f}",
            size(f.file_bytes),
        ]
        for f in figures
    ]
    text = table(rows, ["size", "parameters", "seconds", "peak memory", "of the weights", "files"])
    data = {"machine": machine(), "export": [{**vars(f), "memory_ratio": f.memory_ratio} for f in figures]}
    show(as_json, data, text)


@command.command("layouts")
@size_option
@rounds_option
@threads_option
@json_option
def layouts(model: str, rounds: int, threads: int | None, as_json: bool) -> None:
    """Step time with a state tensor a layer and with all layers' states packed."""
    from t2r_export.bench import LAYOUTS

    _graphs("state layout", LAYOUTS, model, rounds, threads, as_json)


@command.command("targets")
@size_option
@rounds_option
@threads_option
@json_option
def targets(model: str, rounds: int, threads: int | None, as_json: bool) -> None:
    """Step time of each target on the CPU provider."""
    from t2r_export.bench import TARGETS

    _graphs("target", TARGETS, model, rounds, threads, as_json)


def _graphs(
    what: str, forms: Mapping[str, ExportConfig], model: str, rounds: int, threads: int | None, as_json: bool
) -> None:
    from t2r_export.bench import bench_graphs, machine

    figures = bench_graphs(forms, model, rounds, threads)
    rows = [[f.name, f"{f.milliseconds:.2f}", f"{f.low:.2f}-{f.high:.2f}", f"{f.ratio:.3f}"] for f in figures]
    text = table(rows, [what, "ms a step", "10-90 %", "ratio"])
    show(as_json, {"machine": machine(), "size": model, "graphs": figures}, text)
