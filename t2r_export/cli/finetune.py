"""`t2r finetune`: teach a converted model what its teacher knows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from t2r_export.cli.given import check_given
from t2r_export.cli.output import eval_tokens_option, force_option, table, with_error
from t2r_export.cli.renamed import Verb
from t2r_export.cli.spelled import Spelled
from t2r_export.config.finetune import (
    EVAL_TOKENS,
    LENGTH,
    STAGES,
    START_POSITIONS,
    USUAL_STAGES,
    FinetuneConfig,
    parse_plan,
)
from t2r_export.config.quantize import SCHEMES, QuantizeConfig, takes
from t2r_runtime.cli.output import json_option, show

FILE = click.Path(path_type=Path)
INSIDE = ("accuracy_level", "budget")  # of a product, and of a choice before: nothing to train for
ROUNDING = Spelled(
    "a scheme",
    {
        name: {option: field for option, field in takes(name).items() if option not in INSIDE}
        for name, each in SCHEMES.items()
        if each.block_wise
    },
)
DEFAULTS = {field.name: field.default for field in dataclasses.fields(FinetuneConfig)}


def setting(name: str, text: str) -> Callable[[Any], Any]:
    """An option for a field of FinetuneConfig, with its type and default."""
    default = DEFAULTS[name]
    form: dict[str, Any] = {"is_flag": True} if default is False else {"type": type(default), "show_default": True}
    return click.option(f"--{name.replace('_', '-')}", default=default, help=text, **form)


@click.command("finetune", cls=Verb)
@click.argument("model", type=FILE)
@click.argument("out", type=FILE)
@click.option(
    "--data", type=FILE, multiple=True, help="Text, or token ids as .npy, to train a decoder on; repeat for more."
)
@click.option(
    "--pairs",
    type=FILE,
    multiple=True,
    help="Lines with a source, a tab and its translation, to train a translator on; repeat for more.",
)
@click.option("--valid", type=FILE, help="Pairs that validations choose by.  [default: a share of --pairs]")
@click.option("--test", type=FILE, help="Pairs that are measured before and after.  [default: a share of --pairs]")
@click.option(
    "--teacher",
    type=FILE,
    help="Model to learn from. Default: what MODEL was converted from, rebuilt from its weights.",
)
@click.option(
    "--stages",
    help=f"Training stages, of {', '.join(STAGES)}, in order.  [default: {USUAL_STAGES}, without those that have "
    "nothing to train in MODEL]",
)
@click.option("--steps", metavar="N,N", help="Number of steps per stage, or one for all. Default: the stage's own.")
@click.option(
    "--lr",
    "learning_rates",
    metavar="X,X",
    help="Peak learning rate per stage, or one for all. Default: the stage's own, for the model's width.",
)
@setting("batch", "Windows per step, over all processes.")
@setting("pair_tokens", "Tokens of pairs per step at most, both sides with their padding.")
@click.option(
    "--length",
    type=int,
    help="Window length in tokens, or the longest side of a pair; longer pairs are left out.  "
    f"[default: {LENGTH}, or the model's context if that is shorter, or the rows' of a .npy]",
)
@click.option(
    "--start-positions",
    type=int,
    help=f"Start windows at one of N positions, drawn at random; 0 is at 0.  [default: {START_POSITIONS} for gated "
    "layers behind a rotation, else 0]",
)
@click.option(
    "--for",
    "scheme",
    type=ROUNDING,
    is_eager=True,
    help="Train a student that is trained already through the rounding of w8 or w4, with the scheme's options, folded: "
    "the stage round. Its teacher is the student itself unless --teacher says another.",
)
@setting(
    "carried_states", "Share of the distill stage, its end, whose windows begin with the state of the text before them."
)
@setting(
    "window_dropout",
    "Share of a batch's rows that each stage begins without a hybrid layer's window where something is far; it falls "
    "to none at the stage's end.",
)
@setting("hidden", "Weight of the hidden-state loss beside the KL loss in the distill stage.")
@setting("cross_entropy", "Weight of the cross-entropy loss beside the KL loss in the distill stage.")
@setting("label_smoothing", "Share of each label that is spread over all tokens, in the loss of the task stage.")
@setting("dropout", "Chance of each number that a part of a block gives to be left out, in distill and task.")
@setting("kl_top", "Tokens that KL compares one by one, the teacher's most likely; the others as one. 0 is all tokens.")
@setting("lora", "Train low-rank adapters of q, k, v and o instead of all weights in the stages distill and task.")
@setting("lora_rank", "Rank of the low-rank adapters.")
@setting("lora_alpha", "Scale of the adapters' output, before it is divided by the rank.")
@setting("optimizer", "Optimizer: adamw, or muon for the matrices of the blocks.")
@setting("weight_decay", "Weight decay of all trained weights.")
@setting("valid_share", "Share of the text, before its test part, or of groups of pairs, that validations choose by.")
@setting(
    "test_share",
    "Share of the text, at its end, or of groups of pairs, that is measured before and after and read by nothing else.",
)
@setting("separator", "Line that ends a document in a text.")
@eval_tokens_option(
    None,
    "Tokens of the test part that the teacher, and the student before and after, are measured on; 0 is all.  "
    f"[default: as many as are trained on, at most {EVAL_TOKENS:,}]",
)
@setting("seed", "Seed of the order of the windows.")
@setting("device", "Device to train on: auto, cpu or cuda.")
@setting("precision", "Precision of the arithmetic: auto (bf16 on CUDA), float32 or bf16.")
@setting("checkpoint_every", "Steps between two saved states of the run.")
@setting("validate_every", "Steps between two validations on the valid part.")
@click.option("--resume", is_flag=True, help="Resume an interrupted run; the result is the same.")
@click.option("--log", type=FILE, help="File to log to, as JSON lines. Default: OUT.jsonl.")
@force_option
@json_option
def command(
    model: Path,
    out: Path,
    stages: str | None,
    steps: str | None,
    learning_rates: str | None,
    scheme: tuple[str, Mapping[str, Any]] | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Train MODEL, fresh from `t2r convert`, and write OUT.

    On several devices: accelerate launch -m t2r_export finetune MODEL OUT …
    """
    rounding = None if scheme is None else QuantizeConfig(scheme=scheme[0], **scheme[1])
    plan = parse_plan("round" if scheme and stages is None else stages, steps, learning_rates)
    if not options["data"] and not options["pairs"]:
        raise click.UsageError("Missing option '--data', or '--pairs' for a translator.")
    config = FinetuneConfig(model=model, output=out, plan=plan, rounding=rounding, **options)
    check_given(vars(config))
    config.check_files()

    from accelerate import PartialState

    from t2r_export.finetune import finetune

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
