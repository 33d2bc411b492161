"""Check that options are given together with the options they require."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from t2r_export.config.needs import NEEDS, check_needs


def check_given(options: dict[str, Any] | None = None) -> None:
    """Raise UserError if an option was given without one that it requires; see t2r_export.config.needs.

    Args:
        options: values to check the requirements against; None: those of the command.
    """
    context = click.get_current_context()
    typed = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    spelled = {str(each.name): each.opts[0] for each in context.command.params}
    check_needs(NEEDS[str(context.command.name)], context.params if options is None else options, typed, spelled)
