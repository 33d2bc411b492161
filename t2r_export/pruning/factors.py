"""Versions of parts with low-rank factors in place of their matrices.

The factors are optimal for their rank on the inputs of a text: with X the inputs of W and S a root of XᵀX, they come
from the truncated singular value decomposition of W S, so that ‖(W - W') X‖ is the root of the sum of the squares of
the omitted singular values (SVD-LLM, Wang et al. 2024, arXiv 2403.07378, section 3.1).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from t2r_export.model.parts.base import Part, build_part
from t2r_export.model.transformer import Transformer
from t2r_export.pruning.versions import Offer, Version, sizes
from t2r_export.pruning.watch import inputs
from t2r_runtime.errors import UserError

RIDGE = 1e-6  # added to the diagonal of XᵀX, relative to its mean: XᵀX may be singular


def versions(model: Transformer, windows: Tensor) -> Offer:
    """Parts with lower ranks, one rank for all matrices of a part; the full size is the original part.

    Args:
        windows: (N, T+1) int64, on which inputs are measured.
    """
    found = [(n, m, part) for n, block in enumerate(model.blocks) for m, part in enumerate(block.parts)]
    places = [(n, m, part, part.factorable()) for n, m, part in found if part.factorable()]
    if not places:
        kinds = dict.fromkeys(part.label for layer in model.config.layers for part in layer.parts)
        received = f"parts of the kinds {', '.join(kinds)}"
        raise UserError("dense feed-forwards of whole matrices, for rank", received, "leave rank out")
    weights = [_weight(part, name) for *_, part, names in places for name in names]
    grams = iter(inputs(model, windows[:, :-1], weights))
    return Offer([_versions(n, m, part, {name: next(grams) for name in names}) for n, m, part, names in places], [])


def _weight(part: Part, name: str) -> Tensor:
    return part.get_parameter(f"{name}.weight")


def _versions(layer: int, number: int, part: Part, grams: Mapping[str, Tensor]) -> list[Version]:
    shapes = [_weight(part, name).shape for name in grams]
    whole, each = sum(out * into for out, into in shapes), sum(out + into for out, into in shapes)
    most = whole // each  # from this rank on, factors save nothing
    roots = {name: factors(_weight(part, name), gram) for name, gram in grams.items()}

    def version(rank: int) -> Version:
        return Version(layer, number, rank, most, 4 * rank * each, lambda: _factored(part, rank, roots))

    full = Version(layer, number, most, most, 4 * whole, lambda: part)
    return [full, *(version(rank) for rank in sizes(most) if rank < most)]


def factors(weight: Tensor, gram: Tensor) -> tuple[Tensor, Tensor]:
    """Outer (out, r) and inner (r, in) factors of a weight (out, in), float64, in descending importance.

    Both contain the root of each singular value, for equal scales.

    Args:
        gram: XᵀX (in, in) of the inputs.
    """
    ridge = RIDGE * gram.diagonal().mean().clamp(min=torch.finfo(gram.dtype).tiny)
    root = torch.linalg.cholesky(gram + ridge * torch.eye(len(gram), dtype=gram.dtype))  # gram = root rootᵀ
    U, s, V = torch.linalg.svd(weight.detach().double() @ root, full_matrices=False)
    inner = torch.linalg.solve_triangular(root, V, upper=False, left=False)
    return U * s.sqrt(), s.sqrt()[:, None] * inner


def _factored(part: Part, rank: int, roots: Mapping[str, tuple[Tensor, Tensor]]) -> Part:
    """The part with factors of this rank; biases move to the outer factors."""
    weights = dict[str, Tensor]()
    for name, weight in part.state_dict().items():
        matrix, _, rest = name.rpartition(".")
        if matrix not in roots:
            weights[name] = weight
        elif rest == "weight":
            outer, inner = roots[matrix]
            weights |= {f"{matrix}.outer.weight": outer[:, :rank], f"{matrix}.inner.weight": inner[:rank]}
        else:
            weights[f"{matrix}.outer.{rest}"] = weight
    with torch.random.fork_rng(devices=[]):
        made = build_part(part.site, part.with_rank(rank))
    made.load_state_dict(weights)
    return made.to(next(part.parameters())).eval()
