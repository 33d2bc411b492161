"""A translator's graphs in use: a source is encoded once, and its translation is chosen token by token.

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

import t2r_runtime.decode.generate as generate
from t2r_runtime.checks import array_of, iterated, listed
from t2r_runtime.contract.sampling import Sampling
from t2r_runtime.contract.signature import (
    COMPANIONS,
    ENCODER,
    MAX_STATE_BYTES,
    SOURCE_IDS,
    SOURCE_LENGTHS,
    Signature,
)
from t2r_runtime.contract.source import Source
from t2r_runtime.decode.decoder import Decoder
from t2r_runtime.errors import UserError, printable, shown
from t2r_runtime.translate.beam import Beam, Translation
from t2r_runtime.translate.search import Rules
from t2r_runtime.translate.sentences import Sentences

Array = NDArray[Any]


class Translator:
    """A translator: its step graph, opened, and the companions beside it.

    Args:
        path: the step graph, an .onnx file; all others as for Decoder. `session_config` reaches the encoder's
            session too.

    Raises:
        UserError: as for Decoder; a graph of a decoder alone, or one that names no encoder.

    What it opened does not change: threads may share a translator.
    """

    def __init__(
        self,
        path: str | Path,
        provider: str = "cpu",
        threads: int | None = None,
        provider_options: Mapping[str, str] | None = None,
        allow_fallback: bool = False,
        max_state_bytes: int = MAX_STATE_BYTES,
        session_config: Mapping[str, str] | None = None,
    ) -> None:
        self._decoder = Decoder(
            path,
            provider,
            threads,
            provider_options,
            allow_fallback,
            COMPANIONS,
            max_state_bytes,
            session_config=session_config,
        )
        self._graph = self._decoder._graph
        if self.signature.source is None:
            raise UserError("a translator", "the graph of a decoder alone", "use Decoder, or t2r generate", "graph")
        if ENCODER not in self._graph.companions:
            raise UserError(
                "a translator's step graph, which names its encoder", "none", "export the model again", "graph"
            )
        started = [spec for spec in self.signature.chained if spec.name in self.source.start_states]
        self._encoded = [*self.signature.constant, *started]  # what the encoder gives, and the names of its outputs
        self._encoded_as = [spec.name if spec.constant else spec.present for spec in self._encoded]

    @property
    def signature(self) -> Signature:
        """What the step graph's metadata says."""
        return self._graph.signature

    @property
    def source(self) -> Source:
        """What it says of the source."""
        assert self.signature.source is not None
        return self.signature.source

    @property
    def placement(self) -> dict[str, int]:
        """How many of the step graph's nodes each provider runs; see Decoder."""
        return self._decoder.placement

    def encode(self, sources: Iterable[ArrayLike]) -> dict[str, Array]:
        """Read sources → the states that their translations start from, a row each, as `Decoder.set_state` takes them.

        Args:
            sources: of each its tokens (M,), with the special tokens that the tokenizer puts around them.

        Raises:
            UserError: no source, one without a token or with more than `max_source`, tokens that the source's
                vocabulary has not, or states that exceed what one graph may ask for.
        """
        rows = [self.checked(source) for source in listed(sources, "sources as a list", "token")]
        if not rows:
            raise UserError("at least one source", "none", "give some", "token")
        lengths = np.array([row.size for row in rows])
        signature, graph, longest = self.signature, self._graph, int(lengths.max())
        signature.require_batch(len(rows))
        signature.require_memory(len(rows), graph.max_state_bytes, longest)
        ids = np.zeros((len(rows), self.source.source_length or longest), np.int64)
        for row, source in zip(ids, rows, strict=True):
            row[: source.size] = source
        session = graph.companions[ENCODER]()
        try:
            found = session.run(self._encoded_as, {SOURCE_IDS: ids, SOURCE_LENGTHS: lengths})
        except Exception as error:  # ONNX Runtime's errors have no common base below Exception
            why = printable(error)
            raise UserError("the encoder graph to run", why, "export the model again", "runtime") from error
        states: dict[str, Array] = {}
        for spec, state in zip(self._encoded, map(np.asarray, found), strict=True):
            if state.shape != (shape := spec.dims(len(rows), source=ids.shape[1])):
                raise UserError(
                    f"{spec.name} {shape} from the encoder", f"{state.shape}", "export the model again", "graph"
                )
            states[spec.name] = state
        others = (spec for spec in signature.chained if spec.name not in states)
        return {spec.name: np.full(spec.dims(len(rows)), spec.initial, spec.dtype) for spec in others} | states

    def start(self, sources: Iterable[ArrayLike]) -> Decoder:
        """A decoder that is about to read the start tokens of a translation of each source.

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
        """One translation, greedy or sampled, as Decoder.generate writes a text: no token is forced.

        Raises:
            UserError: as for `encode` and Decoder.generate.
        """
        return self.start([source]).generate(self.source.start_tokens, max_tokens, sampling, callback)

    def stream(self, source: ArrayLike, max_tokens: int, sampling: Sampling = Sampling(temperature=0)) -> Iterator[int]:
        """`generate`, one token at a time; what it refuses, it refuses at once."""
        return generate.stream(self.start([source]), self.source.start_tokens, max_tokens, sampling)

    def translate(
        self, sources: Iterable[ArrayLike], beam: Beam = Beam(), batch: int = 32
    ) -> Iterator[list[Translation]]:
        """The n best translations of each source, in the sources' order, as soon as they and all before are done.

        Args:
            sources: as for `encode`; each is taken when there is room for it.
            batch: the most sentences side by side; those that are done leave, and others enter. Caches that grow have
                one length, so that with them others enter when all have left.

        Raises:
            UserError: a value out of range, more tokens than positions, or a graph of a fixed batch, at once; and as
                for `encode`, when a source is taken.
        """
        rules = Rules(beam, self.signature)
        if type(batch) is not int or batch < 1:
            raise UserError("a batch of at least 1", shown(batch), "choose another", "batch")
        if self.signature.batch is not None:
            if self.signature.batch != 1 or rules.beam.width != 1:
                raise UserError(
                    f"a graph of any batch for a beam of {rules.beam.width}",
                    f"one of {self.signature.batch}",
                    "export it without --batch, or translate greedily with a batch of 1",
                    "batch",
                )
            batch = 1
        self.signature.require_memory(batch * rules.beam.width, self._graph.max_state_bytes)
        found = iterated(sources, "sources that can be iterated", "token")
        return self._translations(found, Sentences(self._graph, rules), batch)

    def checked(self, source: ArrayLike) -> NDArray[np.int64]:
        """A source's tokens (M,).

        Raises:
            UserError: they are none, too many, no integers, or others than the source's vocabulary has.
        """
        array, source_of = array_of(source, "a source", "token"), self.source
        if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
            raise UserError("a source of at least one token, integers (M,)", shown(source), "encode it", "token")
        if array.min() < 0 or array.max() >= source_of.source_vocab_size:
            expected = f"tokens of a source in 0 … {source_of.source_vocab_size - 1}"
            raise UserError(expected, f"{array.min()} … {array.max()}", "use the source's tokenizer", "token")
        if source_of.max_source is not None and array.size > source_of.max_source:
            raise UserError(
                f"a source of at most {source_of.max_source} tokens",
                f"{array.size}",
                "cut it into sentences",
                "position",
            )
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
        """Before each step, the sources that enter, until none are left and all have been translated."""
        more = True
        while more or sentences.going:
            room = batch - sentences.going
            taken: list[NDArray[np.int64]] = []
            # a few at a time: whoever enters, the states of all are copied
            if more and room >= max(batch // 4, 1) and (sentences.mixed or not sentences.going):
                for source in sources:
                    taken.append(self.checked(source))
                    if len(taken) == room:
                        break
                more = len(taken) == room
            if taken or sentences.going:
                yield taken
