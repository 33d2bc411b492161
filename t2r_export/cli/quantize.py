"""`t2r quantize`: fewer bits for a graph's weights, and its options for `t2r export`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from t2r_export.cli.given import check_given
from t2r_export.cli.output import read_bytes, size, table
from t2r_export.config.quantize import (
    ACCURACY_LEVELS,
    ACTIVATION_BITS,
    BLOCK_BITS,
    BLOCK_SIZES,
    CALIBRATE_STEPS,
    SCHEMES,
    QuantizeConfig,
)
from t2r_export.paths import check_outputs, graph_outputs
from t2r_runtime.cli.output import json_option, show
from t2r_runtime.contract.signature import ROLES
from t2r_runtime.files import existing_file
from t2r_runtime.session.refusals import existing_graph

if TYPE_CHECKING:
    from t2r_export.quality.quantization import Quality
    from t2r_export.quantize import QuantizeReport

FILE = click.Path(path_type=Path)
F = TypeVar("F", bound=Callable[..., Any])


BLOCK, LEVEL, BITS, ACTIVATIONS = map(click.Choice, (BLOCK_SIZES, ACCURACY_LEVELS, BLOCK_BITS, ACTIVATION_BITS))


def block_options(function: F) -> F:
    """How a scheme of blocks rounds, named as in QuantizeConfig."""
    for option in (
        click.option(
            "--embedding-bits",
            type=BITS,
            help="w8, w4: bits of the embedding: 8 with one scale, or 4 in blocks.  [default: 8]",
        ),
        click.option("--head-bits", type=BITS, help="w8, w4: bits of the output head.  [default: 8]"),
        click.option("--asymmetric", is_flag=True, help="w8, w4: round asymmetrically, with a zero point per scale."),
        click.option("--block-size", type=BLOCK, help="w8, w4: number of weights that share a scale.  [default: 32]"),
    ):
        function = option(function)
    return function


def options(function: F) -> F:
    """What a scheme can be told, named as in QuantizeConfig, and `--check`: for `t2r quantize` and `t2r export`."""
    for option in (
        click.option(
            "--check",
            type=FILE,
            metavar="TEXT",
            help="Measure nats/token on this text, or pairs, before and after; exit 1 if the loss is too large.",
        ),
        click.option(
            "--activation-bits",
            type=ACTIVATIONS,
            default=8,
            show_default=True,
            help="int8-static: bits per activation.",
        ),
        click.option(
            "--calibrate-steps",
            type=int,
            metavar="N",
            help=f"int8-static: tokens to read per calibration passage.  [default: {CALIBRATE_STEPS}]",
        ),
        click.option(
            "--calibrate",
            type=FILE,
            metavar="TEXT",
            help="int8-static: text, or pairs, to calibrate the ranges of activations on; --budget: to measure on.",
        ),
        click.option(
            "--accuracy-level",
            type=LEVEL,
            help="w8, w4: precision to compute in: 4 is int8; 0 is float32, which is slower and reads prompts "
            "at once as steps do.  [default: 4]",
        ),
        click.option(
            "--budget",
            metavar="BYTES",
            callback=lambda context, option, value: None if value is None else read_bytes(value),
            help="w4: choose bits and block size of each product by measuring on --calibrate, so that all weights take "
            "at most so much; 64k and 1.5M are understood.",
        ),
        block_options,
    ):
        function = option(function)
    return function


@click.command("quantize")
@click.argument("source", type=FILE)
@click.argument("out", type=FILE)
@click.option(
    "--scheme", type=click.Choice(list(SCHEMES)), required=True, help="Quantization scheme (docs/quantization.md)."
)
@options
@json_option
def command(source: Path, out: Path, scheme: str, check: Path | None, as_json: bool, **given: Any) -> None:
    """Write the float32 graph SOURCE as OUT with fewer bits; its states stay float32."""
    check_given()
    config = QuantizeConfig(scheme=scheme, **given)
    check_outputs(graph_outputs(out), [existing_graph(source), *texts(check, config)])

    from t2r_export.quantize import quantize

    with failure_shown(as_json):
        report = quantize(source, out, config, check)
    show(as_json, data(report), text(report))


def texts(check: Path | None, config: QuantizeConfig | None) -> list[Path]:
    """The texts that a quantization reads, which are there."""
    given = [check, None if config is None else config.calibrate]
    return [existing_file(path, "a text or a .npy to read") for path in given if path is not None]


@contextlib.contextmanager
def failure_shown(as_json: bool) -> Iterator[None]:
    """Print what was measured of a model that lost too much, and go on raising."""
    from t2r_export.quality.quantization import QualityCheckFailed

    try:
        yield
    except QualityCheckFailed as failed:
        show(as_json, {"quality": failed.quality.to_dict()}, quality_text(failed.quality))
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
    lines += [f"no {ROLES[role]}: {why}" for role, why in report.left_out.items()]
    return "\n".join(lines if report.quality is None else [*lines, quality_text(report.quality)])


def quality_text(q: Quality) -> str:
    """What the quantization costs."""
    rows = [
        [f"nats/token, {q.tokens:,} tokens", f"{q.nats_before:.4f}", f"{q.nats_after:.4f}", f"{q.loss:+.2%}"],
        [f"same greedy token, {q.steps:,} steps", "", "", f"{q.greedy_agreement:.2%}"],
        ["worst difference of a logit", "", "", f"{q.worst_logits:.3g}"],
    ]
    verdict = "ok" if q.passed else "FAILED"
    bound = f"bound of nats/token {q.bound:+.2%}: {verdict}"
    return table(rows, ["", "float32", q.scheme, "difference"]) + f"\n{bound}"
