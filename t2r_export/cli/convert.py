"""`t2r convert`: swap softmax attention for linear attention."""

from __future__ import annotations

from pathlib import Path

import click

from t2r_export.cli.output import json_option, show, size
from t2r_export.config import Guard, LinearConfig


@click.command("convert")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--feature-size", type=int, required=True, metavar="K", help="Features of each head.")
@click.option(
    "--layers", default="all", show_default=True, help="all, none, every:N (each Nth stays softmax) or 0,2,5."
)
@click.option("--shared-features", is_flag=True, help="One feature map for q and k of a head.")
@click.option(
    "--positions",
    type=click.Choice(LinearConfig.POSITIONS),
    help="Rotary models: rotate q and k before the feature map (keep), or not (drop: the layers can be folded).",
)
@click.option("--guard", type=click.Choice(Guard.KINDS), default=Guard.kind, show_default=True, help="Denominator's.")
@click.option("--guard-eps", type=float, default=Guard.eps, show_default=True)
@click.option("--query-scale", type=float, default=1.0, show_default=True, help="Multiplies q before the feature map.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the new maps' weights.")
@json_option
def command(
    source: Path,
    out: Path,
    feature_size: int,
    layers: str,
    shared_features: bool,
    positions: str | None,
    guard: str,
    guard_eps: float,
    query_scale: float,
    seed: int,
    as_json: bool,
) -> None:
    """Swap softmax attention for linear attention in SOURCE (a model.pt or a Hugging Face folder); write OUT."""
    from t2r_export import checkpoint
    from t2r_export.convert import convert

    loaded = checkpoint.load(source)
    model = convert(
        loaded.model, feature_size, layers, shared_features, positions, Guard(guard, guard_eps), query_scale, seed
    )
    options = {
        "source": source.name,
        "source_sha256": loaded.sha256,
        "feature_size": feature_size,
        "layers": layers,
        "shared_features": shared_features,
        "seed": seed,
    }
    checkpoint.save(out, model, loaded.tokenizer, {**loaded.provenance, "convert": options})
    kinds = [mixer.kind for mixer in model.config.layers]
    written = out.stat().st_size
    show(
        as_json,
        {"out": out, "bytes": written, "layers": kinds, "config": model.config.to_dict()},
        f"{out}: {kinds.count('linear')} of {len(kinds)} layers are linear now, {size(written)}; "
        "the new feature maps know nothing yet: t2r finetune teaches them",
    )
