"""Unknown texts of a model that the vocabulary has: `surfaces` of runtimes/contract/text.md.

Marian divides a text by the pieces of one language, and looks up the result in the vocabulary of both.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

from t2r_runtime.errors import UserError
from t2r_runtime.text.tokenizer_parts import DO, FORM, Data, field


@dataclass(frozen=True)
class Encoded:
    """Tokens of a text, and the characters that each comes from."""

    ids: list[int]
    offsets: Sequence[tuple[int, int]]

    def __len__(self) -> int:
        return len(self.ids)


class Surfaces:
    """Replaces tokens whose text is in `surfaces` of a tokenizer.json's model.

    Args:
        added: contents of added tokens, which are not replaced.

    Raises:
        UserError: something else than texts with token ids.
    """

    def __init__(self, model: Data, added: Container[str]) -> None:
        surfaces, vocab = field(model, "surfaces", dict, {}), model["vocab"]
        if not all(type(number) is int and 0 <= number < len(vocab) for number in surfaces.values()):
            raise UserError(FORM, "surfaces that are not tokens", DO, "tokenizer")
        self._ids = {text: number for text, number in surfaces.items() if text not in added}
        self._replaced = set[int]()
        if self._ids:
            pieces = {text: n for n, (text, _) in enumerate(vocab)} if isinstance(vocab, list) else vocab
            self._replaced = {pieces[text] for text in self._ids if text in pieces} | {field(model, "unk_id", int, -1)}

    def replaces(self, ids: Sequence[int]) -> bool:
        """Whether some of the library's tokens may be replaced."""
        return bool(self._replaced) and not self._replaced.isdisjoint(ids)

    def encoded(self, found: Any) -> Encoded:
        """The library's Encoding with its tokens replaced."""
        ids = [self._ids.get(text, number) for number, text in zip(found.ids, found.tokens, strict=True)]
        return Encoded(ids, found.offsets)
