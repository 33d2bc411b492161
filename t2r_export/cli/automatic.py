"""`t2r convert --auto`: the part of the verb that measures what each layer should become."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from t2r_export.cli.output import note, note_each, read_bytes, show, size, table
from t2r_export.config.plain import to_plain
from t2r_export.config.students import reason, student_mixer
from t2r_export.paths import check_outputs, existing_model
from t2r_runtime.errors import UserError
from t2r_runtime.files import existing_file

if TYPE_CHECKING:
    from t2r_export.training.layer_choice import Option

TRIED = tuple(f"linear:feature_size={count}" for count in (8, 16, 32, 64))


def auto_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that belong to `--auto`, given to the command as the names that `convert_automatically` takes."""
    options = [
        click.option(
            "--auto", is_flag=True, help="Choose each layer's mixer by measurement, under --budget; needs --data."
        ),
        click.option(
            "--budget",
            metavar="BYTES",
            help="With --auto: largest state per sequence, in bytes; 64k and 1.5M are understood.",
        ),
        click.option(
            "--data", type=click.Path(path_type=Path), help="With --auto: text to train on and to measure on."
        ),
        click.option(
            "--state-length",
            type=click.IntRange(1),
            help="With --auto: tokens at which the size of growing states is counted.  [default: 2048]",
        ),
        click.option(
            "--try",
            "tried",
            multiple=True,
            metavar="KIND:NAME=VALUE,…",
            help=f"With --auto: mixer to try; repeat for more.  [default: {', '.join(TRIED)}]",
        ),
        click.option(
            "--trial-steps",
            type=click.IntRange(0),
            help="With --auto: training steps of the transfer stage per mixer tried, and of the gates.  [default: 300]",
        ),
        click.option(
            "--jointly",
            is_flag=True,
            help="With --auto: choose by gates between the mixers of each layer that are trained all together, in "
            "place of measuring one layer at a time.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def read_mixer(text: str) -> tuple[str, dict[str, Any]]:
    """`linear:feature_size=16` -> the mixer's kind and its options."""
    kind, _, rest = text.partition(":")
    values: dict[str, Any] = {}
    for part in rest.split(",") if rest else []:
        name, equals, value = part.partition("=")
        if not equals:
            raise UserError("a mixer as KIND:NAME=VALUE,NAME=VALUE", repr(text), "correct --try")
        try:
            values[name.replace("-", "_")] = json.loads(value)
        except json.JSONDecodeError:
            values[name.replace("-", "_")] = value
    return kind, values


def convert_automatically(
    source: Path,
    out: Path,
    budget: str | None,
    data: Path | None,
    state_length: int | None,
    tried: tuple[str, ...],
    trial_steps: int | None,
    jointly: bool,
    seed: int,
    force: bool,
    as_json: bool,
) -> None:
    """Choose, write the model and print what was measured."""
    if budget is None or data is None:
        raise click.UsageError("--auto needs --budget and --data.")
    room, length = read_bytes(budget), state_length or 2048
    asked = [read_mixer(item) for item in tried or TRIED]
    for kind, values in asked:
        student_mixer(kind, values)  # before the model is read
    existing_file(data, "a text or a .npy to measure on")
    check_outputs([("checkpoint", out)], [existing_model(source), data], force)

    from t2r_export.checkpoints import checkpoint
    from t2r_export.convert import convert, provenance
    from t2r_export.data.corpus import read_corpus
    from t2r_export.training.layer_choice import Trial, choose

    trial = Trial(Trial.steps if trial_steps is None else trial_steps, jointly, seed=seed)
    loaded = checkpoint.load(source)
    made = [student_mixer(kind, values, loaded.config) for kind, values in asked]
    mixers = [mixer for mixer, _ in made]
    note_each([*loaded.notes, *dict.fromkeys(reason(chosen) for _, chosen in made if chosen)])
    corpus = read_corpus([data], loaded.tokenizer, loaded.config)
    candidates = (convert(loaded.model, mixer, seed=seed) for mixer in mixers)
    found = choose(loaded.model, candidates, corpus, room, length, trial, note)
    layers = [{"layer": o.layer, "mixer": to_plain(o.mixer), **_measured(o), "bytes": o.bytes} for o in found.options]
    report = {
        "budget": room,
        "length": length,
        "state_bytes": found.bytes,
        "teacher_nats": found.teacher_nats,
        "nats": found.nats,
        "tokens": found.tokens,
        "options": layers,
        "chosen": [found.options.index(option) for option in found.chosen],
    }
    auto = {**report, "trial_steps": trial.steps, "jointly": jointly}
    done = provenance(loaded, source=source.name, text_sha256=corpus.sha256, seed=seed, auto=auto)
    checkpoint.save(out, found.model, loaded.tokenizer, done, loaded.source_tokenizer)
    # the layers that suffer most first
    worst = {layer: max(o.cost for o in found.options if o.layer == layer) for layer in range(len(found.chosen))}
    names = [found.options[0].mixer.kind, *(tried or TRIED)]
    of_layers = [[option for option in found.options if option.layer == layer] for layer in range(len(found.chosen))]
    rows = [
        [layer, *map(_cell, of_layers[layer]), names[of_layers[layer].index(found.chosen[layer])]]
        for layer in sorted(worst, key=lambda layer: -worst[layer])
    ]
    expected = "" if jointly else f" ({sum(option.cost for option in found.chosen):+.4f} were expected)"
    show(
        as_json,
        {"out": out, "config": found.model.config.to_dict(), **report},
        f"{table(rows, ['layer', *names, 'chosen'])}\n"
        f"{out}: {size(found.bytes)} of {size(room)} per sequence at {length} tokens; {found.nats:.4f} nats/token "
        f"before finetuning, {found.nats - found.teacher_nats:+.4f} above the teacher{expected}",
    )


def _measured(option: Option) -> dict[str, float]:
    return {"increase": option.cost} if option.gate is None else {"gate": option.gate}


def _cell(option: Option) -> str:
    return f"{option.cost:+.4f}" if option.gate is None else f"{option.gate:.2f}"
