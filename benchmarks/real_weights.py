"""Nats per token and differences of logits of graphs of one model from its float32 graph: docs/real-weights.md.

    python benchmarks/real_weights.py TEXT FLOAT32.onnx [GRAPH.onnx …] [--windows 8] [--llama MODEL.gguf]

All graphs read the same evenly spread windows of TEXT side by side, by steps from the initial state. A deviation is the
standard deviation of the float32 logits at a token. `--llama` adds llama.cpp on the file that the graphs were made of,
which reads a window at once; it needs llama-cpp-python, of the extra `peers`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt

from t2r_export.data.corpus import held_out_windows
from t2r_export.graph.nodes import initializers
from t2r_export.graph.reader import read_graph
from t2r_export.quantizers.base import tensor_bytes
from t2r_export.quantizers.quality import read_tokens
from t2r_runtime import Decoder

LENGTH = 256  # predicted tokens per window

Logs = npt.NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("graphs", type=Path, nargs="+")
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--llama", type=Path)
    arguments = parser.parse_args()
    graphs = [Decoder(graph) for graph in arguments.graphs]
    decoders: list[Decoder | Llama] = [*graphs]
    tokens = read_tokens(arguments.text, graphs[0].signature)
    rows = held_out_windows(tokens, LENGTH, arguments.windows).numpy()
    files = [(graph.stem, size(graph)) for graph in arguments.graphs]
    if arguments.llama is not None:
        decoders.append(Llama(arguments.llama, rows[:, :-1]))
        files.append(("llama.cpp", arguments.llama.stat().st_size))
    sums = np.zeros((len(decoders), 3))  # nats, KL, equal greedy tokens
    worst = np.zeros(len(decoders))
    for decoder in decoders:
        decoder.reset(batch=len(rows))
    for now, then in zip(rows.T[:-1], rows.T[1:], strict=True):
        logits = [decoder.step(now) for decoder in decoders]
        exact = log_probabilities(logits[0])
        for number, each in enumerate(logits):
            logs, difference = log_probabilities(each), np.abs(each - logits[0]).max(-1)
            equal = logs.argmax(-1) == exact.argmax(-1)
            divergence = np.exp(exact) * (exact - logs)
            sums[number] += -logs[np.arange(len(then)), then].sum(), divergence.sum(), equal.sum()
            worst[number] = max(worst[number], (difference / logits[0].std(-1)).max())
    count = rows[:, 1:].size
    print(
        f"| graph | weights | nats/token on {count:,} | change | KL | same greedy token | worst logit, in deviations |"
    )
    print("|---|---|---|---|---|---|---|")
    for (name, weights), (nats, divergence, equal), far in zip(files, sums / count, worst, strict=True):
        print(
            f"| {name} | {weights / 1e6:.1f} MB | {nats:.4f} | {nats * count / sums[0, 0] - 1:+.2%} "
            f"| {divergence:.4f} | {equal:.1%} | {far:.2f} |",
        )


class Llama:
    """llama.cpp on a GGUF file. It reads the rows (B, N) at once, and answers in steps, as a Decoder."""

    def __init__(self, path: Path, rows: npt.NDArray[np.int64]) -> None:
        import llama_cpp

        llama = llama_cpp.Llama(str(path), n_ctx=rows.shape[1], logits_all=True, verbose=False)
        logits = []
        for row in rows.tolist():
            llama.reset()
            llama.eval(row)
            logits.append(llama.scores[: len(row)].copy())
        self._steps = iter(np.stack(logits, 1))

    def reset(self, batch: int) -> None:
        pass

    def step(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        return next(self._steps)


def log_probabilities(logits: npt.NDArray[np.float32]) -> Logs:
    """log p of the next token, (B, vocabulary)."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def size(graph: Path) -> int:
    """Bytes of the weights."""
    return sum(map(tensor_bytes, initializers(read_graph(graph).step).values()))


if __name__ == "__main__":
    main()
