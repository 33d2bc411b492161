"""Batched translation: moves the states of sentences as the beam search requires."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.session.session import Graph
from t2r_runtime.session.states import States
from t2r_runtime.translate.beam import Translation
from t2r_runtime.translate.search import Rules, Search, Sentence

Array = NDArray[Any]


class Part(NamedTuple):
    """States that unfinished sentences continue from."""

    states: States
    rows: NDArray[np.int64]  # rows of their hypotheses
    places: list[int]  # indices of the sentences in the previous search


class Sentences:
    """Translates sentences in one batch.

    Sentences may have different lengths and enter at any time, as states have constant size. With growing caches all
    must enter together (`mixed` is False).
    """

    def __init__(self, graph: Graph, rules: Rules) -> None:
        self._graph, self._rules = graph, rules
        self._count = 0
        self._search = Search(rules, [])
        self._states: States | None = None  # rows of `_search`, in order
        self._entering: States | None = None  # reused for the next sentences
        self._dropped: set[int] = set()
        self.mixed = not any(spec.grows for spec in graph.signature.states)

    @property
    def going(self) -> int:
        """Number of unfinished sentences."""
        return len(self._search.sentences)

    def drop(self, numbers: Sequence[int]) -> None:
        """Remove these sentences in the next step, which does not return them."""
        self._dropped.update(numbers)

    def step(self, entering: Sequence[NDArray[np.int64]], states: Mapping[str, Array]) -> dict[int, list[Translation]]:
        """Extend all sentences by one token, and add new ones.

        Args:
            entering: new sources, numbered in order from 0.
            states: initial states of their translations, one row per source.

        Returns:
            For each finished sentence, by number, at most `n_best` translations, best first.
        """
        searches: list[Search] = []
        parts: list[Part] = []
        done: dict[int, list[Translation]] = {}
        both = [(self._search, self._read)] if self._search.sentences else []
        both += [(search := self._enter(entering), lambda: self._start(states, search.wanted))] if entering else []
        for search, read in both:
            from_states, outputs = read()
            rows, ended = search.advance(outputs)
            for place, sentence in enumerate(search.sentences):
                if sentence.handle in self._dropped:
                    ended[place] = True
                elif ended[place]:
                    done[sentence.handle] = sentence.finished[: self._rules.beam.n_best]
            kept = _filled(ended)
            if len(kept) < len(ended):
                search.keep(kept)
                rows = rows[kept]
            if kept:
                searches.append(search)
                parts.append(Part(from_states, rows.reshape(-1), kept))
        self._dropped.clear()
        self._settle(searches, parts)
        return done

    def _enter(self, sources: Sequence[NDArray[np.int64]]) -> Search:
        first, self._count = self._count, self._count + len(sources)
        copies = map(self._rules.copies, sources)
        numbered = enumerate(zip(sources, copies, strict=True), first)
        return Search(self._rules, [Sentence(number, source.size, copy) for number, (source, copy) in numbered])

    def _read(self) -> tuple[States, list[Array]]:
        assert self._states is not None
        return self._states, self._states.step(self._search.newest.reshape(-1), self._search.wanted)

    def _start(self, states: Mapping[str, Array], wanted: tuple[str, ...]) -> tuple[States, list[Array]]:
        """Read the start tokens, one row per sentence."""
        batch = len(next(iter(states.values())))
        if self._entering is None or self._entering.batch != batch:
            self._entering = States(self._graph, batch)
        self._entering.write(states)
        start = np.tile([self._rules.start, *self._rules.forced], (batch, 1))
        return self._entering, self._entering.prefill(start, wanted)

    def _settle(self, searches: Sequence[Search], parts: Sequence[Part]) -> None:
        """Gather the rows of the unfinished hypotheses."""
        if not searches:
            self._search = Search(self._rules, [])
            return
        self._search, *others = searches
        for other in others:
            self._search.join(other)
        rows = sum(len(part.rows) for part in parts)
        (states, taken, kept), *more = parts
        if not more and states.batch == rows and taken.tolist() == list(range(rows)):  # rows are unchanged
            if states is self._entering:
                self._states, self._entering = states, self._states
        elif not more and states is self._states:
            if states.batch == rows:  # same sentences
                states.reorder(taken)
            else:
                width = self._rules.beam.width
                states.keep(taken, (np.array(kept)[:, None] * width + np.arange(width)).reshape(-1))
        else:
            into = self._states
            if into is None or into.batch != rows:
                into = States(self._graph, rows)
            longest = max(sentence.source_length for sentence in self._search.sentences)
            into.take([(part.states, part.rows) for part in parts], longest)
            self._states = into


def _filled(ended: Sequence[bool]) -> list[int]:
    """Indices of the unfinished sentences, in their new order: the last ones fill the places of finished ones."""
    places = [place for place, over in enumerate(ended) if not over]
    last = iter(places[::-1])
    return [next(last) if over else place for place, over in enumerate(ended[: len(places)])]
