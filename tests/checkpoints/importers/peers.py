"""A model that was read, beside the one of transformers that wrote the folder."""

from __future__ import annotations

from typing import Any

import torch

from t2r_export.model.transformer import Transformer

TOLERANCE = 1e-5  # of logits; measured: 2e-6


@torch.no_grad()
def logit_error(ours: Transformer, theirs: Any, length: int) -> float:
    """The largest difference of any logit over two texts of that length."""
    ids = torch.randint(0, ours.config.vocab_size, (2, length), generator=torch.Generator().manual_seed(1))
    expected = theirs(ids, return_dict=True).logits
    assert expected.std() > 0.1
    return float((ours(ids) - expected).abs().max())
