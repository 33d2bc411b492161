"""`t2r quantize`: fewer bits for a graph's weights, and its options for `t2r export`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from t2r_export.cli.output import json_option, show, size, table
from t2r_runtime.errors import UserError

if TYPE_CHECKING:
    from t2r_export.quantize import QuantizeReport
    from t2r_export.quantizers.quality import Quality

FILE = click.Path(path_type=Path)
F = TypeVar("F", bound=Callable[..., Any])


def options(function: F) -> F:
    """What a scheme can be told, named as in QuantizeConfig, and `--check`: for `t2r quantize` and `t2r export`."""
    for option in (
        click.option("--check", type=FILE, metavar="TEXT", help="Measure on a text; exit 1 if the model is ruined."),
        click.option("--activation-bits", type=int, default=8, show_default=True, help="int8-static: 8 or 16."),
        click.option("--calibrate-steps", type=int, metavar="N", help="int8-static: tokens a passage. Default: 1024."),
        click.option("--calibrate", type=FILE, metavar="TEXT", help="What int8-static measures activations on."),
        click.option("--embedding-bits", type=int, help="w8 and w4: 8, or 4 in blocks. Default: 8."),
        click.option("--head-bits", type=int, help="w8 and w4: 8 or 4, for the projection to logits. Default: 8."),
        click.option("--accuracy-level", type=int, help="w8 and w4: 4 computes in int8, 0 in float32. Default: 4."),
        click.option("--asymmetric", is_flag=True, help="w8 and w4: a zero point beside each scale."),
        click.option("--block-size", type=int, metavar="N", help="w8 and w4: weights that share a scale. Default: 32."),
    ):
        function = option(function)
    return function


@click.command("quantize")
@click.argument("source", type=FILE)
@click.argument("out", type=FILE)
@click.option("--scheme", required=True, metavar="S", help="fp16, int8, int8-static, w8 or w4.")
@options
@json_option
def command(source: Path, out: Path, scheme: str, check: Path | None, as_json: bool, **given: Any) -> None:
    """Write the float32 graph SOURCE as OUT with fewer bits; its states stay float32."""
    from t2r_export.quantize import quantize
    from t2r_export.quantizers.base import QuantizeConfig

    with ruin_shown(as_json):
        report = quantize(source, out, QuantizeConfig(scheme, **given), check)
    show(as_json, data(report), text(report))


def refuse_without_scheme(check: Path | None, **given: Any) -> None:
    """Raise if an option of `options` was given that nothing would read."""
    from t2r_export.quantizers.base import QuantizeConfig

    if check is not None or QuantizeConfig("none", **given) != QuantizeConfig("none"):
        raise UserError("--quantize beside the options of a scheme", "none", "name a scheme, or leave them out")


@contextlib.contextmanager
def ruin_shown(as_json: bool) -> Iterator[None]:
    """Print what was measured of a model that the quantization ruined, and go on raising."""
    from t2r_export.quantizers.quality import Ruined

    try:
        yield
    except Ruined as ruined:
        show(as_json, {"quality": ruined.quality.to_dict()}, quality_text(ruined.quality))
        raise


def data(report: QuantizeReport) -> dict[str, Any]:
    """The report for a program."""
    quality = None if report.quality is None else report.quality.to_dict()
    return {**vars(report), "files": {str(f): f.stat().st_size for f in report.files}, "quality": quality}


def text(report: QuantizeReport, with_files: bool = True) -> str:
    """The report for a person."""
    ratio = report.bytes_after / report.bytes_before
    lines = [f"{file}: {size(file.stat().st_size)}" for file in report.files if with_files]
    lines.append(
        f"{report.scheme}: weights of {size(report.bytes_before)} are {size(report.bytes_after)} now, {ratio:.0%}"
    )
    if report.no_prefill is not None:
        lines.append(f"prompts: one token at a time: {report.no_prefill}")
    return "\n".join(lines if report.quality is None else [*lines, quality_text(report.quality)])


def quality_text(q: Quality) -> str:
    """What the quantization costs."""
    rows = [
        [f"nats/token, {q.tokens:,} tokens", f"{q.nats_before:.4f}", f"{q.nats_after:.4f}", f"{q.loss:+.2%}"],
        [f"same greedy token, {q.steps:,} steps", "", "", f"{q.greedy_agreement:.2%}"],
        ["worst difference of a logit", "", "", f"{q.worst_logits:.3g}"],
        ["ms a step", f"{q.milliseconds_before:.3f}", f"{q.milliseconds_after:.3f}", f"x {q.time_ratio:.2f}"],
    ]
    verdict = "ok" if q.passed else "FAILED"
    bound = f"bound of nats/token {q.bound:+.2%}: {verdict}"
    return table(rows, ["", "float32", q.scheme, "difference"]) + f"\n{bound}"
