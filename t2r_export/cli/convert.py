"""`t2r convert`: replace softmax attention by another mixer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from t2r_export.cli.output import download_option, downloaded, force_option, note_each, size
from t2r_export.cli.spelled import Spelled
from t2r_export.config.layer_numbers import read_layers
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.options import options
from t2r_export.config.plain import to_plain
from t2r_export.config.students import reason, student_mixer
from t2r_export.config.uniform import CROSSES, MIXERS
from t2r_export.paths import check_outputs, existing_model
from t2r_runtime.cli.output import json_option, note, show
from t2r_runtime.errors import UserError

FILE = click.Path(path_type=Path)
F = TypeVar("F", bound=Callable[..., Any])
MIXER = Spelled("a mixer", {kind: options(each.config) for kind, each in MIXERS.items()})
CROSS = Spelled(
    "a mixer",
    {
        kind: {name: field for name, field in options(each.config).items() if not field.metadata.get("causal")}
        for kind, each in CROSSES.items()
    },
)


def mixer_options(function: F) -> F:
    """Add the options `--mixer` and `--layers`."""
    for option in (
        click.option(
            "--layers",
            default="all",
            show_default=True,
            help="Layers to convert: all, softmax (not windows), none, every:N (keep every Nth) or 0,2,5.",
        ),
        click.option(
            "--mixer",
            type=MIXER,
            default=LinearConfig.kind,
            show_default=True,
            is_eager=True,
            help=f"Mixer that replaces softmax attention, with options: {', '.join(MIXERS)}; KIND:help lists them.",
        ),
    ):
        function = option(function)
    return function


@click.command("convert")
@click.argument("source", type=FILE)
@click.argument("out", type=FILE)
@mixer_options
@click.option(
    "--cross",
    type=CROSS,
    is_eager=True,
    help="Translators: mixer of cross-attention; merged attends to prefix and source together. Default: linear with 32 "
    "features if --mixer is linear, else unchanged.",
)
@click.option("--encoder", is_flag=True, help="Translators: also convert the encoder's layers.")
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed of the new parameters.")
@download_option
@force_option
@json_option
def command(
    source: Path,
    out: Path,
    mixer: tuple[str, Mapping[str, Any]],
    layers: str,
    cross: tuple[str, Mapping[str, Any]] | None,
    encoder: bool,
    seed: int,
    download: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Replace softmax attention in SOURCE by another mixer; write OUT.

    SOURCE is a model.pt, a Hugging Face folder, a .gguf or hf:OWNER/NAME. For example --mixer
    linear:feature_size=32,gate=data.
    """
    kind, given = mixer
    if layers == "none" and not given:
        kind = LinearConfig.kind  # unused, and has no required options
    student_mixer(kind, given)  # before the model is read
    read_layers(layers)
    downloaded(source, download)
    check_outputs([("checkpoint", out)], [existing_model(source)], force)

    from t2r_export.checkpoints import checkpoint
    from t2r_export.convert import conversion, provenance, source_mixers

    loaded = checkpoint.load(source)
    config, chosen = student_mixer(kind, given, loaded.config)
    if "positions" in given and not any(heads.positions for heads in loaded.config.heads):
        raise UserError(
            "a model with rotary positions for positions",
            f"{given['positions']!r} for {loaded.config.positions_summary} positions",
            "leave it out",
        )
    of_cross, of_encoder = source_mixers(loaded.config, config, cross, encoder)
    made = conversion(loaded.model, config, layers, seed, of_cross, of_encoder)
    model = made.model
    note_each([*loaded.notes, *([reason(chosen)] if chosen and layers != "none" else [])])
    others = {"cross": of_cross, "encoder": of_encoder}
    recorded = {name: to_plain(other) for name, other in others.items() if other is not None}
    done = provenance(
        loaded, made.untrained, source=source.name, mixer=to_plain(config), layers=layers, seed=seed, **recorded
    )
    if out.exists() and not force:
        note(f"replacing {out}, an untrained conversion")
    checkpoint.save(out, model, loaded.tokenizer, done, loaded.source_tokenizer)
    kinds = [next((part.label for part in layer.mixers), "none") for layer in model.config.layers]
    written = out.stat().st_size
    share = made.added / sum(parameter.numel() for parameter in model.parameters())
    new = f"{made.added:,} new parameters ({share:.1%})" if made.added else "no new parameters"
    show(
        as_json,
        {"out": out, "bytes": written, "layers": kinds, "added": made.added, "config": model.config.to_dict()},
        f"{out}: {kinds.count(kind)} of {len(kinds)} layers converted to {kind}, {size(written)}; {new}"
        + ("; untrained: train it with t2r finetune" if made.untrained else ""),
    )
