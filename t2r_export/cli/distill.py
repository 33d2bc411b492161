"""`t2r distill`: a recurrent student of a pretrained model, from its conversion to a verified graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from t2r_export.cli.convert import mixer_options
from t2r_export.cli.fields import fields, flat
from t2r_export.cli.output import download_option, downloaded, table, with_error
from t2r_export.config.distill import DistillConfig
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.stages import parse_plan
from t2r_runtime.cli.output import json_option, note, show
from t2r_runtime.errors import UserError

FILE = click.Path(path_type=Path)
HOURS = 8.0


@click.command("distill")
@click.argument("model", type=FILE)
@click.argument("out", type=FILE)
@fields(FinetuneConfig, "data", "split", "length")
@mixer_options
@click.option(
    "--steps", metavar="N,N", help="Steps of transfer and distill. Default: 300,3000, or what --hours allows."
)
@click.option(
    "--hours",
    type=click.FloatRange(0, min_open=True),
    default=HOURS,
    show_default=True,
    help="Longest training, estimated from a measured step; longer ones get fewer steps.",
)
@click.option("--plan", "plans", is_flag=True, help="Print what the run needs, measured on this machine, and stop.")
@click.option("--anew", is_flag=True, help="Replace files in OUT that have another origin.")
@download_option
@json_option
def command(
    model: Path,
    out: Path,
    mixer: tuple[str, Mapping[str, Any]],
    layers: str,
    steps: str | None,
    hours: float,
    plans: bool,
    anew: bool,
    download: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Train a recurrent student of MODEL on a text, and write its verified graphs and a card into the folder OUT.

    MODEL is a model.pt, a Hugging Face folder, a .gguf or hf:OWNER/NAME. The stages are those of t2r convert, finetune,
    export, verify and quantize. The same command continues an interrupted run, and repeats no complete stage.
    """
    if not options["data"]:
        raise UserError("--data", "none", "name a text to train on")
    training = FinetuneConfig(
        model=out / "student.pt",
        output=out / "tuned.pt",
        plan=parse_plan(None, steps),
        **flat(FinetuneConfig, options),
    )
    config = DistillConfig(
        source=model,
        out=out,
        mixer=mixer,
        layers=layers,
        training=training,
        hours=None if steps else hours,
        anew=anew,
    )
    downloaded(model, download)
    config.check()

    from t2r_export.distill import distill, plan_distillation

    if plans:
        plan = plan_distillation(config, note)
        show(as_json, asdict(plan), "\n".join(plan.lines))
        return
    made = distill(config, note)
    teacher = made.training["teacher"]["nats"]
    rows = [
        [name, with_error(one["nats"], one["standard_error"]), f"{one['nats'] - teacher:+.4f}"]
        for name in ("teacher", "before", "after")
        if (one := made.training.get(name))
    ]
    graph = out / (made.quantized["graph"] or made.graph.name)
    lines = [table(rows, ["test part", "nats/token", "above the teacher"]), f"card: {made.card}"]
    lines.append(f'next:\n    t2r generate {graph} --prompt "Once upon a time"\n    t2r bench {made.graph} {graph}')
    show(as_json, asdict(made), "\n".join(lines))
