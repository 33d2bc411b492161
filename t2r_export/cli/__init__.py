"""The command line: `t2r VERB`, a module a verb; `t2r-export` is `t2r export`.

A verb's module holds a click command named `command` and imports torch, onnx and the stages only inside its body, so
that `--help` waits for none of them. Commands parse, call one library function and print; whatever else they seem to
need belongs into a library function with its own test. The verbs that run graphs are those of `t2r-run`.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from t2r_export.version import __version__
from t2r_runtime.cli import VERBS as VERBS_THAT_RUN
from t2r_runtime.cli import program

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
    **VERBS_THAT_RUN,
    "inspect": ("t2r_export.cli.inspect", "Describe a model or a graph: layers, states, sizes, metadata."),
    "bench": ("t2r_export.cli.bench", "Measure what graphs cost: time, memory, start-up, side by side."),
    "build": ("t2r_export.cli.build", "Make the models of a recipe: convert and finetune as it says."),
    "demo": ("t2r_export.cli.demo", "Export a small model, verify it, and let it generate a text."),
}
_VERSION = program.version_option("t2r-export", __version__)
t2r = program.Group(
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
