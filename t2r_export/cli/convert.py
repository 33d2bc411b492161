"""`t2r convert`: swap softmax attention for another mixer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from t2r_export.cli.automatic import auto_options, convert_automatically
from t2r_export.cli.given import check_given
from t2r_export.cli.output import force_option, json_option, note, note_each, show, size
from t2r_export.config.layer_numbers import read_layers
from t2r_export.config.mixers import Guard, LinearConfig
from t2r_export.config.mixers.linear import usual_guard
from t2r_export.config.plain import to_plain
from t2r_export.config.students import reason, student_mixer
from t2r_export.config.uniform import MIXERS, MergeConfig
from t2r_export.paths import check_outputs, existing_model
from t2r_runtime.errors import UserError

KINDS = list(MIXERS)  # mixers that softmax layers can be converted to; softmax itself can gain a memory
TYPES = {"int": int, "float": float, "str": str, "int | None": int}


def mixer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option for every field that a mixer's config calls one. What is not given stays None."""
    fields: dict[str, dict[str, dataclasses.Field[Any]]] = {}  # by the option's name and the mixer's kind
    for kind in KINDS:
        for field in dataclasses.fields(MIXERS[kind].config):
            if "help" in field.metadata:
                fields.setdefault(field.name, {})[kind] = field
    for name, kinds in reversed(fields.items()):
        field = next(iter(kinds.values()))
        text = f"{field.metadata['help']}  [{', '.join(kinds)}; {_defaults(kinds)}]"
        choices = field.metadata["choices"]
        value: Any = click.Choice(choices) if choices else TYPES.get(str(field.type))
        form: dict[str, Any] = {"is_flag": True} if field.type == "bool" else {"type": value}
        command = click.option(f"--{name.replace('_', '-')}", name, default=None, help=text, **form)(command)
    return command


def _defaults(kinds: Mapping[str, dataclasses.Field[Any]]) -> str:
    """What holds where an option is not given: one word where all kinds agree."""
    texts = {
        kind: "needed" if field.metadata["usual"] is dataclasses.MISSING else f"default: {field.metadata['usual']}"
        for kind, field in kinds.items()
    }
    words = set(texts.values())
    return words.pop() if len(words) == 1 else ", ".join(f"{kind} {word}" for kind, word in texts.items())


@click.command("convert")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--mixer",
    type=click.Choice(KINDS),
    default=LinearConfig.kind,
    show_default=True,
    help="Mixer that replaces softmax attention.",
)
@click.option(
    "--layers",
    default="all",
    show_default=True,
    help="Layers to convert: all, none, every:N (each Nth stays softmax) or 0,2,5.",
)
@mixer_options
@click.option(
    "--guard",
    type=click.Choice(Guard.KINDS),
    default=None,
    help=f"How the denominator is kept from zero.  [default: {Guard.kind}]",
)
@click.option(
    "--guard-eps",
    type=float,
    default=None,
    help=f"Smallest denominator (clamp), or what is added to it (add).  [default: {Guard.eps}, "
    f"with positions after {usual_guard('after').eps:g}]",
)
@click.option(
    "--cross-feature-size",
    type=int,
    default=None,
    help="Translators: features per head of the layers that look at the source; 0 leaves those softmax.  [default: 32]",
)
@click.option(
    "--merged",
    type=click.Choice(["own", "shared"]),
    help="Translators: let the layers read prefix and source as one, with keys and values of the source by projections "
    "of their own or by the prefix's.",
)
@click.option(
    "--merge-feed-forward",
    is_flag=True,
    help="With --merged and --mixer softmax: take the feed-forward into the layer too (CAN).",
)
@click.option("--encoder", is_flag=True, help="Translators: convert the encoder's layers too.")
@auto_options
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the new parameters' random weights.")
@force_option
@json_option
def command(
    source: Path,
    out: Path,
    mixer: str,
    layers: str,
    guard: str | None,
    guard_eps: float | None,
    cross_feature_size: int | None,
    merged: str | None,
    merge_feed_forward: bool,
    encoder: bool,
    auto: bool,
    budget: str | None,
    data: Path | None,
    state_length: int | None,
    tried: tuple[str, ...],
    trial_steps: int | None,
    jointly: bool,
    seed: int,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Swap softmax attention for another mixer in SOURCE (a model.pt or a Hugging Face folder);
    write OUT.

    With --auto, each layer gets the mixer that costs the fewest nats per token under a budget of state; softmax may
    stay.
    """
    check_given()
    given = {name: value for name, value in options.items() if value is not None}
    of_guard = {name: value for name, value in (("kind", guard), ("eps", guard_eps)) if value is not None}
    given |= {"guard": of_guard} if of_guard else {}
    if auto:
        if given or layers != "all" or cross_feature_size is not None or merged or encoder:
            raise click.UsageError("--auto chooses mixers and layers by itself; name mixers to try with --try.")
        convert_automatically(
            source, out, budget, data, state_length, tried, trial_steps, jointly, seed, force, as_json
        )
        return
    if layers == "none" and not given:
        mixer = LinearConfig.kind  # no layer becomes one, whatever it needs
    into = None if merged is None else MergeConfig(shared=merged == "shared", feed_forward=merge_feed_forward)
    student_mixer(mixer, given)  # before the model is read
    read_layers(layers)
    check_outputs([("checkpoint", out)], [existing_model(source)], force)
    if out.exists() and not force:
        note(f"{out} is replaced: an untrained conversion, which can be made again")

    from t2r_export.checkpoints import checkpoint
    from t2r_export.convert import convert, provenance, source_mixers

    loaded = checkpoint.load(source)
    config, chosen = student_mixer(mixer, given, loaded.config)
    if "positions" in given and not loaded.config.rotates:
        raise UserError(
            "positions only for a rotary model",
            f"{given['positions']!r} for {loaded.config.position} positions",
            "leave it out",
        )
    cross, of_encoder = source_mixers(loaded.config, config, cross_feature_size, encoder, into)
    model = convert(loaded.model, config, layers, seed, cross, of_encoder)
    note_each([*loaded.notes, *([reason(chosen)] if chosen and layers != "none" else [])])
    others = {"cross": cross, "encoder": of_encoder}
    said = {name: to_plain(made) for name, made in others.items() if made is not None}
    done = provenance(loaded, source=source.name, mixer=to_plain(config), layers=layers, seed=seed, **said)
    checkpoint.save(out, model, loaded.tokenizer, done, loaded.source_tokenizer)
    kinds = [layer.mixers[0].label for layer in model.config.layers]
    written = out.stat().st_size
    new = dict(model.named_parameters()).keys() - dict(loaded.model.named_parameters()).keys()
    show(
        as_json,
        {"out": out, "bytes": written, "layers": kinds, "config": model.config.to_dict()},
        f"{out}: {kinds.count(mixer)} of {len(kinds)} layers are {mixer} now, {size(written)}; "
        + ("their new parameters are untrained: t2r finetune trains them" if new else "they have no new parameters"),
    )
