"""The command line `t2r VERB`, one module per verb; `t2r-export` is `t2r export`.

A verb's module holds a click command named `command`, which imports torch, onnx and the pipeline stages in its body so
that `--help` stays fast. Commands parse, call one library function and print. All verbs of `t2r-run` are among them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from t2r_export.version import __version__
from t2r_runtime.cli import VERBS as VERBS_THAT_RUN
from t2r_runtime.cli import program

VERBS = {  # verb: (module, help in one line)
    "distill": ("t2r_export.cli.distill", "Make a recurrent student of a model, and its verified graphs, in a folder."),
    "convert": ("t2r_export.cli.convert", "Swap softmax attention for linear attention in a pretrained model."),
    "choose": ("t2r_export.cli.choose", "Choose the mixer of each layer within a state size budget."),
    "prune": ("t2r_export.cli.prune", "Remove the least needed layers, heads, features, state channels or ranks."),
    "tokenize": ("t2r_export.cli.tokenize", "Tokenize a text into the cache, or show what the cache holds."),
    "finetune": ("t2r_export.cli.finetune", "Train a converted model to match its teacher."),
    "sample": ("t2r_export.cli.sample", "Sample training text from a teacher model."),
    "save": ("t2r_export.cli.save", "Write a model or a graph in another format."),
    "evaluate": ("t2r_export.cli.evaluate", "Measure nats per token or BLEU of a model or a graph."),
    "export": ("t2r_export.cli.export", "Export a model as a recurrent ONNX graph (same as t2r-export)."),
    "quantize": ("t2r_export.cli.quantize", "Quantize the weights of an exported graph."),
    "verify": ("t2r_export.cli.verify", "Compare a graph with its model."),
    **VERBS_THAT_RUN,
    "inspect": ("t2r_export.cli.inspect", "Describe a model or a graph: layers, states, sizes, metadata."),
    "bench": ("t2r_export.cli.bench", "Benchmark graphs side by side: latency, memory, start-up."),
    "build": ("t2r_export.cli.build", "Convert and finetune the models of a recipe."),
    "demo": ("t2r_export.cli.demo", "Export a small model, verify it and generate a text."),
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
    command.params = [*command.params, _VERSION]  # a new list: `t2r export` has no --version
    return program.run(command, "t2r-export", arguments)
