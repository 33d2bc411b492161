"""Quantization loss: compare a quantized graph with its float32 source on text.

Both graphs read the same tokens in chained steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from t2r_export.data.corpus import held_out_windows, parallel_sequences, read_corpus
from t2r_export.errors import CheckFailed
from t2r_export.quantizers.pairs import read_token_pairs, side_by_side
from t2r_runtime import Decoder, Tokenizer, Translator
from t2r_runtime.contract.signature import Signature
from t2r_runtime.errors import UserError

WINDOW = 256  # predicted tokens per window, from the initial state
WINDOWS = 64
CHAIN = 1000  # chained steps of the long run
CHAINS = 4  # batch size of the long run
PAIRS = 512  # for translators

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Quality:
    """Result of `measure`."""

    scheme: str
    nats_before: float  # per token
    nats_after: float  # per token
    tokens: int  # evaluated
    bound: float  # maximum relative increase of nats
    steps: int  # of the long run
    greedy_agreement: float  # share of equal greedy tokens in the long run
    worst_logits: float  # largest difference of a logit in the long run

    @property
    def loss(self) -> float:
        """Relative increase of nats per token."""
        return self.nats_after / self.nats_before - 1

    @property
    def passed(self) -> bool:
        return self.loss <= self.bound  # NaN does not pass

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "loss": self.loss, "passed": self.passed}


class QualityCheckFailed(CheckFailed):
    """The loss of the quantized graph exceeds its bound; see `quality`."""

    def __init__(self, out: Path, quality: Quality) -> None:
        q = quality
        super().__init__(
            f"{out} was not written: {q.scheme} takes nats/token from {q.nats_before:.4f} to {q.nats_after:.4f}, "
            f"{q.loss:+.2%} of at most {q.bound:+.2%}"
        )
        self.quality = quality


def measure(before: Path, after: Path, scheme: str, bound: float, text: Path) -> Quality:
    """Compare the graphs `before` (float32) and `after` (quantized) on a text, token ids as .npy, or for translators
    pairs.

    Args:
        bound: maximum relative increase of nats per token.

    Raises:
        UserError: a text shorter than one window.
    """
    graphs = [Decoder(before), Decoder(after)]
    if graphs[0].signature.source is not None:
        return _of_pairs([Translator(before), Translator(after)], scheme, bound, text)
    tokens = read_tokens(text, graphs[0].signature)
    rows = windows(tokens, graphs[0].signature)
    nats = [_nats(graph, rows) for graph in graphs]
    agreement, worst, steps = _long_run(graphs, tokens)
    return Quality(scheme, nats[0], nats[1], rows[:, 1:].size, bound, steps, agreement, worst)


def _of_pairs(graphs: Sequence[Translator], scheme: str, bound: float, file: Path) -> Quality:
    """`measure` for translators, which predict the targets of pairs."""
    signature = graphs[0].signature
    assert signature.source is not None
    starts, nats, same, steps = len(signature.source.start_tokens), np.zeros(2), [], 0
    worst = 0.0
    for group in side_by_side(read_token_pairs(file, signature, PAIRS), signature.batch):
        decoders = [graph.start(group.sources) for graph in graphs]
        for step in range(group.targets.shape[1] - 1):
            logits = [decoder.step(group.targets[:, step]).astype(np.float64) for decoder in decoders]
            rows = group.predicted(step, starts)
            nats += [float(_surprise(each[rows], group.targets[rows, step + 1]).sum()) for each in logits]
            same += (logits[0].argmax(-1) == logits[1].argmax(-1))[rows].tolist()
            worst = float(np.max([worst, *np.abs(logits[1] - logits[0])[rows].ravel()]))  # np.max keeps NaN
            steps += 1
    before, after = nats / len(same)
    return Quality(scheme, before, after, len(same), bound, steps, sum(same) / len(same), worst)


def _surprise(logits: npt.NDArray[np.float64], then: Tokens) -> npt.NDArray[np.float64]:
    """Negative log-probability of each row's next token (B,)."""
    peak = logits.max(-1)
    total = np.log(np.exp(logits - peak[:, None]).sum(-1)) + peak
    return np.asarray(total - logits[np.arange(len(then)), then])


def read_tokens(path: Path, signature: Signature) -> Tokens:
    """Tokens (N,) of a text, by the graph's tokenizer with start tokens per document, or of a .npy.

    Raises:
        UserError: an unreadable file, a graph without a tokenizer, or tokens outside its vocabulary.
    """
    if path.suffix != ".npy":
        Tokenizer.of(signature)  # raises unless runtimes support it
    whole = read_corpus([path], signature.tokenizer, signature, None).tokens
    return whole.ravel().astype(np.int64)


def windows(tokens: Tokens, signature: Signature) -> Tokens:
    """At most WINDOWS evenly spread windows (N, length + 1).

    Raises:
        UserError: too few tokens for one window.
    """
    length = min(WINDOW, signature.max_positions or WINDOW)
    rows: Tokens = held_out_windows(tokens, length, WINDOWS).numpy()
    return rows


def _nats(graph: Decoder, rows: Tokens) -> float:
    """Mean cross-entropy over windows (N, T+1), each from the initial state."""
    batch = graph.signature.batch or len(rows)
    total, count = 0.0, 0
    for part in _parts(rows, batch):
        graph.reset(batch=batch)
        for now, then in zip(part.T[:-1], part.T[1:], strict=True):
            total += float(_surprise(graph.step(now).astype(np.float64), then).sum())
            count += batch
    return total / count


def _long_run(graphs: list[Decoder], tokens: Tokens) -> tuple[float, float, int]:
    """Share of equal greedy tokens, worst difference of a logit, and number of chained steps."""
    signature = graphs[0].signature
    batch = signature.batch or CHAINS
    steps = min(CHAIN, len(tokens) // batch)
    if not steps:
        raise UserError(f"a text of at least {batch} tokens", str(len(tokens)), "name a longer one with --check")
    same, worst = 0, 0.0
    for step, ids in enumerate(parallel_sequences(tokens, batch, steps).T):
        if step % (signature.max_positions or CHAIN) == 0:
            for graph in graphs:
                graph.reset(batch=batch)
        before, after = (graph.step(ids) for graph in graphs)
        same += int((before.argmax(-1) == after.argmax(-1)).sum())
        difference = float(np.abs(after - before).max())
        worst = math.nan if math.isnan(difference) or math.isnan(worst) else max(worst, difference)
    return same / (steps * batch), worst, steps


def _parts(rows: Tokens, batch: int) -> list[Tokens]:
    """Rows in groups of `batch`; the last group is filled with rows from the start."""
    count = math.ceil(len(rows) / batch) * batch
    return np.split(np.resize(rows, (count, rows.shape[1])), count // batch)
