"""Former names of verbs and options; each gets an error with the new name."""

from __future__ import annotations

from collections.abc import Iterable

import click

from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.options import within

_MIXER = (  # fields of mixers, formerly options
    "conv feature-map feature-size ffn-size fixed-sigma frequency-scale gate memory merge moving-average "
    "normalizer output-gate positions query-scale ramp redraw rotary-size shared-features sigma sinks span span-loss "
    "update-rule window"
)

VERBS = {
    "score": "t2r evaluate GRAPH TEXT",
    "compile": "t2r save GRAPH OUT --as compiled",
    "pack": "t2r save GRAPH FOLDER --as web",
    "parity-matrix": "t2r verify MODEL",
    "plot": "t2r_export.training.curves, in Python",
}
_SCHEME = ("block-size", "asymmetric", "accuracy-level", "head-bits", "embedding-bits")
_OTHERS = ("calibrate-steps", "activation-bits", "budget")


def _inside(option: str, kind: str, names: Iterable[str]) -> dict[str, str]:
    """Former options that are now fields of a kind."""
    return {f"--{name}": f"{option} {kind}:{name.replace('-', '_')}=VALUE" for name in names}


OPTIONS: dict[str, dict[str, str]] = {  # by verb
    "convert": {
        **_inside("--mixer", "KIND", _MIXER.split()),
        "--guard": "--mixer KIND:guard.kind=VALUE",
        "--guard-eps": "--mixer KIND:guard.eps=VALUE",
        "--cross-feature-size": "--cross linear:feature_size=K, or --cross softmax for 0",
        "--merged": "--cross merged, or --cross merged:shared=true",
        "--merge-feed-forward": "--cross merged:feed_forward=true",
        **dict.fromkeys(["--auto", "--budget", "--data", "--state-length", "--trial-steps"], "the verb t2r choose"),
        **{"--try": "t2r choose --mixer", "--text": "t2r choose --data", "--length": "t2r choose --state-length"},
    },
    "export": {
        **_inside("--quantize", "SCHEME", _SCHEME + _OTHERS),
        **_inside("--target", "TARGET", ("state-layout", "float16-safe", "source-length")),
    },
    "bench": {
        **{f"--{name}": f"--measure {name}=VALUE" for name in ("steps", "prompt", "rounds", "starts", "beam")},
        "--batch-size": "--measure batch=VALUE",
    },
    "quantize": _inside("--scheme", "SCHEME", _SCHEME + _OTHERS),
    "evaluate": {
        **{f"--{part}-share": f"--split {part}=VALUE" for part in ("valid", "test")},
        "--separator": "--split separator=VALUE",
        "--beam": "--bleu BEAM",
    },
    "finetune": {
        **_inside("--for", "SCHEME", _SCHEME),
        **{
            f"--{name.replace('_', '-')}": f"{place}=VALUE"
            for name, place in within(FinetuneConfig).items()
            if name not in ("warmup", "clip", "accumulate")
        },
        "--weight-decay": "--optimizer adamw:weight_decay=VALUE",
    },
    "save": {**_inside("--as", "t2r", ["weights"]), **_inside("--as", "web", ["page", "peer"])},
}


class Verb(click.Command):
    """A command that reports the new names of its former options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            new = OPTIONS.get(str(self.name), {}).get(error.option_name)
            if new is None:
                raise
            raise click.UsageError(f"{error.option_name} is {new} now", ctx) from error
