"""Beam search over several sentences, as defined in runtimes/contract/translators.md.

The search takes the outputs of a step and returns the rows of the step to continue from; the caller moves the states.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.checks import not_finite, require_kind, require_value
from t2r_runtime.contract.penalties import penalized
from t2r_runtime.contract.signature import LOGITS, Signature
from t2r_runtime.errors import UserError
from t2r_runtime.session.states import LOGITS_ALONE, TOP_LOG
from t2r_runtime.translate.beam import Beam, Translation
from t2r_runtime.translate.copies import Copies, States, copying_of

MAX_TOKENS = 256  # default limit of a translation

Array = NDArray[Any]


class Rules:
    """A Beam resolved for one model.

    Raises:
        UserError: a width above the vocabulary, too few positions, or no token that may be chosen.
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
        require_value(width <= vocabulary, f"a beam of at most the vocabulary, {vocabulary}", width, "sampling")
        if len({*self.ends.tolist(), *self.banned.tolist()}) == vocabulary:
            raise UserError("a token that is neither an end nor banned", "none", "export the model again", "metadata")
        self.candidates = 1 if width == 1 else max(2, 1 + len(self.ends)) * width
        enough = self.candidates + len(self.banned) + (len(self.ends) if self.beam.min_tokens else 0)
        self.enough = min(enough, vocabulary)
        few = signature.has_log_sum and self.enough <= (signature.top_k or 0) and not self.beam.looks_back
        self.wanted = TOP_LOG if few else LOGITS_ALONE  # required outputs of a step
        self.wanted_to_copy = (*self.wanted, LOGITS) if few else LOGITS_ALONE  # the same, with all logits last
        self._copying = copying_of(signature) if self.beam.copy else None

    def copies(self, source: Array) -> Copies | None:
        """What the translation of a source copies of it; None if nothing."""
        return None if self._copying is None else self._copying.of(source.tolist())

    def choices(self, outputs: Sequence[Array], texts: Array, lengths: Array, longest: int) -> tuple[Array, Array]:
        """Candidate tokens and their log-probabilities.

        Args:
            outputs: the outputs `wanted` or `wanted_to_copy` of a step with R rows.
            texts: tokens of each row (R, length or more).
            lengths: number of tokens of each row (R,).
            longest: the largest of `lengths`.

        Returns:
            Log-probabilities, float64 (R, C), in descending order, and tokens, int64 (R, C). -inf is never chosen.

        Raises:
            UserError: logits are not finite.
        """
        if self.wanted is TOP_LOG:
            logits, tokens, log_sums, *_ = outputs
            _require_finite(log_sums)
            tokens = tokens[:, : self.enough]
            added = np.subtract(logits[:, : self.enough], log_sums[:, None], dtype=np.float64)
            if self.banned.size:
                added[self.is_banned[tokens]] = -np.inf
            if self.beam.min_tokens:
                added[self.is_end[tokens] & (lengths < self.beam.min_tokens)[:, None]] = -np.inf
        else:
            added, tokens = self._of_all(outputs[0], texts, lengths)
        if self.forces_end(longest):
            last, tokens = lengths == self.max_tokens - 1, tokens.copy()
            added[last], tokens[last] = -np.inf, self.ends[0]
            added[last, 0] = 0
        return added, tokens

    def copied(self, logits: Array, text: Array, copies: Copies, states: States) -> tuple[Array, Array]:
        """`choices` of a hypothesis (C,) whose translation copies its source, from all logits (vocabulary,)."""
        assert self._copying is not None
        if self.forces_end(text.size):
            value = np.where(np.arange(logits.size) == self.ends[0], 0, -np.inf)
        else:
            values, rest = self._values(logits[None], text[None], np.array([text.size]))
            value = values[0] - rest[0]
        others = value.copy()
        others[self._copying.digits] = -np.inf
        choices = []
        for token in {*_largest(others, self.enough).tolist(), *copies.pieces(states), *self.ends.tolist()}:
            after, gain = copies.advance(states, token)
            if after and value[token] > -np.inf:
                ends = self.is_end[token] or text.size + 1 == self.max_tokens
                cost = copies.cost_of_ending(after, [*text.tolist(), token]) if ends else 0
                choices.append((value[token] + gain - cost, token))
        if not choices:  # no token can write what is begun
            choices = [(value[token], token) for token in _largest(value, self.enough).tolist()]
        choices.sort(key=lambda one: (-one[0], one[1]))
        choices += [(-np.inf, 0)] * (self.enough - len(choices))
        added, tokens = zip(*choices[: self.enough], strict=True)
        return np.array(added), np.array(tokens)

    def _of_all(self, logits: Array, texts: Array, lengths: Array) -> tuple[Array, Array]:
        """`choices` from logits (R, vocabulary): the `enough` largest per row, of equals the lowest token first."""
        values, log_sums = self._values(logits, texts, lengths)
        added, tokens = np.empty((len(values), self.enough)), np.empty((len(values), self.enough), np.int64)
        for row, value in enumerate(values):
            tokens[row] = _largest(value, self.enough)
            added[row] = value[tokens[row]]
        return added - log_sums, tokens

    def _values(self, logits: Array, texts: Array, lengths: Array) -> tuple[Array, Array]:
        """What every token adds (R, vocabulary), and what is still to be subtracted (R, 1): in a greedy search, where
        penalties apply to logits, as in t2r_runtime.Sampling, the logarithm of the sum."""
        log_sums = _log_sums(logits)
        before = np.zeros_like(log_sums) if self.beam.width == 1 else log_sums
        values = logits.astype(np.float64) - before
        values[:, self.banned] = -np.inf
        values[np.ix_(lengths < self.beam.min_tokens, self.ends)] = -np.inf
        if self.beam.looks_back:
            for row in range(len(values)):
                text = np.concatenate([[self.start], texts[row, : lengths[row]]])
                values[row] = penalized(values[row], text, self.beam.repetition_penalty, self.beam.no_repeat_ngram)
        return values, log_sums - before

    def forces_end(self, length: int) -> bool:
        """Whether only an end token may follow a text of this length."""
        return self.beam.forced_end and self.ends.size > 0 and length == self.max_tokens - 1

    def normalized(self, sum_of_logs: float, tokens: int) -> float:
        """The score of a hypothesis."""
        return sum_of_logs / math.pow(tokens, self.beam.length_penalty)

    def ended(self, finished: Sequence[Translation], best: float, tokens: int) -> bool:
        """Whether a sentence is done, given the sum and length of its best unfinished hypothesis."""
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
    """A source, and its finished translations, best first."""

    handle: int
    source_length: int
    copies: Copies | None = None
    finished: list[Translation] = field(default_factory=list)


class Search:
    """Beam search over S sentences with R hypotheses each; rows of a step are grouped by sentence.

    It starts with one hypothesis per sentence, the forced tokens.
    """

    def __init__(self, rules: Rules, sentences: Sequence[Sentence]) -> None:
        self.rules, self.sentences = rules, list(sentences)
        count = len(self.sentences)
        sums = [[sentence.copies.debt if sentence.copies else 0.0] for sentence in self.sentences]
        self.sums = np.array(sums).reshape(count, 1)  # sums of log-probabilities (S, R), descending
        self.copying = [[one.copies.read(rules.forced)] if one.copies else None for one in self.sentences]
        forced = np.array(rules.forced, np.int64)
        self.texts = np.zeros((count, 1, forced.size + 16), np.int64)  # capacity beyond the first `lengths`
        self.texts[:, :, : forced.size] = forced
        self.lengths = np.full(count, forced.size)  # number of tokens per hypothesis of each sentence
        self.newest = np.zeros((count, 1), np.int64)  # the last token of each hypothesis, not read yet

    def advance(self, outputs: Sequence[Array]) -> tuple[NDArray[np.int64], list[bool]]:
        """Extend the hypotheses by one token and keep the best `width` per sentence.

        Args:
            outputs: the outputs `rules.wanted` of a step that has read `newest`.

        Returns:
            The rows of the step that the hypotheses continue from (S, width), and which sentences are done.
        """
        rules, width = self.rules, self.rules.beam.width
        count, hypotheses = self.sums.shape
        texts, lengths = self.texts.reshape(count * hypotheses, -1), self.lengths.tolist()
        longest = max(lengths)
        added, tokens = rules.choices(outputs, texts, self.lengths.repeat(hypotheses), longest)
        for place, copies, states in self._copying():
            for row, state in enumerate(states, place * hypotheses):
                text = texts[row, : lengths[place]]
                added[row], tokens[row] = rules.copied(outputs[-1][row], text, copies, state)
        sums, tokens, rows = self._candidates(added, tokens)
        before, length = self.lengths, self.lengths + 1
        ends = rules.is_end[tokens]
        if longest + 1 == rules.max_tokens:
            ends |= (length == rules.max_tokens)[:, None]
        if np.logical_or.reduce(ends, axis=None):
            for sentence, place in np.argwhere(ends[:, :width] & (sums[:, :width] > -np.inf)).tolist():
                text = texts[rows[sentence, place], : before[sentence]].tolist()
                self._finish(sentence, [*text, int(tokens[sentence, place])], float(sums[sentence, place]))
            sums[ends] = -np.inf
            going = np.argsort(ends, axis=1, kind="stable")[:, :width]  # unfinished ones, in order
            going += (np.arange(count) * ends.shape[1])[:, None]
            sums, tokens, rows = sums.take(going), tokens.take(going), rows.take(going)
        self.sums, self.newest, rows = sums[:, :width], tokens[:, :width], rows[:, :width]
        for place, copies, states in self._copying():
            pairs = zip(rows[place].tolist(), self.newest[place].tolist(), strict=True)
            self.copying[place] = [copies.advance(states[row - place * hypotheses], token)[0] for row, token in pairs]
        texts = self.texts if width == hypotheses == 1 else texts[rows]
        self.texts, self.lengths = _with_room(texts, longest + 1), length
        if min(lengths) == longest:  # a slice is faster than an array of indices
            self.texts[:, :, longest] = self.newest
        else:
            self.texts[np.arange(count), :, before] = self.newest
        best = zip(self.sentences, self.sums[:, 0].tolist(), length.tolist(), strict=True)
        return rows, [rules.ended(sentence.finished, *sum_and_length) for sentence, *sum_and_length in best]

    def _copying(self) -> Iterator[tuple[int, Copies, list[States]]]:
        for place, (sentence, states) in enumerate(zip(self.sentences, self.copying, strict=True)):
            if sentence.copies is not None and states is not None:
                yield place, sentence.copies, states

    @property
    def wanted(self) -> tuple[str, ...]:
        """Required outputs of a step."""
        return self.rules.wanted_to_copy if any(self.copying) else self.rules.wanted

    def _candidates(self, added: Array, tokens: Array) -> tuple[Array, Array, Array]:
        """The best candidates per sentence: sums, tokens and rows of the step, (S, candidates) each."""
        count = len(self.sentences)
        sums = self.sums.reshape(-1, 1) + added
        if sums.size == count:
            return sums, tokens, np.arange(count)[:, None]
        sums = sums.reshape(count, -1)
        # indices into all candidates, which imply the row
        places = np.argsort(-sums, axis=1, kind="stable")[:, : self.rules.candidates]
        places += (np.arange(count) * sums.shape[1])[:, None]
        return sums.take(places), tokens.take(places), places // added.shape[1]

    def keep(self, places: Sequence[int]) -> None:
        """Keep these sentences."""
        self.sentences = [self.sentences[place] for place in places]
        self.copying = [self.copying[place] for place in places]
        self.sums, self.texts = self.sums[places], self.texts[places]
        self.lengths, self.newest = self.lengths[places], self.newest[places]

    def join(self, other: Search) -> None:
        """Append the sentences of another search; all have `width` hypotheses."""
        room = max(self.texts.shape[2], other.texts.shape[2])
        self.texts = np.concatenate([_with_room(search.texts, room) for search in (self, other)])
        self.sums = np.concatenate([self.sums, other.sums])
        self.lengths = np.concatenate([self.lengths, other.lengths])
        self.newest = np.concatenate([self.newest, other.newest])
        self.sentences += other.sentences
        self.copying += other.copying

    def _finish(self, place: int, tokens: list[int], sum_of_logs: float) -> None:
        finished = self.sentences[place].finished
        finished.append(Translation(tokens, self.rules.normalized(sum_of_logs, len(tokens))))
        finished.sort(key=lambda one: -one.score)
        del finished[self.rules.beam.width :]


def _longest(given: int | None, wanted: int | None, signature: Signature, forced: int) -> int:
    """Resolve `max_tokens`, which includes forced tokens. A start token is read and the last token is not.

    Args:
        given: the caller's option.
        wanted: the caller's or the graph's option.
    """
    if wanted is not None and wanted <= forced:
        expected = f"max_tokens above {forced}, the number of forced tokens"
        raise UserError(expected, str(wanted), "choose a larger value", "sampling")
    most, least = signature.reach, given or forced + 1
    if most is not None and most < least:
        expected = f"max_tokens of at most {most}: this model's positions end at {most}"
        raise UserError(expected, str(least), "request fewer, or export with --past-end clamp or wrap:N", "position")
    return given or min(wanted or MAX_TOKENS, most or MAX_TOKENS)


def _among(tokens: Array, vocabulary: int) -> NDArray[np.bool_]:
    """Mask of these tokens (vocabulary,)."""
    table = np.zeros(vocabulary, bool)
    table[tokens] = True
    return table


def _largest(values: Array, count: int) -> Array:
    """Indices of the `count` largest values (N,), in descending order, of equals the first."""
    if count == 1:
        return np.array([np.argmax(values)])
    edge = np.partition(values, values.size - count)[values.size - count]
    places = np.flatnonzero(values >= edge)
    return np.asarray(places[np.argsort(-values[places], kind="stable")[:count]])


def _with_room(texts: Array, length: int) -> Array:
    """Grow the capacity of texts to at least `length`, doubling it."""
    room = texts.shape[2]
    return texts if length <= room else np.pad(texts, ((0, 0), (0, 0), (0, max(length, 2 * room) - room)))


def _log_sums(logits: Array) -> Array:
    """Log-sum-exp of each row, float64 (R, 1)."""
    largest = logits.max(axis=1, keepdims=True)
    _require_finite(largest)
    sums = np.exp(logits - largest).sum(axis=1, keepdims=True, dtype=np.float64)
    return np.asarray(largest + np.log(sums))


def _require_finite(values: Array) -> None:
    if not math.isfinite(np.add.reduce(values, axis=None)):
        raise not_finite()
