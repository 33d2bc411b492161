"""/v1/translate: translates texts with a translator."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from t2r_runtime.contract.options import BeamOptions
from t2r_runtime.errors import UserError
from t2r_runtime.serve.errors import of, wrong
from t2r_runtime.serve.fields import Fields
from t2r_runtime.serve.models import MAX_BODY, MAX_CHOICES, Model, Served
from t2r_runtime.serve.translations import Translations
from t2r_runtime.session.segment import split_sentences
from t2r_runtime.translate.beam import Beam, Translation
from t2r_runtime.translate.texts import Texts

MAX_BEAM = 64
MAX_SENTENCES = 1 << 14  # of a request; a book has fewer


async def translate(served: Served, model: Model, fields: Fields) -> dict[str, Any]:
    """Translate the texts of a request. Raises ApiError."""
    translations = model.translator()
    texts = fields.texts("source", MAX_CHOICES, MAX_BODY)
    if not texts:
        raise wrong("a text, or a list of texts, as source", "none", "pass one", "source")
    best = fields.whole("n", 1, 1, MAX_BEAM) or 1
    beam = Beam(
        fields.whole("beam", None, 1, MAX_BEAM),
        fields.option("length_penalty", BeamOptions),
        max_tokens=fields.whole("max_tokens", None, 1, served.limits.max_tokens),
        n_best=best,
        copy=None if fields.flag("copy", True) else False,
    )
    split, checking = fields.flag("split", best == 1), fields.flag("check_numbers")
    fields.end()
    signature, tokenizer, target = model.signature, model.text(), model.target()
    choosing = Texts(tokenizer, target, signature, beam, checking)

    def encoded(sentence: str) -> NDArray[np.int64]:
        try:
            return translations.translator.checked(tokenizer.encode(sentence))
        except UserError as error:
            raise of(error, "source") from error

    def joined(text: str, line: Sequence[str]) -> list[dict[str, Any]]:
        return choosing.join(text, [choosing.choose(sentence, next(found)) for sentence in line])

    encoders = served.encoders
    lines = await encoders.each(split_sentences if split else lambda text: [text], texts, None, "source")
    sentences = [sentence for line in lines for sentence in line]
    if len(sentences) > MAX_SENTENCES:
        raise wrong(f"at most {MAX_SENTENCES:,} sentences", f"{len(sentences):,}", "send several requests", "source")
    sources = await encoders.each(encoded, sentences, model.most_tokens, "source")
    found = iter(await _translated(served, translations, sources, choosing.beam))
    answers, tokens = [], 0
    for index, (text, line) in enumerate(zip(texts, lines, strict=True)):
        each = await encoders.run(len(text), functools.partial(joined, text, line))
        answers.append({"index": index, "source": text, "translations": each})
        tokens += sum(len(one["tokens"]) for one in each)
    read = sum(map(len, sources))
    served.metrics.count("t2r_prompt_tokens_total", read, model=model.name)
    served.metrics.count("t2r_generated_tokens_total", tokens, model=model.name)
    usage = {"prompt_tokens": read, "completion_tokens": tokens, "total_tokens": read + tokens}
    return {"object": "translation", "model": model.name, "data": answers, "usage": usage}


async def _translated(
    served: Served, translations: Translations, sources: list[NDArray[np.int64]], beam: Beam
) -> list[list[Translation]]:
    """The translations of each source. Raises ApiError if they take too long."""
    request = translations.submit(sources, beam)
    try:
        async with asyncio.timeout(served.limits.seconds):
            await asyncio.shield(request.done)
    except TimeoutError:
        seconds = f"{served.limits.seconds:g} s"
        raise wrong("a translation in time", f"none in {seconds}", "send fewer texts", status=503) from None
    finally:
        if not request.done.done():
            translations.cancel(request)
    return [request.found[place] for place in range(len(sources))]
