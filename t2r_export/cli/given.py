"""What was typed, and whether each option of it has what it needs beside it."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from t2r_export.config.needs import NEEDS, check_needs


def check_given(options: dict[str, Any] | None = None) -> None:
    """Raise UserError if an option was typed without another that it needs: t2r_export.config.needs.

    Args:
        options: the values that needs are looked up in; None: those of the command.
    """
    context = click.get_current_context()
    typed = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    spelled = {str(each.name): each.opts[0] for each in context.command.params}
    check_needs(NEEDS[str(context.command.name)], context.params if options is None else options, typed, spelled)
