"""Nats per token with a text's neighbours beside a model, for constant shares and for a trained gate.

    python benchmarks/neighbors.py [--entries 20000] [--fit 4000] [--test 4000] [--k 32] [--temperature 10]
        [--save benchmarks/results/neighbors.json] [--page docs/retrieval.md]

The datastore is the beginning of the text's train part. The gate is trained on the valid part, and everything is
measured on the test part, read from the start of each without a reset.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import builds
from comparison.data import data_folder
from comparison.tables import Table
from t2r_export.checkpoints import checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.data.corpus import read_corpus
from t2r_export.export import export
from t2r_runtime import Datastore, Decoder, Retrieving
from t2r_runtime.decode.gate import Gate
from t2r_runtime.decode.score import score

SHARES = (0.0, 0.05, 0.1, 0.25, 0.5)


def measured(options: argparse.Namespace, graph: Path) -> Table:
    """Export the model to `graph`, and measure it."""
    loaded = checkpoint.load(options.model)
    export(loaded, graph, ExportConfig(output_hidden=True, context=f"{options.context}:slide"))
    decoder = Decoder(graph)
    corpus = read_corpus([options.text], loaded.tokenizer, loaded.config)
    parts = ((corpus.train, options.entries), (corpus.valid, options.fit), (corpus.test, options.test))
    text, valid, test = (part[: count + 1] for part, count in parts)
    store = Datastore.of_text(decoder, text)

    def nats(share: float | Gate) -> str:
        return f"{-score(Retrieving(decoder, store, options.k, share, options.temperature), test).mean():.3f}"

    gate = Retrieving(decoder, store, options.k, 0.0, options.temperature).fit_gate(valid)
    rows = [[f"λ = {share:g}" if share else "the model alone", nats(share)] for share in SHARES]
    return Table("", ["share of the neighbours", "nats/token"], [*rows, ["a gate, λ = σ(w·h + b)", nats(gate)]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=data_folder() / "checkpoints" / "stories260K")
    parser.add_argument("--text", type=Path, default=data_folder() / "text" / "tales.txt")
    parser.add_argument("--context", type=int, default=128, help="tokens that the model's window keeps")
    for name, count in (("entries", 20000), ("fit", 4000), ("test", 4000), ("k", 32)):
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--temperature", type=float, default=10.0)
    builds.add_outputs(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        builds.show(measured(options, Path(folder) / "model.onnx"), options)


if __name__ == "__main__":
    main()
