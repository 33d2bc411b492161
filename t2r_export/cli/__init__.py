"""The command line: `t2r VERB`, a module a verb; `t2r-export` is `t2r export`.

A verb's module holds a click command named `command` and imports torch, onnx and the stages only inside its body, so
that `--help` waits for none of them. Commands parse, call one library function and print; whatever else they seem to
need belongs into a library function with its own test.
"""

from __future__ import annotations

import copy
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click
from click.shell_completion import shell_complete

from t2r_export.cli import exit as errors
from t2r_export.cli import numbers, startup
from t2r_export.version import __version__
from t2r_runtime.errors import did_you_mean

VERBS = {  # verb: (module, help in one line)
    "convert": ("t2r_export.cli.convert", "Swap softmax attention for linear attention in a pretrained model."),
    "choose": ("t2r_export.cli.choose", "Convert each layer to what costs least under a budget of state."),
    "finetune": ("t2r_export.cli.finetune", "Train a converted model to match its teacher."),
    "sample": ("t2r_export.cli.sample", "Sample text from a teacher to train its students on."),
    "save": ("t2r_export.cli.save", "Write a softmax translator as a folder that transformers loads."),
    "evaluate": ("t2r_export.cli.evaluate", "Measure how well a model predicts a text, at several lengths."),
    "plot": ("t2r_export.cli.plot", "Draw the curves of training runs, or write them as CSV."),
    "export": ("t2r_export.cli.export", "Write a model as a recurrent ONNX graph (t2r-export is the same)."),
    "quantize": ("t2r_export.cli.quantize", "Quantize the weights of an exported graph."),
    "compile": ("t2r_export.cli.compile", "Compile a graph for an accelerator ahead of time."),
    "pack": ("t2r_export.cli.pack", "Copy a graph to a folder for a web server, with a page that runs it."),
    "verify": ("t2r_export.cli.verify", "Prove that a graph is still the model that it was exported from."),
    "parity-matrix": (
        "t2r_export.cli.parity_matrix",
        "Verify it on every provider and in every precision, as a table.",
    ),
    "generate": ("t2r_export.cli.generate", "Continue a text with an exported graph."),
    "chat": ("t2r_export.cli.chat", "Talk with the exported graph of a chat model."),
    "score": ("t2r_export.cli.score", "Measure how well an exported graph predicts a text."),
    "translate": ("t2r_export.cli.translate", "Translate lines of text with an exported translator."),
    "inspect": ("t2r_export.cli.inspect", "Describe a model or a graph: layers, states, sizes, metadata."),
    "bench": ("t2r_export.cli.bench", "Measure what graphs cost: time, memory, start-up, side by side."),
    "build": ("t2r_export.cli.build", "Make the models of a recipe: convert and finetune as it says."),
    "demo": ("t2r_export.cli.demo", "Export a small model, verify it, and let it generate a text."),
}


class LazyGroup(click.Group):
    """A group that knows its verbs from a table and imports a verb's module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _load(cmd_name) if cmd_name in VERBS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        verb = args[0]
        if verb not in VERBS and verb[:1] != "-" and not ctx.resilient_parsing:
            do = did_you_mean(verb, VERBS, "")
            ctx.fail(f"No such command {verb!r}.{f' {do.capitalize()}' if do else ''}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, text) for verb, (_, text) in VERBS.items()])


def _load(verb: str) -> click.Command:
    module, text = VERBS[verb]
    command = importlib.import_module(module).command
    assert isinstance(command, click.Command)
    command.short_help = text
    numbers.bound(command)
    return command


def _version_option(command: click.Command) -> click.Command:
    def show(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
        if asked:
            from t2r_runtime.contract.signature import CONTRACT_VERSION

            click.echo(f"t2r-export {__version__}, graph contract {CONTRACT_VERSION}")
            context.exit()

    form: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": show}
    return click.option("--version", help="Show the version and exit.", **form)(command)


@_version_option
@click.group(cls=LazyGroup)
def t2r() -> None:
    """Pretrained Transformers as recurrent decoders in ONNX: convert, finetune, export, verify, run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `t2r`; returns the exit code."""
    return _run(t2r, "t2r", arguments)


def export_main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `t2r-export`; returns the exit code."""
    command = copy.copy(_load("export"))
    command.params = list(command.params)  # its own list: `t2r export` has no --version
    return _run(_version_option(command), "t2r-export", arguments)


def _run(command: click.Command, program: str, arguments: Sequence[str] | None) -> int:
    if arguments is not None:
        return errors.run(command, program, arguments)
    variable = f"_{program}_COMPLETE".replace("-", "_").upper()
    if variable in os.environ:  # a shell asks what could be typed, or how it may ask
        return shell_complete(command, {}, program, variable, os.environ[variable])
    code = errors.run(command, program, sys.argv[1:], last=True)
    startup.ending()
    return code
