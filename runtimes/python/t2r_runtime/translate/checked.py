"""Numbers and names that translations lack, and the translations that lack the fewest."""

from __future__ import annotations

from collections.abc import Sequence

from t2r_runtime.text.copied import missing_names, missing_numbers
from t2r_runtime.text.tokenizer import Tokenizer
from t2r_runtime.translate.beam import Translation


class Checked:
    """Checks the translations of a model by its tokenizers; see t2r_runtime.text.copied for what is found.

    Args:
        source, target: the tokenizers of sources and translations.
    """

    def __init__(self, source: Tokenizer, target: Tokenizer) -> None:
        self._source, self._target = source, target

    def missing(self, source: str, translation: str) -> list[str]:
        """Numbers and names of a source that are missing in its translation."""
        return missing_numbers(source, translation) + missing_names(source, translation, self._pieces)

    def ordered(self, source: str, found: Sequence[Translation]) -> list[Translation]:
        """Translations of a source, those that lack the fewest numbers and names first; else their order stays."""
        return sorted(found, key=lambda one: len(self.missing(source, self._target.decode(one.tokens))))

    def _pieces(self, word: str) -> int:
        return len(self._source.encode_documents([f" {word}"])[0])
