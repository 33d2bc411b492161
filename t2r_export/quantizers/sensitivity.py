"""Cost of rounding a single weight: KL(float32 ‖ rounded) of the next token, mean over tokens of a text or pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from t2r_export.data.corpus import parallel_sequences
from t2r_export.graph.bundle import Bundle
from t2r_export.graph.nodes import initializers
from t2r_export.graph.weights import Weight, fill, values
from t2r_export.quantizers.base import Tokens, projections
from t2r_export.quantizers.pairs import TokenPair, side_by_side, source_feeds
from t2r_runtime.contract.signature import INPUT_IDS, LOGITS, Signature
from t2r_runtime.errors import UserError

Arrays = dict[str, npt.NDArray[np.generic]]
ROWS, STEPS = 16, 64  # texts side by side, tokens per text
PAIRS = 64  # pairs side by side


@dataclass(frozen=True)
class Passage:
    """A batch of rows to read."""

    ids: Tokens  # (B, T)
    counted: npt.NDArray[np.bool_]  # (B, T), whether the prediction after a token counts
    sources: Sequence[Sequence[int]] = ()  # for translators, one per row

    def runs(self, tokens: int | None) -> Iterator[tuple[Tokens, npt.NDArray[np.bool_]]]:
        """`ids` and `counted` of each run of `tokens`, (B, tokens) or less; None: of each token, (B,)."""
        if tokens is None:
            yield from zip(self.ids.T, self.counted.T, strict=True)
        else:
            for start in range(0, self.ids.shape[1], tokens):
                some = slice(start, start + tokens)
                yield self.ids[:, some], self.counted[:, some]


def text_passages(tokens: Tokens, signature: Signature, steps: int = STEPS) -> list[Passage]:
    """One passage of a text (N,), with at most `steps` tokens per row.

    Raises:
        UserError: a text that is too short.
    """
    rows = signature.batch or ROWS
    steps = min(steps, signature.max_positions or steps, len(tokens) // rows)
    if steps < 1:
        raise UserError(f"a text of at least {rows} tokens", f"{len(tokens)}", "name a longer one")
    ids = parallel_sequences(tokens, rows, steps)
    return [Passage(ids, np.ones(ids.shape, np.bool_))]


def pair_passages(pairs: Sequence[TokenPair], signature: Signature, steps: int = STEPS) -> list[Passage]:
    """Passages of evenly spread pairs with about as many target tokens as `text_passages` reads."""
    assert signature.source is not None
    starts, tokens = len(signature.source.start_tokens), sum(len(pair.target) for pair in pairs)
    chosen, made = pairs[:: max(1, tokens // (ROWS * steps))], []
    for group in side_by_side(chosen, signature.batch or min(PAIRS, len(chosen))):
        columns = range(group.targets.shape[1] - 1)
        counted = np.stack([group.predicted(column, starts) for column in columns], axis=1)
        made.append(Passage(group.targets[:, :-1], counted, group.sources))
    return made


class OpenGraph:
    """A float32 graph whose projection weights (`matrices`, (in, out) by name) can be replaced in each run."""

    def __init__(self, model: onnx.ModelProto, weights: Mapping[str, Weight]) -> None:
        self.matrices: dict[str, np.ndarray] = {}
        made, kept = onnx.ModelProto(), initializers(model)
        made.CopyFrom(model)
        nodes = projections(model)
        # (out, in), where a MatMul has (in, out)
        self._turned = {node.input[1] for node in nodes if node.op_type == "Gemm"}
        for node in nodes:
            name = node.input[1]
            matrix = values(kept[name], weights)
            self.matrices[name] = matrix.T if name in self._turned else matrix
        del made.graph.initializer[:]
        made.graph.initializer.extend(t for name, t in kept.items() if name not in self.matrices)
        fill(made, weights)
        made.graph.input.extend(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, list(kept[name].dims)) for name in self.matrices
        )
        options = ort.SessionOptions()
        options.log_severity_level = 4
        self._session = ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
        self._outputs = [output.name for output in self._session.get_outputs()]

    def bound(self, changed: Mapping[str, np.ndarray]) -> Arrays:
        """Weight inputs, with the matrices `changed` replaced."""
        made = {name: changed.get(name, matrix) for name, matrix in self.matrices.items()}
        return {name: np.ascontiguousarray(m.T if name in self._turned else m) for name, m in made.items()}

    def run(self, feeds: Mapping[str, np.ndarray]) -> Arrays:
        """Outputs by name."""
        return dict(zip(self._outputs, self._session.run(None, dict(feeds)), strict=True))


class OpenBundle:
    """The float32 graphs of a bundle, opened once, and the passages that they read with chained states.

    Args:
        tokens: of each row in a run, if the bundle's step graph is a prefill graph; None: one, without its axis.
    """

    def __init__(self, bundle: Bundle, passages: Sequence[Passage], tokens: int | None = None) -> None:
        self.signature, self.passages, self.tokens = bundle.signature, passages, tokens
        opened = [OpenGraph(graph, bundle.weights) for graph in bundle.halves]
        self.step, self.encoder = opened[0], opened[1] if len(opened) > 1 else None
        self.matrices = {name: matrix for graph in opened for name, matrix in graph.matrices.items()}
        self.encoded = [self._encode(passage, {}) for passage in passages]

    def steps(self, changed: Mapping[str, np.ndarray]) -> Iterator[tuple[npt.NDArray[np.bool_], Arrays]]:
        """The rows (B,) or (B, T) that count and the step graph's outputs for each run, with `changed` matrices."""
        weights = self.step.bound(changed)
        chained = {s.past: s.present for s in self.signature.states if not s.constant}
        of_encoder = self.encoder is not None and bool(changed.keys() & self.encoder.matrices.keys())
        for passage, encoded in zip(self.passages, self.encoded, strict=True):
            states = self._start(self._encode(passage, changed) if of_encoder else encoded, len(passage.ids))
            for ids, rows in passage.runs(self.tokens):
                found = self.step.run({**weights, **states, INPUT_IDS: ids})
                yield rows, found
                states |= {past: found[present] for past, present in chained.items()}

    def _encode(self, passage: Passage, changed: Mapping[str, np.ndarray]) -> Arrays:
        """Encoder outputs by name; empty without an encoder."""
        if self.encoder is None:
            return {}
        assert self.signature.source is not None
        sources = source_feeds(passage.sources, self.signature.source.source_length)
        return self.encoder.run({**self.encoder.bound(changed), **sources})

    def _start(self, encoded: Arrays, rows: int) -> Arrays:
        """Initial states by input name of the step graph."""
        states = Arrays()
        for spec in self.signature.states:
            made = encoded.get(spec.name if spec.constant else spec.present)
            states[spec.past] = np.full(spec.dims(rows), spec.initial, spec.dtype) if made is None else made
        return states


class Sensitivity:
    """Costs of changed weights in the float32 graphs of a bundle."""

    def __init__(self, bundle: Bundle, passages: Sequence[Passage]) -> None:
        self.graphs = OpenBundle(bundle, passages)
        self.expected = list(self._read({}))

    def cost(self, name: str, matrix: np.ndarray) -> float:
        """KL in nats per token with the weight `name` replaced by `matrix` (in, out)."""
        total = 0.0
        for before, after in zip(self.expected, self._read({name: matrix}), strict=True):
            total += float((np.exp(before) * (before - after)).sum())
        return total / sum(int(passage.counted.sum()) for passage in self.graphs.passages)

    def _read(self, changed: Mapping[str, np.ndarray]) -> Iterator[np.ndarray]:
        """Log-probabilities (counted rows, vocabulary) after each token of the passages."""
        for rows, found in self.graphs.steps(changed):
            logits = found[LOGITS][rows].astype(np.float64)
            logits -= logits.max(-1, keepdims=True)
            yield logits - np.log(np.exp(logits).sum(-1, keepdims=True))
