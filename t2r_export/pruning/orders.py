"""Importance orders of a part's units: pruning removes the last units first."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from t2r_export.batches.batch import Batch, initial_states
from t2r_export.model.transformer import Transformer
from t2r_export.model.units import Rows, Units
from t2r_export.training.losses import next_token_loss


def by_gradient(
    model: Transformer, batches: Sequence[Batch], readers: Sequence[tuple[nn.Parameter, Units]]
) -> list[Tensor]:
    """Importance of units for the loss: E |∂L/∂ξ|, with a factor ξ = 1 on the unit's output.

    Michel et al. 2019 (arXiv 1905.10650, eq. 2) for heads, one window at a time; the same first-order expansion for
    features (Molchanov et al. 2019, arXiv 1906.10771). The derivative is computed from the weight that reads the units:
    with y = W (ξ ⊙ x), ∂L/∂ξ_i = Σ W_oi ∂L/∂W_oi over the rows o and the unit's columns i.

    Args:
        readers: weights (out, in) with the units of their columns.

    Returns:
        A tensor (count,) float64 per reader.
    """
    weights = [weight for weight, _ in readers]
    scores = [torch.zeros(units.count, dtype=torch.float64) for _, units in readers]
    before = [weight.requires_grad for weight in weights]
    for weight in weights:
        weight.requires_grad_(True)
    try:
        for one in [one for batch in batches for one in batch.split(1)]:
            with torch.enable_grad():
                rows = model.rows(one.ids, initial_states(model, one))
                loss = next_token_loss(model.logits_of(one.predicted(rows)), one.labels)
                gradients = torch.autograd.grad(loss, weights)
            for score, gradient, (weight, units) in zip(scores, gradients, readers, strict=True):
                score += _of_units((gradient * weight).detach().double(), units).abs()
    finally:
        for weight, own in zip(weights, before, strict=True):
            weight.requires_grad_(own)
    return scores


def _of_units(products: Tensor, units: Units) -> Tensor:
    """Sum a tensor (out, in) over all rows and each unit's columns."""
    owners: Rows = units.rows[units.reads]
    return torch.zeros(units.count, dtype=products.dtype).index_add(0, owners.owners, products.sum(0))


def by_columns(grams: Tensor, columns: Tensor) -> Tensor:
    """Order of column groups of A by QR with column pivoting (Businger and Golub 1965), from Gram matrices AᵀA.

    The next unit is the one whose columns have the largest residual outside the span of the chosen ones; then its
    span is removed from the residuals. Nazari and Rusch 2026 (arXiv 2602.04852) prune channels of linear states by a
    rank-revealing QR of q and k, which starts with this order and continues with the swaps of Gu and Eisenstat 1996,
    omitted here.

    Args:
        grams: (heads, K, K) float64, one matrix A per head; a unit has the same columns in all heads.
        columns: (units, w) int64, the columns of each unit.

    Returns:
        (units,) int64, in order of choice.
    """
    rest, left, order = grams.clone(), torch.ones(len(columns), dtype=torch.bool), list[int]()
    for _ in range(len(columns)):
        energy = rest.diagonal(dim1=-2, dim2=-1).sum(0)[columns].sum(1)
        unit = int(energy.masked_fill(~left, -torch.inf).argmax())
        left[unit] = False
        order.append(unit)
        across = rest[:, :, columns[unit]]  # (heads, K, w)
        rest = rest - across @ torch.linalg.pinv(across[:, columns[unit]], hermitian=True) @ across.mT
    return torch.tensor(order)
