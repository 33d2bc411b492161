"""Evaluate translators on pairs: nats per token of the references, and BLEU (Papineni et al. 2002) by sacrebleu.

Checkpoints translate greedily with the eager model; exported graphs translate by beam search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from t2r_export.batches.pair_batches import Tokenizers, tokenize_pairs
from t2r_export.data.corpus import spread
from t2r_export.data.pairs import Pair
from t2r_export.graph.reader import read_graph
from t2r_export.quality.evaluate import Evaluation, evaluate
from t2r_export.quality.translations import Progress, is_graph, translate_by_graph, translate_greedily, translator_of
from t2r_runtime import Tokenizer
from t2r_runtime.errors import UserError

BATCH_TOKENS = 4096  # of both sides, padding included
LONGEST = 1024  # tokens per side; longer pairs are excluded from nats per token


@dataclass(frozen=True)
class Bleu:
    """Corpus BLEU."""

    score: float  # 0 to 100
    signature: str  # of sacrebleu
    sentences: int
    beam: int


@dataclass(frozen=True)
class PairEvaluation:
    """Result of `evaluate_pairs`."""

    text: Evaluation | None  # on the references; None for a graph
    bleu: Bleu | None  # None if not requested
    notes: tuple[str, ...]  # one line each


def evaluate_pairs(
    model: Path,
    pairs: Sequence[Pair],
    bleu: bool = False,
    beam: int = 1,
    device: str = "auto",
    on_progress: Progress = lambda done: None,
    eval_tokens: int = 0,
) -> PairEvaluation:
    """Evaluate a checkpoint or an exported graph on pairs.

    Args:
        pairs: at least one pair.
        bleu: translate the sources and compute BLEU.
        beam: beam width; checkpoints only support 1.
        on_progress: called with the number of translated sentences.
        eval_tokens: evaluate on evenly spread pairs with about this many target tokens; 0: all pairs.

    Raises:
        UserError: unusable or mismatched files, unsupported options, no pair to evaluate, or no sacrebleu.
    """
    graph = is_graph(model)
    if graph and not bleu:
        raise UserError("a model.pt or a folder, for nats per token", f"{model}", "pass one, or measure BLEU")
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
        return PairEvaluation(nats, None, loaded.warnings + notes)
    translations = translate_greedily(loaded, sources, on_progress)
    return PairEvaluation(nats, corpus_bleu(translations, references), loaded.warnings + notes)


def _some(pairs: Sequence[Pair], tokenizer: Tokenizer, tokens: int) -> Sequence[Pair]:
    """Evenly spread pairs with about `tokens` target tokens; 0: all."""
    if not tokens:
        return pairs
    there = sum(map(len, tokenizer.encode_documents([target for _, target in pairs])))
    chosen = spread(torch.arange(len(pairs)), max(1, len(pairs) * tokens // max(1, there)))
    return [pairs[n] for n in chosen.tolist()]


def corpus_bleu(translations: Sequence[str], references: Sequence[str], beam: int = 1) -> Bleu:
    """BLEU of translations with one reference each.

    Raises:
        UserError: sacrebleu is not installed.
    """
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError as error:
        raise UserError("sacrebleu, to compute BLEU", "none installed", "pip install sacrebleu") from error
    metric = BLEU()
    score = float(metric.corpus_score(list(translations), [list(references)]).score)
    return Bleu(score, str(metric.get_signature()), len(references), beam)
