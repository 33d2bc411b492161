"""Beam search: the best hypotheses of a sentence go on side by side. runtimes/CONTRACT.md, "The search", defines it.

Numbers alone: what a step gave goes in, and the rows of the step that go on come out, so that whoever has the states
moves them. Several sentences are searched side by side, each at a length of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.checks import require_kind
from t2r_runtime.contract.penalties import penalized
from t2r_runtime.contract.signature import Signature
from t2r_runtime.errors import UserError
from t2r_runtime.session.states import LOGITS_ALONE, TOP_LOG
from t2r_runtime.translate.beam import Beam, Translation

MAX_TOKENS = 256  # of a translation, where nobody says more and the model has no fewer positions

Array = NDArray[Any]


class Rules:
    """A Beam for one model: what may be chosen, and how many of the largest logits are enough to choose from.

    Raises:
        UserError: a width above the vocabulary, more tokens than the model has positions, or none that may be chosen.
    """

    def __init__(self, beam: Beam, signature: Signature) -> None:
        require_kind(beam, Beam, "a Beam", "sampling")
        assert signature.source is not None
        self.beam = beam.resolved(signature.generation)
        self.start, *self.forced = signature.source.start_tokens
        self.ends = np.array(signature.eos_tokens, np.int64)
        self.banned = np.array(signature.source.banned_tokens, np.int64)
        self.is_end, self.is_banned = (_among(tokens, signature.vocab_size) for tokens in (self.ends, self.banned))
        self.max_tokens = _longest(beam.max_tokens, self.beam.max_tokens, signature, len(self.forced))
        vocabulary = signature.vocab_size
        width = self.beam.width
        if width > vocabulary:
            raise UserError(
                f"a beam of at most the vocabulary, {vocabulary}", str(width), "choose a smaller one", "sampling"
            )
        if len({*self.ends.tolist(), *self.banned.tolist()}) == vocabulary:
            raise UserError("a token that is neither an end nor banned", "none", "export the model again", "metadata")
        self.candidates = 1 if width == 1 else max(2, 1 + len(self.ends)) * width
        enough = self.candidates + len(self.banned) + (len(self.ends) if self.beam.min_tokens else 0)
        self.enough = min(enough, vocabulary)
        few = signature.has_log_sum and self.enough <= (signature.top_k or 0) and not self.beam.looks_back
        self.wanted = TOP_LOG if few else LOGITS_ALONE  # the outputs of a step that the search reads

    def choices(self, outputs: Sequence[Array], texts: Array, lengths: Array) -> tuple[Array, Array]:
        """What may come next, with what it adds to a score.

        Args:
            outputs: those `wanted` of a step, of R rows.
            texts: what each row has written (R, length or more). lengths: of each row (R,).

        Returns:
            What is added, float64 (R, C), largest first, and the tokens, int64 (R, C). -inf is never chosen.

        Raises:
            UserError: logits that are not finite.
        """
        if self.wanted is TOP_LOG:
            logits, tokens, log_sums = outputs
            _require_finite(log_sums)
            tokens = tokens[:, : self.enough]
            added = np.subtract(logits[:, : self.enough], log_sums[:, None], dtype=np.float64)
            if self.banned.size:
                added[self.is_banned[tokens]] = -np.inf
            if self.beam.min_tokens:
                added[self.is_end[tokens] & (lengths < self.beam.min_tokens)[:, None]] = -np.inf
        else:
            added, tokens = self._of_all(outputs[0], texts, lengths)
        if self.beam.forced_end and self.ends.size and lengths.max() == self.max_tokens - 1:
            last, tokens = lengths == self.max_tokens - 1, tokens.copy()
            added[last], tokens[last] = -np.inf, self.ends[0]
            added[last, 0] = 0
        return added, tokens

    def _of_all(self, logits: Array, texts: Array, lengths: Array) -> tuple[Array, Array]:
        """`choices` from logits (R, vocabulary): the `enough` largest of each row, of equals the lowest token first."""
        greedy = self.beam.width == 1  # the penalties are then those of t2r_runtime.Sampling, on logits
        log_sums = _log_sums(logits)
        values = logits.astype(np.float64) - (0 if greedy else log_sums)
        values[:, self.banned] = -np.inf
        values[np.ix_(lengths < self.beam.min_tokens, self.ends)] = -np.inf
        added, tokens = np.empty((len(values), self.enough)), np.empty((len(values), self.enough), np.int64)
        for row, value in enumerate(values):
            if self.beam.looks_back:
                text = np.concatenate([[self.start], texts[row, : lengths[row]]])
                value = penalized(value, text, self.beam.repetition_penalty, self.beam.no_repeat_ngram)
            tokens[row] = _largest(value, self.enough)
            added[row] = value[tokens[row]]
        return (added - log_sums if greedy else added), tokens

    def normalized(self, sum_of_logs: float, tokens: int) -> float:
        """The score of so many tokens."""
        return sum_of_logs / math.pow(tokens, self.beam.length_penalty)

    def ended(self, finished: Sequence[Translation], best: float, tokens: int) -> bool:
        """Whether a sentence is done, whose best hypothesis that goes on has that sum and so many tokens."""
        if tokens == self.max_tokens or best == -np.inf:
            return True
        if len(finished) < self.beam.width:
            return False
        if self.beam.width == 1 or self.beam.early_stopping is True:
            return True
        never = self.beam.early_stopping == "never" and self.beam.length_penalty > 0
        return self.normalized(best, self.max_tokens if never else tokens) <= finished[-1].score


@dataclass
class Sentence:
    """A source that is being translated, and what is finished of it, best first."""

    handle: int
    source_length: int
    finished: list[Translation] = field(default_factory=list)


class Search:
    """Sentences side by side, S of them with R hypotheses each: rows of a step, those of one sentence together.

    A search starts with one hypothesis a sentence, of the tokens that are forced.
    """

    def __init__(self, rules: Rules, sentences: Sequence[Sentence]) -> None:
        self.rules, self.sentences = rules, list(sentences)
        count = len(self.sentences)
        self.sums = np.zeros((count, 1))  # of log-probabilities (S, R), largest first
        forced = np.array(rules.forced, np.int64)
        self.texts = np.zeros((count, 1, forced.size + 16), np.int64)  # with room behind the first `lengths`
        self.texts[:, :, : forced.size] = forced
        self.lengths = np.full(count, forced.size)  # tokens of each sentence's hypotheses
        self.newest = np.zeros((count, 1), np.int64)  # the last token of each, which no step has read

    def advance(self, outputs: Sequence[Array]) -> tuple[NDArray[np.int64], list[bool]]:
        """One more token for every hypothesis; of each sentence, the best `width` go on.

        Args:
            outputs: those that `rules.wanted` names, of a step that has read `newest`.

        Returns:
            The rows of that step from which hypotheses go on (S, width), and which sentences are done.
        """
        rules, width = self.rules, self.rules.beam.width
        count, hypotheses = self.sums.shape
        texts = self.texts.reshape(count * hypotheses, -1)
        added, tokens = rules.choices(outputs, texts, self.lengths.repeat(hypotheses))
        sums, tokens, rows = self._candidates(added, tokens)
        before, length = self.lengths, self.lengths + 1
        ends = rules.is_end[tokens] | (length == rules.max_tokens)[:, None]
        if ends.any():
            for sentence, place in np.argwhere(ends[:, :width] & (sums[:, :width] > -np.inf)).tolist():
                text = texts[rows[sentence, place], : before[sentence]].tolist()
                self._finish(sentence, [*text, int(tokens[sentence, place])], float(sums[sentence, place]))
            sums[ends] = -np.inf
            going = np.argsort(ends, axis=1, kind="stable")[:, :width]  # those that do not end, in their order
            going += (np.arange(count) * ends.shape[1])[:, None]
            sums, tokens, rows = sums.take(going), tokens.take(going), rows.take(going)
        self.sums, self.newest, rows = sums[:, :width], tokens[:, :width], rows[:, :width]
        texts = self.texts if width == hypotheses == 1 else texts[rows]
        self.texts, self.lengths = _with_room(texts, int(length.max())), length
        self.texts[np.arange(count), :, before] = self.newest
        best = zip(self.sentences, self.sums[:, 0].tolist(), length.tolist(), strict=True)
        return rows, [rules.ended(sentence.finished, *sum_and_length) for sentence, *sum_and_length in best]

    def _candidates(self, added: Array, tokens: Array) -> tuple[Array, Array, Array]:
        """The best of what may come next of each sentence: sums, tokens, and rows of the step, (S, candidates) each."""
        count = len(self.sentences)
        sums = self.sums.reshape(-1, 1) + added
        if sums.size == count:
            return sums, tokens, np.arange(count)[:, None]
        sums = sums.reshape(count, -1)
        # by their places among all, which tell the row too
        places = np.argsort(-sums, axis=1, kind="stable")[:, : self.rules.candidates]
        places += (np.arange(count) * sums.shape[1])[:, None]
        return sums.take(places), tokens.take(places), places // added.shape[1]

    def keep(self, places: Sequence[int]) -> None:
        """Go on with these sentences alone."""
        self.sentences = [self.sentences[place] for place in places]
        self.sums, self.texts = self.sums[places], self.texts[places]
        self.lengths, self.newest = self.lengths[places], self.newest[places]

    def join(self, other: Search) -> None:
        """Go on with another's sentences too, below these; all have `width` hypotheses."""
        room = max(self.texts.shape[2], other.texts.shape[2])
        self.texts = np.concatenate([_with_room(search.texts, room) for search in (self, other)])
        self.sums = np.concatenate([self.sums, other.sums])
        self.lengths = np.concatenate([self.lengths, other.lengths])
        self.newest = np.concatenate([self.newest, other.newest])
        self.sentences += other.sentences

    def _finish(self, place: int, tokens: list[int], sum_of_logs: float) -> None:
        finished = self.sentences[place].finished
        finished.append(Translation(tokens, self.rules.normalized(sum_of_logs, len(tokens))))
        finished.sort(key=lambda one: -one.score)
        del finished[self.rules.beam.width :]


def _longest(given: int | None, wanted: int | None, signature: Signature, forced: int) -> int:
    """`max_tokens`, forced ones among them. The last is not read, and one start token is: a token for each position.

    Args:
        given: by the caller. wanted: by the caller or the graph.
    """
    if wanted is not None and wanted <= forced:
        raise UserError(
            f"max_tokens of more than {forced}, which every translation begins with",
            str(wanted),
            "ask for more",
            "sampling",
        )
    most, least = signature.reach, given or forced + 1
    if most is not None and most < least:
        raise UserError(
            f"max_tokens of at most {most}: this model's positions end at {most}",
            str(least),
            "ask for fewer, or export with --past-end clamp or wrap:N",
            "position",
        )
    return given or min(wanted or MAX_TOKENS, most or MAX_TOKENS)


def _among(tokens: Array, vocabulary: int) -> NDArray[np.bool_]:
    """Of each token whether it is one of these (vocabulary,)."""
    table = np.zeros(vocabulary, bool)
    table[tokens] = True
    return table


def _largest(values: Array, count: int) -> Array:
    """Places of the `count` largest of (N,), largest first, of equals the first."""
    if count == 1:
        return np.array([np.argmax(values)])
    edge = np.partition(values, values.size - count)[values.size - count]
    places = np.flatnonzero(values >= edge)
    return np.asarray(places[np.argsort(-values[places], kind="stable")[:count]])


def _with_room(texts: Array, length: int) -> Array:
    """Texts with room for `length` tokens, or for twice as many."""
    room = texts.shape[2]
    return texts if length <= room else np.pad(texts, ((0, 0), (0, 0), (0, max(length, 2 * room) - room)))


def _log_sums(logits: Array) -> Array:
    """log Σ exp of each row, float64 (R, 1)."""
    largest = logits.max(axis=1, keepdims=True)
    _require_finite(largest)
    sums = np.exp(logits - largest).sum(axis=1, keepdims=True, dtype=np.float64)
    return np.asarray(largest + np.log(sums))


def _require_finite(values: Array) -> None:
    if not math.isfinite(np.add.reduce(values, axis=None)):
        raise UserError("finite logits", "others", "check the graph with t2r verify", "graph")
