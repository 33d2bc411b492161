"""The command line `t2r-run`, which runs exported graphs and needs this package and click only.

`t2r` of the toolchain includes these verbs.
"""

from __future__ import annotations

from collections.abc import Sequence

from t2r_runtime import __version__
from t2r_runtime.cli import program

VERBS: program.Verbs = {
    "generate": ("t2r_runtime.cli.generate", "Continue a text with an exported graph."),
    "chat": ("t2r_runtime.cli.chat", "Chat with the exported graph of a chat model."),
    "score": ("t2r_runtime.cli.score", "Measure nats per token of an exported graph on a text."),
    "translate": ("t2r_runtime.cli.translate", "Translate lines of text with an exported translator."),
    "serve": ("t2r_runtime.cli.serve", "Serve exported graphs over HTTP, with OpenAI's endpoints."),
}
t2r_run = program.Group(VERBS, help="Run exported graphs.", params=[program.version_option("t2r-runtime", __version__)])


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `t2r-run`; returns the exit code."""
    return program.run(t2r_run, "t2r-run", arguments)
