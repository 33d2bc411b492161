"""`t2r quantize`, and the options that it shares with `t2r export`."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from t2r_export.cli.output import size, table
from t2r_export.cli.spelled import Spelled
from t2r_export.config.quantize import SCHEMES, QuantizeConfig, Run, takes
from t2r_export.paths import check_outputs, graph_outputs
from t2r_runtime.cli.output import json_option, show
from t2r_runtime.contract.signature import ROLES
from t2r_runtime.files import existing_file
from t2r_runtime.session.refusals import existing_graph

if TYPE_CHECKING:
    from t2r_export.quantize import QuantizeReport
    from t2r_export.quantizers.quality import Quality

FILE = click.Path(path_type=Path)
F = TypeVar("F", bound=Callable[..., Any])


SCHEME = Spelled("a scheme", {name: takes(name) for name in SCHEMES})
HELP = f"with options: {', '.join(SCHEMES)} (docs/quantization.md); NAME:help lists them."


def options(function: F) -> F:
    """Add the options `--calibrate` and `--check`."""
    for option in (
        click.option(
            "--check",
            type=FILE,
            metavar="TEXT",
            help="Text or pairs for measuring nats/token before and after; exit 1 if the increase exceeds the bound.",
        ),
        click.option(
            "--calibrate",
            type=FILE,
            metavar="TEXT",
            help="Text or pairs: int8-static calibrates activation ranges on it, and w8 and w4 measure on it for their "
            "options budget, activation_error and rounding=gptq.",
        ),
    ):
        function = option(function)
    return function


@click.command("quantize")
@click.argument("source", type=FILE)
@click.argument("out", type=FILE)
@click.option("--scheme", "how", type=SCHEME, required=True, is_eager=True, help=f"Quantization scheme, {HELP}")
@options
@json_option
def command(
    source: Path,
    out: Path,
    how: tuple[str, Mapping[str, Any]],
    calibrate: Path | None,
    check: Path | None,
    as_json: bool,
) -> None:
    """Quantize the weights of the float32 graph SOURCE and write OUT; states stay float32."""
    config = QuantizeConfig(scheme=how[0], calibrate=calibrate, **how[1])
    check_outputs(graph_outputs(out), [existing_graph(source), *texts(check, config)])

    from t2r_export.quantize import quantize

    with failure_shown(as_json):
        report = quantize(source, out, config, check)
    show(as_json, data(report), text(report))


def texts(check: Path | None, config: QuantizeConfig | None) -> list[Path]:
    """The texts that a quantization reads. Raises UserError if one does not exist."""
    given = [check, None if config is None else config.calibrate]
    return [existing_file(path, "a text or a .npy to read") for path in given if path is not None]


@contextlib.contextmanager
def failure_shown(as_json: bool) -> Iterator[None]:
    """Print the measurements of a failed quality check before it is raised."""
    from t2r_export.quantizers.quality import QualityCheckFailed

    try:
        yield
    except QualityCheckFailed as failed:
        show(as_json, {"quality": failed.quality.to_dict()}, quality_text(failed.quality))
        raise


def data(report: QuantizeReport) -> dict[str, Any]:
    """The report as JSON data."""
    quality = None if report.quality is None else report.quality.to_dict()
    return {**vars(report), "files": {str(f): f.stat().st_size for f in report.files}, "quality": quality}


def text(report: QuantizeReport, with_files: bool = True) -> str:
    """Format the report."""
    ratio = report.bytes_after / report.bytes_before
    lines = [f"{file}: {size(file.stat().st_size)}" for file in report.files if with_files]
    lines.append(f"{report.scheme}: weights {size(report.bytes_before)} -> {size(report.bytes_after)}, {ratio:.0%}")
    lines += _activations(report) + _kept(report)
    lines += [f"no {ROLES[role]}: {why}" for role, why in report.left_out.items()]
    return "\n".join(lines if report.quality is None else [*lines, quality_text(report.quality)])


def _activations(report: QuantizeReport) -> list[str]:
    if not report.activation_errors:
        return []
    worst, place = max((error, name) for name, error in report.activation_errors.items())
    names, count = ", ".join(report.float_products) or "none", len(report.activation_errors)
    return [f"products in float32, of {count}: {names}; largest error of int8 activations {worst:.3g}, {place}"]


def _kept(report: QuantizeReport) -> list[str]:
    """A line for the weights of all layers that have one name and the same formats."""
    counts = Counter((re.sub(r"\.\d+\.", ".*.", name, count=1), tuple(runs)) for name, runs in report.kept.items())
    return [f"{count} {name}: {'; '.join(map(_run, runs))}" for (name, runs), count in sorted(counts.items())]


def _run(run: Run) -> str:
    form = f"{run.bits} bits in blocks of {run.size}{' with offsets' * run.offset}"
    what = "kept in" if run.kept else "not in blocks (float, or changed by folding), rounded to"
    return f"{run.rows:,} rows {what} {form}"


def quality_text(q: Quality) -> str:
    """Format the quality of a quantization."""
    rows = [
        [f"nats/token, {q.tokens:,} tokens", f"{q.nats_before:.4f}", f"{q.nats_after:.4f}", f"{q.loss:+.2%}"],
        [f"same greedy token, {q.steps:,} steps", "", "", f"{q.greedy_agreement:.2%}"],
        ["worst difference of a logit", "", "", f"{q.worst_logits:.3g}"],
    ]
    verdict = "ok" if q.passed else "FAILED"
    bound = f"bound of nats/token {q.bound:+.2%}: {verdict}"
    return table(rows, ["", "float32", q.scheme, "difference"]) + f"\n{bound}"
