"""Translates with the graphs of an encoder-decoder model.

translator = Translator("de-en.onnx")
for (best,) in translator.translate([[5, 17, 2], [8, 2]], Beam(width=4)):
    print(best.tokens, best.score)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from t2r_runtime.checks import array_of, iterated, listed, range_of, require_int
from t2r_runtime.contract.sampling import Sampling
from t2r_runtime.contract.signature import ENCODER, SOURCE_IDS, SOURCE_LENGTHS, Signature
from t2r_runtime.contract.source import Source
from t2r_runtime.decode.decoder import Decoder
from t2r_runtime.errors import UserError, printable, shown
from t2r_runtime.translate.beam import Beam, Translation
from t2r_runtime.translate.search import Rules
from t2r_runtime.translate.sentences import Sentences

Array = NDArray[Any]
MAX_SOURCE = 4096  # tokens of a source: a softmax encoder takes about 8 bytes per head and squared token
NO_MEMORY = ("failed to allocate", "bad_alloc", "bad allocation", "out of memory")  # in messages of ONNX Runtime


class Translator:
    """Translates with a step graph and its encoder graph.

    Args:
        path: the step graph, an .onnx file.
        max_source: maximum number of tokens of a source, besides the graph's own limit. The attention scores of an
            encoder with softmax layers grow with its square: about 1.1 GB for 4,096 tokens and 8 heads. Sources given
            together are encoded in portions with no more scores than one of this length.
        provider, threads, provider_options, allow_fallback, **options: as for Decoder. `session_config` applies to the
            encoder too.

    Raises:
        UserError: as for Decoder, or the graph is not a translator's.

    Threads may share a translator.
    """

    def __init__(
        self,
        path: str | Path,
        provider: str = "cpu",
        threads: int | None = None,
        provider_options: Mapping[str, str] | None = None,
        allow_fallback: bool = False,
        max_source: int = MAX_SOURCE,
        **options: Any,
    ) -> None:
        require_int(max_source, "max_source", 1, "argument")
        self._max_source = max_source
        self._decoder = Decoder(path, provider, threads, provider_options, allow_fallback, **options)
        self._graph = self._decoder._graph
        if self.signature.source is None:
            raise UserError("a translator", "the graph of a decoder", "use Decoder, or t2r-run generate", "graph")
        if ENCODER not in self._graph.companions:
            expected = "a translator's step graph, which names its encoder"
            raise UserError(expected, "none", "export the model again", "graph")
        started = [spec for spec in self.signature.chained if spec.name in self.source.start_states]
        self._encoded = [*self.signature.constant, *started]  # states from the encoder, then the names of its outputs
        self._encoded_as = [spec.name if spec.constant else spec.present for spec in self._encoded]

    @property
    def signature(self) -> Signature:
        """The step graph's metadata."""
        return self._graph.signature

    @property
    def source(self) -> Source:
        """The metadata of the source."""
        assert self.signature.source is not None
        return self.signature.source

    @property
    def placement(self) -> dict[str, int]:
        """Number of nodes of the step graph that each provider runs; see Decoder."""
        return self._decoder.placement

    def encode(self, sources: Iterable[ArrayLike]) -> dict[str, Array]:
        """Encode sources to the initial states of their translations, one row per source, for `Decoder.set_state`.

        Args:
            sources: tokens (M,) of each source, with the tokenizer's special tokens.

        Raises:
            UserError: no source, an empty one, one longer than `max_source`, tokens out of range, or states that exceed
                the memory limit.
        """
        rows = [self.checked(source) for source in listed(sources, "sources as a list", "token")]
        if not rows:
            raise UserError("at least one source", "none", "pass some", "token")
        lengths = np.array([row.size for row in rows])
        signature, graph, longest = self.signature, self._graph, int(lengths.max())
        signature.require_batch(len(rows))
        signature.require_memory(len(rows), graph.max_state_bytes, longest)
        portions = [rows] if signature.batch is not None else self._fitting(rows)
        states = self._run_encoder(portions[0]) if len(portions) == 1 else self._joined(portions, longest)
        others = (spec for spec in signature.chained if spec.name not in states)
        return {spec.name: np.full(spec.dims(len(rows)), spec.initial, spec.dtype) for spec in others} | states

    def _fitting(self, rows: Sequence[NDArray[np.int64]]) -> list[list[NDArray[np.int64]]]:
        """Portions of which each needs, with its padding, no more attention scores than a source of `max_source`."""
        portions: list[list[NDArray[np.int64]]] = []
        longest = 0
        for row in rows:
            size = self.source.source_length or row.size
            longest = max(longest, size)
            if not portions or (len(portions[-1]) + 1) * longest**2 > self._max_source**2:
                portions.append([])
                longest = size
            portions[-1].append(row)
        return portions

    def _joined(self, portions: Sequence[Sequence[NDArray[np.int64]]], longest: int) -> dict[str, Array]:
        """The encoder's outputs for all portions, padded to the longest source."""
        count, done = sum(map(len, portions)), 0
        shapes = {spec.name: spec.dims(count, source=longest) for spec in self._encoded}
        states = {spec.name: np.zeros(shapes[spec.name], spec.dtype) for spec in self._encoded}
        for portion in portions:
            for name, state in self._run_encoder(portion).items():
                states[name][(slice(done, done + len(portion)), *map(slice, state.shape[1:]))] = state
            done += len(portion)
        return states

    def _run_encoder(self, rows: Sequence[NDArray[np.int64]]) -> dict[str, Array]:
        lengths = np.array([row.size for row in rows])
        ids = np.zeros((len(rows), self.source.source_length or int(lengths.max())), np.int64)
        for row, source in zip(ids, rows, strict=True):
            row[: source.size] = source
        session = self._graph.companions[ENCODER]()
        try:
            found = session.run(self._encoded_as, {SOURCE_IDS: ids, SOURCE_LENGTHS: lengths})
        except Exception as error:  # ONNX Runtime's errors have no common base below Exception
            if isinstance(error, MemoryError) or any(text in str(error).lower() for text in NO_MEMORY):
                expected = f"enough memory to encode a source of {ids.shape[1]} tokens"
                raise UserError(expected, "too little", "split the source into sentences", "memory") from error
            why = printable(error)
            raise UserError("the encoder graph to run", why, "export the model again", "runtime") from error
        states: dict[str, Array] = {}
        for spec, state in zip(self._encoded, map(np.asarray, found), strict=True):
            if state.shape != (shape := spec.dims(len(rows), source=ids.shape[1])):
                expected = f"{spec.name} {shape} from the encoder"
                raise UserError(expected, f"{state.shape}", "export the model again", "graph")
            states[spec.name] = state
        return states

    def start(self, sources: Iterable[ArrayLike]) -> Decoder:
        """Encode sources, and return a decoder that has not yet read the start tokens.

        Raises:
            UserError: as for `encode`.
        """
        decoder = self._decoder.fork()
        decoder.set_state(self.encode(sources))
        return decoder

    def generate(
        self,
        source: ArrayLike,
        max_tokens: int,
        sampling: Sampling = Sampling(temperature=0),
        callback: Callable[[int], object] | None = None,
    ) -> list[int]:
        """Translate one source, greedily or by sampling, without forced tokens; see Decoder.generate.

        Raises:
            UserError: as for `encode` and Decoder.generate.
        """
        return self.start([source]).generate(self.source.start_tokens, max_tokens, sampling, callback)

    def stream(self, source: ArrayLike, max_tokens: int, sampling: Sampling = Sampling(temperature=0)) -> Iterator[int]:
        """Like `generate`, but yield each token as it is chosen. Arguments are checked immediately."""
        return self.start([source]).stream(self.source.start_tokens, max_tokens, sampling)

    def translate(
        self, sources: Iterable[ArrayLike], beam: Beam = Beam(), batch: int = 32
    ) -> Iterator[list[Translation]]:
        """Yield the n best translations of each source, in order, as soon as they are ready.

        Args:
            sources: as for `encode`; consumed as the batch has room.
            batch: maximum number of sentences in the batch. Finished sentences are replaced, with growing caches only
                when all are finished.

        Raises:
            UserError: immediately for a value out of range, too few positions, or a graph of a fixed batch; as for
                `encode` when a source is consumed.
        """
        rules = Rules(beam, self.signature)
        require_int(batch, "a batch", 1, "batch")
        if self.signature.batch is not None:
            if self.signature.batch != 1 or rules.beam.width != 1:
                expected = f"a graph of any batch for a beam of {rules.beam.width}"
                do = "export it without --batch, or translate greedily with a batch of 1"
                raise UserError(expected, f"one of {self.signature.batch}", do, "batch")
            batch = 1
        self.signature.require_memory(batch * rules.beam.width, self._graph.max_state_bytes)
        found = iterated(sources, "sources that can be iterated", "token")
        return self._translations(found, Sentences(self._graph, rules), batch)

    @property
    def most_source(self) -> int:
        """Maximum number of tokens of a source."""
        return min(self._max_source, self.source.max_source or self._max_source)

    def checked(self, source: ArrayLike) -> NDArray[np.int64]:
        """Check the tokens of a source → int64 (M,).

        Raises:
            UserError: no tokens, too many, not integers, or out of range.
        """
        array, source_of = array_of(source, "a source", "token"), self.source
        if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
            raise UserError("a source of at least one token, integers (M,)", shown(source), "encode it", "token")
        if array.min() < 0 or array.max() >= source_of.source_vocab_size:
            expected = f"tokens of a source in 0 … {source_of.source_vocab_size - 1}"
            raise UserError(expected, range_of(array.min(), array.max()), "use the source's tokenizer", "token")
        if array.size > self.most_source:
            expected = f"a source of at most {self.most_source} tokens"
            raise UserError(expected, f"{array.size}", "split it into sentences", "position")
        return array.astype(np.int64)

    def _translations(
        self, sources: Iterator[ArrayLike], sentences: Sentences, batch: int
    ) -> Iterator[list[Translation]]:
        done: dict[int, list[Translation]] = {}
        given = 0
        for taken in self._portions(sources, sentences, batch):
            done |= sentences.step(taken, self.encode(taken) if taken else {})
            while given in done:
                yield done.pop(given)
                given += 1

    def _portions(
        self, sources: Iterator[ArrayLike], sentences: Sentences, batch: int
    ) -> Iterator[Sequence[NDArray[np.int64]]]:
        """Yield the sources to add before each step, until all are translated."""
        more = True
        while more or sentences.going:
            room = batch - sentences.going
            taken: list[NDArray[np.int64]] = []
            # several at a time, as adding sources copies all states
            if more and room >= max(batch // 4, 1) and (sentences.mixed or not sentences.going):
                for source in sources:
                    taken.append(self.checked(source))
                    if len(taken) == room:
                        break
                more = len(taken) == room
            if taken or sentences.going:
                yield taken
