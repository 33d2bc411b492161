"""Translations of texts, from those of their sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from t2r_runtime.contract.signature import Signature
from t2r_runtime.session.segment import repeats
from t2r_runtime.text.copied import missing_names
from t2r_runtime.text.numbers import differing_numbers
from t2r_runtime.text.tokenizer import Tokenizer
from t2r_runtime.translate.beam import Beam, Translation
from t2r_runtime.translate.search import Rules


class Texts:
    """Chooses and joins the translations of the sentences of texts.

    Args:
        source, target, signature: the model's tokenizers and metadata.
        beam: the caller's options; `self.beam` has those of the search.
        check: prefer translations in which the fewest numbers and names differ from the source, and report those that
            are missing and numbers that are added; see t2r_runtime.text.numbers and t2r_runtime.text.copied.

    Raises:
        UserError: as for t2r_runtime.translate.search.Rules.
    """

    def __init__(
        self, source: Tokenizer, target: Tokenizer, signature: Signature, beam: Beam, check: bool = False
    ) -> None:
        rules = Rules(beam, signature)
        self._source, self._target, self._ends, self._check = source, target, signature.eos_tokens, check
        self._n_best, self.max_tokens = beam.n_best, rules.max_tokens
        self.beam = replace(beam, n_best=rules.beam.width) if check else beam

    def choose(self, sentence: str, found: Sequence[Translation]) -> Sequence[Translation]:
        """The `n_best` translations of a sentence, from those that the search has found."""
        if not self._check:
            return found

        def differing(one: Translation) -> int:
            return sum(map(len, self.differing(sentence, self._target.decode(one.tokens)).values()))

        return sorted(found, key=differing)[: self._n_best]

    def join(self, text: str, sentences: Sequence[Sequence[Translation]]) -> list[dict[str, Any]]:
        """The translations of a text, best first, from those chosen for each of its sentences.

        The score is the mean of the sentences' scores, weighted by tokens.
        """
        joined = [self._joined(each) for each in zip(*sentences, strict=True)]
        if not self._check:
            return joined
        return [{**one, **self.differing(text, one["text"])} for one in joined]

    def differing(self, source: str, translation: str) -> dict[str, list[str]]:
        """`missing`: numbers and names of a source that its translation lacks; `added`: numbers that it adds."""
        missing, added = differing_numbers(source, translation)
        return {"missing": missing + missing_names(source, translation, self._is_known), "added": added}

    def _joined(self, sentences: Sequence[Translation]) -> dict[str, Any]:
        tokens = [one.tokens for one in sentences]
        bodies = [each[:-1] if each[-1:] and each[-1] in self._ends else each for each in tokens]
        return {
            "text": " ".join(self._target.decode(each) for each in tokens),
            "tokens": [token for each in tokens for token in each],
            "score": sum(one.score * len(one.tokens) for one in sentences) / max(1, sum(map(len, tokens))),
            "cut": any(len(each) >= self.max_tokens for each in tokens),
            "repeats": any(map(repeats, bodies)),
        }

    def _is_known(self, word: str) -> bool:
        return len(self._source.encode_documents([f" {word}"])[0]) == 1
