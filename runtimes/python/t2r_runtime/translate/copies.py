"""Numbers and names that a translation copies from its source: runtimes/contract/copies.md.

A hypothesis is read letter by letter by an automaton. Its states say which numbers and names are placed, and which one
is being written. A digit must begin or continue a number of the source that is not placed yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from t2r_runtime.contract.signature import Signature
from t2r_runtime.errors import UserError
from t2r_runtime.text.copied import Name, names
from t2r_runtime.text.numbers import MARKS, Number, numbers, spellings, unspelled
from t2r_runtime.text.tokenizer import Tokenizer

# what a hypothesis gains when it places an item, and what a translation loses that lacks it
NUMBER, CERTAIN_NAME, NAME = (2.0, 8.0), (6.0, 2.0), (2.0, 0.0)
MOST_ITEMS, MOST_LETTERS, MOST_STATES = 30, 32, 16
DIGITS = frozenset("0123456789")
_HALVES = {" p.m": (" p.m", " pm", " PM", "p.m", "pm"), " a.m": (" a.m", " AM", "a.m", "am")}


class State(NamedTuple):
    """A way to read a hypothesis."""

    placed: int  # mask of the items that are placed
    begun: str  # what is written of another one
    after: str  # the letter before: "gap", "word", or the mark after a number ("mark") or a part of a date ("part")


States = tuple[State, ...]
START: States = (State(0, "", "gap"),)


class Copying:
    """The source's tokenizer of a translator, and the text that each token adds within a translation."""

    def __init__(self, source: Tokenizer, target: Tokenizer, size: int) -> None:
        self._source = source
        [before] = target.encode_documents(["a"])
        cut = len(target.decode(before))
        self.texts = [target.decode([*before, token])[cut:] for token in range(size)]
        self.tokens: dict[str, list[int]] = {}
        for token, text in enumerate(self.texts):
            self.tokens.setdefault(text, []).append(token)
        self.digits = [token for token, text in enumerate(self.texts) if not DIGITS.isdisjoint(text)]

    def of(self, source: Sequence[int]) -> Copies | None:
        """What the translation of a source copies; None if that is nothing, or too much."""
        text = self._source.decode(source)
        given = list(numbers(text))
        if len(given) > MOST_ITEMS or any(len(number.text) > MOST_LETTERS for number in given):
            return None
        named = [name for name in names(text, lambda word: f" {word}" in self.tokens) if len(name.word) <= MOST_LETTERS]
        named = named[: MOST_ITEMS - len(given)]
        return Copies(self, given, named) if given or named else None


def copying_of(signature: Signature) -> Copying | None:
    """What a model needs to copy; None if a tokenizer is missing, or has parts that runtimes do not support."""
    target, own = signature.tokenizer, signature.source and signature.source.source_tokenizer
    return None if target is None else _copying(own or target, target, signature.vocab_size)


@lru_cache(maxsize=4)
def _copying(source: str, target: str, size: int) -> Copying | None:
    try:
        return Copying(Tokenizer._in_graph(source), Tokenizer._in_graph(target), size)
    except UserError:
        return None


class Copies:
    """The items that a translation copies: numbers and names of its source.

    Attributes:
        debt: what a hypothesis begins with: minus the gains of all items.
    """

    def __init__(self, copying: Copying, given: Sequence[Number], named: Sequence[Name]) -> None:
        self._copying, self._numbers = copying, given
        self._worth = [NUMBER] * len(given) + [CERTAIN_NAME if name.certain else NAME for name in named]
        self._parts = sum(1 << item for item, number in enumerate(given) if not number.whole)
        self._begun: dict[str, int] = {}  # beginning of a spelling → mask of the items
        self._spelled: dict[str, int] = {}  # spelling → mask of the items
        for item, number in enumerate(given):
            self._add(item, [form for spelling in spellings(number) for form in _with_halves(spelling)])
        for item, name in enumerate(named, len(given)):
            self._add(item, [name.word, name.word.removesuffix("s")])
        self.debt = -sum(gain for gain, _ in self._worth)
        self._known: dict[States, dict[int, tuple[States, float]]] = {}

    def read(self, tokens: Iterable[int]) -> States:
        """The states after tokens."""
        states = START
        for token in tokens:
            states, _ = self.advance(states, token)
        return states

    def advance(self, states: States, token: int) -> tuple[States, float]:
        """The states after a token, and what a hypothesis gains by it. No state: the token is not allowed."""
        known = self._known.setdefault(states, {})
        if token not in known:
            after = states
            for letter in self._copying.texts[token]:
                new = dict.fromkeys(new for state in after for new in self._next(state, letter))
                after = tuple(new)[:MOST_STATES]
            gain = max(map(self._gained, after)) - max(map(self._gained, states)) if after else 0.0
            known[token] = after, gain
        return known[token]

    def pieces(self, states: States) -> set[int]:
        """Tokens that begin or continue an item."""
        return {token for state in states for token in self._pieces(state)}

    def cost_of_ending(self, states: States, tokens: Iterable[int]) -> float:
        """What a translation of these tokens loses by the items that it lacks."""
        text = "".join(self._copying.texts[token] for token in tokens)
        return min(self._lost(state, text) for state in states)

    def _add(self, item: int, forms: Iterable[str]) -> None:
        for form in forms:
            self._spelled[form] = self._spelled.get(form, 0) | 1 << item
            for end in range(1, len(form) + 1):
                self._begun[form[:end]] = self._begun.get(form[:end], 0) | 1 << item

    def _gained(self, state: State) -> float:
        placed = state.placed | _first(self._begun.get(state.begun, 0) & ~state.placed)
        return sum(gain for item, (gain, _) in enumerate(self._worth) if placed >> item & 1)

    def _lost(self, state: State, text: str) -> float:
        placed = state.placed | _first(self._spelled.get(state.begun, 0) & ~state.placed)
        lacking = [number for item, number in enumerate(self._numbers) if not placed >> item & 1]
        of_names = list(enumerate(self._worth))[len(self._numbers) :]
        lost = sum(loss for item, (_, loss) in of_names if not placed >> item & 1)
        return NUMBER[1] * len(unspelled(lacking, text)) + lost

    def _next(self, state: State, letter: str) -> Iterator[State]:
        """The states after a letter."""
        placed, begun, after = state
        is_digit, of_number = letter in DIGITS, begun[:1] in DIGITS
        if self._begun.get(begun + letter, 0) & ~placed and (begun or self._may_begin(state, letter)):
            yield State(placed, begun + letter, after)
        if not begun and not is_digit:
            yield State(placed, "", _place(letter))
        done = _first(self._spelled.get(begun, 0) & ~placed)
        if done and not (is_digit if of_number else letter.isalpha()):
            mark = "part" if done & self._parts else "mark"
            yield State(placed | done, "", mark if of_number and letter in MARKS else _place(letter))

    def _may_begin(self, state: State, letter: str) -> bool:
        if letter not in DIGITS:
            return state.after == "gap"
        begun = self._begun[letter] & ~state.placed
        return state.after != "mark" and (state.after != "part" or begun & self._parts > 0)

    def _pieces(self, state: State) -> Iterator[int]:
        tokens = self._copying.tokens
        for form, items in self._spelled.items():
            if items & ~state.placed and form.startswith(state.begun):
                rest = form[len(state.begun) :]
                for end in range(1, len(rest) + 1):
                    yield from tokens.get(rest[:end], [])
                    if not state.begun:
                        yield from tokens.get(f" {rest[:end]}", [])


def _with_halves(spelling: str) -> Sequence[str]:
    """The ways to write a half of the day at the end of a spelling."""
    halves = _HALVES.get(spelling[-4:])
    return [spelling[:-4] + half for half in halves] if halves else [spelling]


def _place(letter: str) -> str:
    return "word" if letter.isalpha() else "gap"


def _first(mask: int) -> int:
    """The lowest bit."""
    return mask & -mask
