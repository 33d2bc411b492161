"""Sensitivity equals the KL of the model with rounded weights, on text and on pairs."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

import small
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.export import build
from t2r_export.graph.bundle import Bundle
from t2r_export.model.transformer import Transformer
from t2r_export.quantizers.pairs import TokenPair
from t2r_export.quantizers.sensitivity import Sensitivity, pair_passages, text_passages
from t2r_runtime.errors import UserError


def built(model: Transformer, batch: int | None = None) -> Bundle:
    return build(Checkpoint(model.config, model, None, {}, "0" * 64), ExportConfig(batch=batch))[0]


def divergence(model: Transformer, name: str, other: Tensor, logits: Callable[[], list[Tensor]]) -> float:
    """KL per token if a weight has another value, for logits (N, vocabulary) each."""
    weight = dict(model.named_parameters())[name]
    with torch.no_grad():
        before, own = logits(), weight.clone()
        weight.copy_(other)
        after = logits()
        weight.copy_(own)
    of_rows = [
        (p.log_softmax(-1).exp() * (p.log_softmax(-1) - q.log_softmax(-1))).sum(-1)
        for p, q in zip(before, after, strict=True)
    ]
    return float(torch.cat(of_rows).mean())


@pytest.mark.parametrize("name", ["blocks.1.parts.0.o.weight", "encoder.blocks.0.parts.1.up.weight"])
def test_sensitivity_on_pairs(name: str) -> None:
    model, chance = small.model(small.translator()), random.Random(0)
    bundle = built(model)
    assert model.config.encoder is not None
    sizes = (model.config.encoder.vocab_size or model.config.vocab_size, model.config.vocab_size)
    pairs = [
        TokenPair(*([chance.randrange(size) for _ in range(chance.randint(2, 7))] for size in sizes)) for _ in range(6)
    ]
    pairs = [TokenPair(pair.source, [3, *pair.target]) for pair in pairs]
    found = Sensitivity(bundle, pair_passages(pairs, bundle.signature))
    matrix = found.graphs.matrices[name]
    other = (matrix * 1.3 + np.linspace(-0.2, 0.2, matrix.shape[1])).astype(np.float32)

    def logits() -> list[Tensor]:
        rows = []
        for pair in pairs:
            start = model.start(torch.tensor([pair.source]), torch.tensor([len(pair.source)]))
            rows.append(model.prefill(torch.tensor([pair.target[:-1]]), start)[0][0])
        return rows

    expected = divergence(model, name, torch.tensor(other).T, logits)
    assert expected > 1e-3
    assert found.cost(name, other) == pytest.approx(expected, rel=1e-3)
    assert found.cost(name, matrix) == 0


@pytest.mark.parametrize("batch", [None, 3])
def test_sensitivity_on_text(batch: int | None) -> None:
    model, tokens = small.model("hybrid"), np.random.default_rng(0).integers(0, 11, 100)
    bundle = built(model, batch)
    passages = text_passages(tokens, bundle.signature)
    found, name = Sensitivity(bundle, passages), "blocks.0.parts.0.o.weight"
    ids = torch.from_numpy(passages[0].ids)
    assert tuple(ids.shape) == ((16, 6) if batch is None else (3, 33))
    other = found.graphs.matrices[name][::-1].copy()
    expected = divergence(model, name, torch.tensor(other).T, lambda: [model.logits_of(model.traces(ids)[-1].output)])
    assert found.cost(name, other) == pytest.approx(expected, rel=1e-3) and expected > 1e-3
    with pytest.raises(UserError, match=f"a text of at least {batch or 16} tokens; received 2; name a longer one"):
        text_passages(tokens[:2], bundle.signature)


def test_pair_passages_match_text_size() -> None:
    signature = built(small.model(small.translator())).signature
    pairs = [TokenPair([1], [3, number % 7, 2]) for number in range(4000)]
    passages = pair_passages(pairs, signature)
    assert 700 < sum(int(passage.counted.sum()) for passage in passages) < 1300
    assert {int(token) for passage in passages for token in passage.ids[:, 1]} == set(range(7))  # evenly spread
