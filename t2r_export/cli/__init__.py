"""The command line: `t2r VERB`, a module a verb; `t2r-export` is `t2r export`.

A verb's module holds a click command named `command` and imports torch, onnx and the stages only inside its body, so
that `--help` waits for none of them. Commands parse, call one library function and print; whatever else they seem to
need belongs into a library function with its own test. The verbs that run graphs are those of `t2r-run`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import click

from t2r_export.cli import renamed
from t2r_export.version import __version__
from t2r_runtime.cli import VERBS as VERBS_THAT_RUN
from t2r_runtime.cli import program

VERBS = {  # verb: (module, help in one line)
    "convert": ("t2r_export.cli.convert", "Swap softmax attention for linear attention in a pretrained model."),
    "choose": ("t2r_export.cli.choose", "Convert each layer to what costs least under a budget of state."),
    "finetune": ("t2r_export.cli.finetune", "Train a converted model to match its teacher."),
    "sample": ("t2r_export.cli.sample", "Sample text from a teacher to train its students on."),
    "save": ("t2r_export.cli.save", "Write a model or a graph in another form."),
    "evaluate": ("t2r_export.cli.evaluate", "Measure how well a model or a graph predicts a text."),
    "export": ("t2r_export.cli.export", "Write a model as a recurrent ONNX graph (t2r-export is the same)."),
    "quantize": ("t2r_export.cli.quantize", "Quantize the weights of an exported graph."),
    "verify": ("t2r_export.cli.verify", "Prove that a graph, or every graph of a model, is still the model."),
    **{verb: line for verb, line in VERBS_THAT_RUN.items() if verb != "score"},  # which is evaluate of a graph
    "inspect": ("t2r_export.cli.inspect", "Describe a model or a graph: layers, states, sizes, metadata."),
    "bench": ("t2r_export.cli.bench", "Measure what graphs cost: time, memory, start-up, side by side."),
    "build": ("t2r_export.cli.build", "Make the models of a recipe: convert and finetune as it says."),
    "demo": ("t2r_export.cli.demo", "Export a small model, verify it, and let it generate a text."),
}


class _Group(program.Group):
    """The verbs, and lines for those that have other names now."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in renamed.VERBS:
            ctx.fail(f"{args[0]} is `{renamed.VERBS[args[0]]}` now")
        return super().resolve_command(ctx, args)


_VERSION = program.version_option("t2r-export", __version__)
t2r = _Group(
    VERBS,
    help="Pretrained Transformers as recurrent decoders in ONNX: convert, finetune, export, verify, run.",
    params=[_VERSION],
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `t2r`; returns the exit code."""
    return program.run(t2r, "t2r", arguments)


def export_main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `t2r-export`; returns the exit code."""
    command = copy.copy(program.load(*VERBS["export"]))
    command.params = [*command.params, _VERSION]  # its own list: `t2r export` has no --version
    return program.run(command, "t2r-export", arguments)
