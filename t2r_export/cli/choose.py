"""`t2r choose`: measure candidate mixers per layer, and convert each layer to the best that fits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from t2r_export.cli.convert import MIXER
from t2r_export.cli.output import force_option, note_each, size, table
from t2r_export.config.options import read_bytes, written
from t2r_export.config.plain import to_plain
from t2r_export.config.students import reason, student_mixer
from t2r_export.paths import check_outputs, existing_model, text_files
from t2r_runtime.cli.output import json_option, note, show

FILE = click.Path(path_type=Path)
TRIED = [("linear", {"feature_size": count}) for count in (8, 16, 32, 64)]


@click.command("choose")
@click.argument("source", type=FILE)
@click.argument("out", type=FILE)
@click.option(
    "--budget",
    metavar="BYTES",
    required=True,
    help="Maximum state size per sequence, in bytes, such as 64k or 1.5M.",
)
@click.option("--data", type=FILE, required=True, help="Text for training and measuring.")
@click.option(
    "--mixer",
    "mixers",
    type=MIXER,
    multiple=True,
    is_eager=True,
    help="Candidate mixer, as for t2r convert. Repeatable.  [default: linear with 8, 16, 32 and 64 features]",
)
@click.option(
    "--state-length",
    type=click.IntRange(1),
    default=2048,
    show_default=True,
    help="Tokens at which growing states are measured.",
)
@click.option(
    "--trial-steps",
    type=click.IntRange(0),
    default=300,
    show_default=True,
    help="Training steps of the transfer stage per candidate.",
)
@force_option
@json_option
def command(
    source: Path,
    out: Path,
    budget: str,
    data: Path,
    mixers: tuple[tuple[str, Mapping[str, Any]], ...],
    state_length: int,
    trial_steps: int,
    force: bool,
    as_json: bool,
) -> None:
    """Convert each layer of SOURCE to the mixer that minimizes nats per token within the state size budget; write OUT.

    Layers may keep softmax attention.
    """
    room, kinds = read_bytes(budget), list(mixers) or TRIED
    for kind, values in kinds:
        student_mixer(kind, values)  # before the model is read
    text_files([data])
    check_outputs([("checkpoint", out)], [existing_model(source), data], force)

    from t2r_export.checkpoints import checkpoint
    from t2r_export.convert import convert, provenance
    from t2r_export.data.corpus import read_corpus
    from t2r_export.training.layer_choice import Trial, choose

    loaded = checkpoint.load(source)
    made = [student_mixer(kind, values, loaded.config) for kind, values in kinds]
    note_each([*loaded.notes, *dict.fromkeys(reason(chosen) for _, chosen in made if chosen)])
    corpus = read_corpus([data], loaded.tokenizer, loaded.config)
    candidates = (convert(loaded.model, mixer) for mixer, _ in made)
    found = choose(loaded.model, candidates, corpus, room, state_length, Trial(trial_steps), note)
    report = {
        "budget": room,
        "length": state_length,
        "state_bytes": found.bytes,
        "teacher_nats": found.teacher_nats,
        "nats": found.nats,
        "tokens": found.tokens,
        "options": [
            {"layer": o.layer, "mixer": to_plain(o.mixer), "increase": o.cost, "bytes": o.bytes} for o in found.options
        ],
        "chosen": [found.options.index(option) for option in found.chosen],
    }
    auto = {**report, "trial_steps": trial_steps}
    done = provenance(loaded, source=source.name, text_sha256=corpus.sha256, seed=0, auto=auto)
    checkpoint.save(out, found.model, loaded.tokenizer, done, loaded.source_tokenizer)
    names = [found.options[0].mixer.kind, *(f"{kind}:{written(values)}" if values else kind for kind, values in kinds)]
    of_layers = [[option for option in found.options if option.layer == layer] for layer in range(len(found.chosen))]
    rows = [
        [layer, *(f"{option.cost:+.4f}" for option in options), names[options.index(found.chosen[layer])]]
        for layer, options in sorted(enumerate(of_layers), key=lambda row: -max(option.cost for option in row[1]))
    ]
    show(
        as_json,
        {"out": out, "config": found.model.config.to_dict(), **report},
        f"{table(rows, ['layer', *names, 'chosen'])}\n"
        f"{out}: {size(found.bytes)} of {size(room)} per sequence at {state_length} tokens; {found.nats:.4f} "
        f"nats/token before finetuning, {found.nats - found.teacher_nats:+.4f} above the teacher "
        f"({sum(option.cost for option in found.chosen):+.4f} were expected)",
    )
