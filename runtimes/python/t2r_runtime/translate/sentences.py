"""Sentences that are translated side by side: their rows of the states, which come, move and go as the search says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.session.session import Graph
from t2r_runtime.session.states import States
from t2r_runtime.translate.beam import Translation
from t2r_runtime.translate.search import Rules, Search, Sentence

Array = NDArray[Any]
Part = tuple[States, NDArray[np.int64]]  # states, and the rows of them that go on


class Sentences:
    """None so far.

    Sentences of different lengths, and at different places of their translations, are rows like any others: what the
    decoder remembers has one size. Where caches grow, all must have entered together (`mixed`).
    """

    def __init__(self, graph: Graph, rules: Rules) -> None:
        self._graph, self._rules = graph, rules
        self._count = 0
        self._search = Search(rules, [])
        self._states: States | None = None  # of the rows of `_search`, in its order
        self._entering: States | None = None  # kept for the next that enter
        self.mixed = not any(spec.grows for spec in graph.signature.states)

    @property
    def going(self) -> int:
        """How many are not done."""
        return len(self._search.sentences)

    def step(self, entering: Sequence[NDArray[np.int64]], states: Mapping[str, Array]) -> dict[int, list[Translation]]:
        """One more token for all of them, and the first for those that enter.

        Args:
            entering: their sources, which are numbered on from 0.
            states: what their translations start from, a row each.

        Returns:
            Of those that are done, by number, the n best translations, best first; fewer where there are no more.
        """
        searches: list[Search] = []
        parts: list[Part] = []
        done: dict[int, list[Translation]] = {}
        both = [(self._search, self._read)] if self._search.sentences else []
        both += [(self._enter(entering), lambda: self._start(states))] if entering else []
        for search, read in both:
            from_states, outputs = read()
            rows, ended = search.advance(outputs)
            for sentence in (one for one, over in zip(search.sentences, ended, strict=True) if over):
                done[sentence.handle] = sentence.finished[: self._rules.beam.n_best]
            kept = [place for place, over in enumerate(ended) if not over]
            if len(kept) < len(ended):
                search.keep(kept)
            if kept:
                searches.append(search)
                parts.append((from_states, rows[kept].reshape(-1)))
        self._settle(searches, parts)
        return done

    def _enter(self, sources: Sequence[NDArray[np.int64]]) -> Search:
        first, self._count = self._count, self._count + len(sources)
        return Search(self._rules, [Sentence(first + place, source.size) for place, source in enumerate(sources)])

    def _read(self) -> tuple[States, list[Array]]:
        assert self._states is not None
        return self._states, self._states.step(self._search.newest.reshape(-1), self._rules.wanted)

    def _start(self, states: Mapping[str, Array]) -> tuple[States, list[Array]]:
        """Read the start tokens, one row a sentence."""
        batch = len(next(iter(states.values())))
        if self._entering is None or self._entering.batch != batch:
            self._entering = States(self._graph, batch)
        self._entering.write(states)
        start = np.tile([self._rules.start, *self._rules.forced], (batch, 1))
        return self._entering, self._entering.prefill(start, self._rules.wanted)

    def _settle(self, searches: Sequence[Search], parts: Sequence[Part]) -> None:
        """Make the rows those of the hypotheses that go on."""
        if not searches:
            self._search = Search(self._rules, [])
            return
        self._search, *others = searches
        for other in others:
            self._search.join(other)
        rows = sum(len(taken) for _, taken in parts)
        (states, taken), *more = parts
        if not more and states.batch == rows and taken.tolist() == list(range(rows)):  # all go on where they are
            if states is self._entering:
                self._states, self._entering = states, self._states
            return
        if not more and states.batch == rows and states is self._states:  # nobody came or went
            states.reorder(taken)
            return
        if self._states is not None and self._states.batch == rows:
            into = self._states
        else:
            into = States(self._graph, rows)
        into.take(parts, max(sentence.source_length for sentence in self._search.sentences))
        self._states = into
