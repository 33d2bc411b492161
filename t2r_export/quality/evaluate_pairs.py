"""How well a translator does on pairs: nats per token of the translations that are there, and BLEU of its own.

BLEU (Papineni et al. 2002) is what sacrebleu computes, with the signature that says how. The translations are the eager
model's, greedy, or an exported graph's, by beam search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from t2r_export.data.corpus import spread
from t2r_export.data.pair_batches import Tokenizers, tokenize_pairs
from t2r_export.data.pairs import Pair
from t2r_export.graph.reader import read_graph
from t2r_export.quality.evaluate import Evaluation, evaluate
from t2r_export.quality.translations import Progress, is_graph, translate_by_graph, translate_greedily, translator_of
from t2r_runtime import Tokenizer
from t2r_runtime.errors import UserError

BATCH_TOKENS = 4096  # of both sides with their padding
LONGEST = 1024  # tokens of a side; longer pairs are left out of nats per token


@dataclass(frozen=True)
class Bleu:
    """A corpus's score, from 0 to 100."""

    score: float
    signature: str  # sacrebleu's: how the score was computed
    sentences: int
    beam: int


@dataclass(frozen=True)
class PairEvaluation:
    """What was measured of a translator."""

    text: Evaluation | None  # per token of the translations that are there; None of a graph
    bleu: Bleu | None  # None where nobody asked
    notes: tuple[str, ...]  # a line each


def evaluate_pairs(
    model: Path,
    pairs: Sequence[Pair],
    bleu: bool = False,
    beam: int = 1,
    device: str = "auto",
    on_progress: Progress = lambda done: None,
    eval_tokens: int = 0,
) -> PairEvaluation:
    """Measure `model`, a checkpoint or an exported graph, on pairs.

    Args:
        pairs: at least one.
        bleu: translate the sources too. beam: its width, of a graph.
        on_progress: called with the number of sentences that are translated.
        eval_tokens: measure on as many pairs, evenly spread, as have about so many tokens in their translations; 0: on
            all.

    Raises:
        UserError: files that cannot be used or do not suit each other, a beam of a checkpoint, nothing that can be
            measured, or no sacrebleu.
    """
    graph = is_graph(model)
    if graph and not bleu:
        raise UserError("a model.pt or a folder, for nats per token", f"{model}", "give that, or ask for BLEU")
    if beam > 1 and not (graph and bleu):
        received = f"{model}" if bleu else "none of BLEU"
        raise UserError("an exported graph and BLEU, for a beam", received, "export the model, or leave the beam out")
    if graph:
        pairs = _some(pairs, Tokenizer.of(read_graph(model).signature), eval_tokens)
        sources, references = [source for source, _ in pairs], [target for _, target in pairs]
        translations = translate_by_graph(model, sources, beam, on_progress)
        return PairEvaluation(None, corpus_bleu(translations, references, beam), ())
    loaded = translator_of(model, device)
    tokenizers = Tokenizers(loaded.tokenizer, loaded.source_tokenizer)
    if loaded.tokenizer is not None:
        pairs = _some(pairs, Tokenizer(loaded.tokenizer), eval_tokens)
    sources, references = [source for source, _ in pairs], [target for _, target in pairs]
    tokens, left_out = tokenize_pairs(pairs, tokenizers, loaded.config, LONGEST)
    nats = evaluate(loaded.model, tokens.batches(BATCH_TOKENS))
    notes = (f"{left_out} pairs are too long for nats per token",) if left_out else ()
    if not bleu:
        return PairEvaluation(nats, None, loaded.notes + notes)
    translations = translate_greedily(loaded, sources, on_progress)
    return PairEvaluation(nats, corpus_bleu(translations, references), loaded.notes + notes)


def _some(pairs: Sequence[Pair], tokenizer: Tokenizer, tokens: int) -> Sequence[Pair]:
    """As many pairs, evenly spread, as have about so many tokens in their translations; 0: all."""
    if not tokens:
        return pairs
    there = sum(map(len, tokenizer.encode_documents([target for _, target in pairs])))
    chosen = spread(torch.arange(len(pairs)), max(1, len(pairs) * tokens // max(1, there)))
    return [pairs[n] for n in chosen.tolist()]


def corpus_bleu(translations: Sequence[str], references: Sequence[str], beam: int = 1) -> Bleu:
    """BLEU of translations against one reference each.

    Raises:
        UserError: sacrebleu is not installed.
    """
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError as error:
        raise UserError("sacrebleu, to compute BLEU", "none installed", "pip install 't2r-export[bleu]'") from error
    metric = BLEU()
    score = float(metric.corpus_score(list(translations), [list(references)]).score)
    return Bleu(score, str(metric.get_signature()), len(references), beam)
