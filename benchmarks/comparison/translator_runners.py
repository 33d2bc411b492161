"""Runners of translators, one class per engine, and their processes.

A runner imports only its own library. Sources and translations are token ids: tokenization is not measured. Search
options are the defaults of transformers' `generate`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from comparison.worker import Process, Resident

MAX_TOKENS = 256  # per translation without a forced length

Tokens = list[int]


class Runner(Protocol):
    """Interface of the runners."""

    def translate(self, sources: Sequence[Tokens], width: int, batch: int, length: int | None) -> list[Tokens]:
        """The best translation of each source, end token included.

        Args:
            sources: token ids with special tokens.
            width: beam width; 1 is greedy.
            batch: sentences side by side.
            length: forced length of every translation; None: until the end token.
        """


class T2R:
    """t2r graphs in t2r_runtime."""

    def __init__(self, path: Path, threads: int, options: Mapping[str, Any]) -> None:
        from t2r_runtime import Beam, Translator

        self._beam, self._translator = Beam, Translator(path, options.get("provider", "cpu"), threads)

    def translate(self, sources: Sequence[Tokens], width: int, batch: int, length: int | None) -> list[Tokens]:
        longest, shortest = length or MAX_TOKENS, length or 0
        beam = self._beam(width, max_tokens=longest, min_tokens=shortest, forced_end=False)
        return [best.tokens for (best,) in self._translator.translate(sources, beam, batch)]


class Transformers:
    """`generate` of transformers, in float32."""

    def __init__(self, path: Path, threads: int, options: Mapping[str, Any]) -> None:
        import torch
        import transformers

        torch.set_num_threads(threads)
        self._torch = torch
        self._model: Any = transformers.AutoModelForSeq2SeqLM.from_pretrained(path).eval()
        ends = self._model.generation_config.eos_token_id
        self._ends = set(ends if isinstance(ends, list) else [ends])

    def translate(self, sources: Sequence[Tokens], width: int, batch: int, length: int | None) -> list[Tokens]:
        parts = [sources[start : start + batch] for start in range(0, len(sources), batch)]
        return [found for part in parts for found in self._side_by_side(part, width, length)]

    def _side_by_side(self, sources: Sequence[Tokens], width: int, length: int | None) -> list[Tokens]:
        torch, longest = self._torch, max(map(len, sources))
        ids = torch.zeros(len(sources), longest, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, source in enumerate(sources):
            ids[row, : len(source)], mask[row, : len(source)] = torch.tensor(source), 1
        limits = {"max_new_tokens": length or MAX_TOKENS, "min_new_tokens": length}
        found = self._model.generate(ids, attention_mask=mask, num_beams=width, do_sample=False, **limits)
        return [self._ended(row[1:]) for row in found.tolist()]

    def _ended(self, tokens: Tokens) -> Tokens:
        """Tokens up to the first end token."""
        end = next((place for place, token in enumerate(tokens) if token in self._ends), len(tokens))
        return tokens[: end + 1]


class CTranslate2:
    """CTranslate2 with a model of its own converter. Its tokens are strings."""

    def __init__(self, path: Path, threads: int, options: Mapping[str, Any]) -> None:
        import ctranslate2

        kind = options["compute_type"]
        self._translator = ctranslate2.Translator(str(path), compute_type=kind, intra_threads=threads, inter_threads=1)
        self._texts = json.loads((path / "shared_vocabulary.json").read_text(encoding="utf-8"))
        self._ids = {text: token for token, text in enumerate(self._texts)}

    def translate(self, sources: Sequence[Tokens], width: int, batch: int, length: int | None) -> list[Tokens]:
        found = self._translator.translate_batch(
            [[self._texts[token] for token in source] for source in sources],
            max_batch_size=batch,
            beam_size=width,
            max_input_length=0,
            max_decoding_length=length or MAX_TOKENS,
            min_decoding_length=length or 1,
            return_end_token=True,
        )
        return [[self._ids[text] for text in one.hypotheses[0]] for one in found]


RUNNERS: dict[str, type[Runner]] = {"t2r": T2R, "transformers": Transformers, "ctranslate2": CTranslate2}


class Measured(Resident):
    """A timed runner, served by the process. Arguments as for Worker."""

    def __init__(self, engine: str, path: Path, threads: int, options: Mapping[str, Any]) -> None:
        self._runner: Runner = RUNNERS[engine](path, threads, options)  # type: ignore[call-arg]

    def translate(
        self, sources: Sequence[Tokens], width: int, batch: int, length: int | None = None
    ) -> tuple[float, list[Tokens]]:
        """Seconds and translations; arguments as for Runner."""
        start = time.perf_counter()
        found = self._runner.translate(sources, width, batch, length)
        return time.perf_counter() - start, found


class Worker(Process):
    """A `Measured` in its own process; has its methods.

    Args:
        engine: a key of RUNNERS.
        path: the model.
        threads: threads per operator.
        options: other options of the runner.
    """

    def __init__(self, engine: str, path: Path, threads: int, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(Measured, threads, engine, path, threads, dict(options or {}))
