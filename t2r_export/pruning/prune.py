"""Prune layers, heads, feed-forward features, state channels and ranks.

Units of a part are ordered by gradient or by column pivoting (t2r_export.pruning.orders); the size of each part is
chosen by nats per token (t2r_export.pruning.versions). The result is an ordinary model with smaller parts, whose sizes
may differ by layer. Finetune it with the unpruned model as the teacher.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from t2r_export.batches.batch import window_batches
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.checkpoints.untrained import marked, untrained, without_layers
from t2r_export.config.pruning import KINDS, PruneConfig
from t2r_export.config.tagged import resolve
from t2r_export.data.corpus import held_out_windows
from t2r_export.data.shards import Corpus
from t2r_export.model.transformer import Transformer
from t2r_export.pruning.versions import Offer, Version, assembled, chosen, measured, state_bytes, weight_bytes
from t2r_export.quality.evaluate import evaluate

AT_ONCE = 4  # windows


@dataclass(frozen=True)
class Pruned:
    """Result of `prune`."""

    model: Transformer
    chosen: dict[str, list[Version]]  # by kind, one per part or layer
    nats: tuple[float, float]  # per token of the valid part, before and after
    bytes: tuple[int, int]  # of the weights
    state_bytes: tuple[int, int]  # per sequence; growing states at one token

    def rows(self) -> list[tuple[str, int, int, int, float]]:
        """Kind, layer, units kept and before, and the cost of this change alone in nats per token, per version."""
        return [
            (kind, version.layer, version.kept, version.of, version.cost)
            for kind, versions in self.chosen.items()
            for version in versions
        ]


def prune(
    model: Transformer,
    config: PruneConfig,
    corpus: Corpus,
    on_progress: Callable[[str], object] = lambda line: None,
    window: int = 256,
    windows: int = 32,
) -> Pruned:
    """A smaller copy of `model`.

    Args:
        corpus: its train part orders units, its valid part measures costs; the test part is not read.
        window: tokens per window, limited by the model's positions; rows of a .npy keep their length.
        windows: maximum per part of the corpus, evenly spread.
        on_progress: called with a line per pruned part or layer, and per part that keeps its units.

    Raises:
        UserError: a translator, no units of a kind, a share that leaves less than one unit, too little text.
    """
    model.require_decoder("to prune by its text", "prune a decoder")
    window = corpus.row or min(window, model.reach or window)
    known, held_out = (held_out_windows(part, window, windows) for part in (corpus.train, corpus.valid))
    batches = window_batches(held_out, AT_ONCE)
    pruned, versions = model, dict[str, list[Version]]()
    for kind, share in config.shares.items():
        offer: Offer = resolve(KINDS[kind])(pruned, known)
        for line in offer.refused:
            on_progress(line)
        places = measured(pruned, kind, offer, batches, on_progress)
        versions[kind] = chosen(kind, share, places)
        pruned = assembled(pruned, versions[kind])
    nats = evaluate(model, batches).nats, evaluate(pruned, batches).nats
    weights, states = ((size(model), size(pruned)) for size in (weight_bytes, state_bytes))
    return Pruned(pruned, versions, nats, weights, states)


def provenance(original: Checkpoint, pruned: Pruned, /, **done: Any) -> dict[str, Any]:
    """Provenance of a pruned checkpoint: the original's, with `done` appended to its prunings."""
    earlier = original.provenance.get("prune", [])
    made = {**original.provenance, "prune": [*earlier, {"source_sha256": original.sha256, **done}]}
    gone = {each.layer for each in pruned.chosen.get("layers", ()) if not each.kept}
    return marked(made, without_layers(untrained(original.provenance), gone))
