"""`t2r finetune`: train a converted model to match its teacher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from t2r_export.cli.fields import fields, flat
from t2r_export.cli.given import check_given
from t2r_export.cli.output import force_option, table, with_error
from t2r_export.cli.spelled import Spelled
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.quantize import SCHEMES, QuantizeConfig, takes
from t2r_export.config.stages import STAGES, USUAL_STAGES, parse_plan
from t2r_runtime.cli.output import json_option, show
from t2r_runtime.errors import UserError

if TYPE_CHECKING:
    from t2r_export.training.plan import StagePlanned

FILE = click.Path(path_type=Path)
INSIDE = ("accuracy_level", "activation_error", "budget", "rounding")  # no effect on the rounding to train
ROUNDING = Spelled(
    "a scheme",
    {
        name: {option: field for option, field in takes(name).items() if option not in INSIDE}
        for name, each in SCHEMES.items()
        if each.rounds
    },
)


@click.command("finetune")
@click.argument("model", type=FILE)
@click.argument("out", type=FILE)
@click.option(
    "--stages",
    help=f"Training stages in order, of {', '.join(STAGES)}.  [default: {USUAL_STAGES}, without those that have "
    "nothing to train in MODEL]",
)
@click.option("--steps", metavar="N,N", help="Number of steps per stage, or one for all. Default: the stage's own.")
@click.option(
    "--lr",
    "learning_rates",
    metavar="X,X",
    help="Peak learning rate per stage, or one for all. Default: the stage's own, for the model's width.",
)
@click.option(
    "--for",
    "scheme",
    type=ROUNDING,
    is_eager=True,
    help="Quantization-aware training of a trained student, folded, for w8 or w4 and its options: the stage round. The "
    "teacher is the student itself unless --teacher is given.",
)
@click.option(
    "--plan",
    "teraflops",
    type=click.FloatRange(0, min_open=True),
    metavar="TFLOPS",
    help="Print what each stage needs, with its hours at this many 10^12 operations per second, and stop.",
)
@fields(FinetuneConfig)
@force_option
@json_option
def command(
    model: Path,
    out: Path,
    stages: str | None,
    steps: str | None,
    learning_rates: str | None,
    scheme: tuple[str, Mapping[str, Any]] | None,
    teraflops: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Train MODEL, written by `t2r convert`, and write OUT.

    On several devices: accelerate launch -m t2r_export finetune MODEL OUT …
    """
    rounding = None if scheme is None else QuantizeConfig(scheme=scheme[0], **scheme[1])
    plan = parse_plan("round" if scheme and stages is None else stages, steps, learning_rates)
    if not options["data"] and not options["pairs"]:
        raise UserError("--data, or --pairs for a translator", "neither", "name a text to train on")
    values = {**flat(FinetuneConfig, options), "lora": options["lora"] is not None}
    config = FinetuneConfig(model=model, output=out, plan=plan, rounding=rounding, **values)
    check_given(vars(config))
    config.check_files() if teraflops is None else config.check_inputs()

    from accelerate import PartialState

    from t2r_export.finetune import finetune
    from t2r_export.finetune import plan as plan_run

    if teraflops is not None:
        _show_plan(plan_run(config), teraflops, as_json)
        return
    report = finetune(config)
    if not PartialState().is_main_process:
        return
    measured = {"teacher": report.teacher, "student before": report.before, "student": report.after}
    rows = [
        [name, with_error(e.nats, e.standard_error), f"{e.perplexity:.2f}"]
        for name, e in measured.items()
        if e is not None
    ]
    text = table(rows, [f"test text, {report.after.tokens:,} tokens", "nats/token", "perplexity"])
    data = {
        "out": report.output,
        **{name.replace(" ", "_"): e and {**vars(e), "perplexity": e.perplexity} for name, e in measured.items()},
        "kept": report.kept,
        "tokens": report.tokens,
        "seconds": report.seconds,
    }
    show(as_json, data, f"{text}\n{out}: {report.tokens:,} tokens in {report.seconds:.0f} s")


def _show_plan(stages: Sequence[StagePlanned], teraflops: float, as_json: bool) -> None:
    heads = ["stage", "steps", "tokens", "trained", *stages[0].memory, "memory", "TFLOP", "hours"]
    rows = [
        [each.stage, f"{each.steps:,}", f"{each.tokens:,}", f"{each.trained:,}"]
        + [f"{size / 1e6:,.0f} MB" for size in (*each.memory.values(), each.bytes)]
        + [f"{each.flops / 1e12:,.1f}", f"{each.hours(teraflops):.2f}"]
        for each in stages
    ]
    data = [{**vars(each), "bytes": each.bytes, "hours": each.hours(teraflops)} for each in stages]
    show(as_json, {"stages": data}, table(rows, heads))
