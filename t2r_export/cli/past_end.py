"""The option `--past-end`: what is beyond the last position of a model, or in place of positions without end."""

from __future__ import annotations

import click

from t2r_export.config.export import check_past_end


def _checked(context: click.Context, parameter: click.Parameter, value: str) -> str:
    check_past_end(value)
    return value


option = click.option(
    "--past-end",
    metavar="refuse|clamp|wrap:N",
    default="refuse",
    show_default=True,
    callback=_checked,
    help="What a step past the end of a learned position table does: refuse, or clamp to the last position. With "
    "wrap:N absolute positions of every kind are modulo N, so that none is new to the model.",
)
