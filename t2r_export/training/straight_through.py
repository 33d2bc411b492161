"""Quantization-aware training with straight-through gradients (Bengio et al. 2013, arXiv 1308.3432, section 4).

In every forward pass, the weights of products and the embedding table are rounded by the functions of `t2r quantize`,
in the same blocks. A rounding is a parametrization of the weight, so models with roundings run and save as usual;
`settled` replaces the weights by rounded values. In blocks without zero points these round to themselves, so the export
adds no error.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from t2r_export.checkpoints.weights import assemble
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.model.experts import Experts
from t2r_export.model.torch_ops import TorchOps
from t2r_export.model.transformer import Transformer
from t2r_export.quantizers.blocks import BLOCK_SIZE, HEAD_BITS, restored
from t2r_export.quantizers.tables import rounded_table


class Blocks(nn.Module):
    """Rounding of a weight (out, in), or of experts (E, out, in), in blocks along `in`, as MatMulNBits stores it."""

    def __init__(self, bits: int, size: int, asymmetric: bool) -> None:
        super().__init__()
        self.bits, self.size, self.asymmetric = bits, size, asymmetric

    def forward(self, weight: Tensor) -> Tensor:
        with torch.no_grad():
            matrix = weight.detach().float().cpu().flatten(0, -2).numpy().T
            rounded = torch.from_numpy(restored(matrix, self.bits, self.size, self.asymmetric).T)
        return _straight_through(weight, rounded.view(weight.shape))


class Table(nn.Module):
    """Rounding of an embedding table (vocabulary, D) to 8 bits with one scale."""

    def forward(self, weight: Tensor) -> Tensor:
        with torch.no_grad():
            rounded = torch.from_numpy(rounded_table(weight.detach().float().cpu().numpy()))
        return _straight_through(weight, rounded)


def _straight_through(weight: Tensor, rounded: Tensor) -> Tensor:
    return weight + (rounded.to(weight) - weight).detach()


def attach(model: Transformer, config: QuantizeConfig) -> None:
    """Round the weights of all products, the head and the embedding table as the block-wise scheme does.

    A tied table is rounded like the head; with `embedding_bits`, the result is rounded again as a table.
    """
    size, bits = config.block_size or BLOCK_SIZE, config.bits
    head = Blocks(config.head_bits or HEAD_BITS, size, config.asymmetric)
    for module, name in products(model):
        rounding = head if module is model.head else Blocks(bits, size, config.asymmetric)
        parametrize.register_parametrization(module, name, rounding)
    if model.config.tied_head:
        parametrize.register_parametrization(model.embedding, "weight", head)
    if not model.config.tied_head or config.embedding_bits is not None:
        of_table = Blocks(4, size, config.asymmetric) if config.embedding_bits == 4 else Table()
        parametrize.register_parametrization(model.embedding, "weight", of_table)


def settled(model: Transformer) -> Transformer:
    """A model with the rounded values as weights.

    An untied table stays unrounded for the export to round: 8 bits with one scale do not round to themselves.
    """
    weights = {name: weight for name, weight in model.state_dict().items() if ".parametrizations." not in name}
    module: Any
    for place, module in model.named_modules():
        for name in getattr(module, "parametrizations", ()):
            raw = module.parametrizations[name].original
            weights[f"{place}.{name}"] = (raw if module is model.embedding else getattr(module, name)).detach()
    if model.config.tied_head:
        weights["embedding.weight"] = weights["head.weight"]
    return assemble(model.config, weights)


@torch.no_grad()
def products(model: Transformer) -> list[tuple[nn.Module, str]]:
    """Weights of matrix products in a step, except routers, as (module, name); found by tracing a step."""
    watched = Watched(model.embedding.weight)
    ids = torch.zeros(1, dtype=torch.int64, device=model.embedding.weight.device)
    model.run(ids, model.init_state(1), watched)
    every = [(m, name, w) for m in model.modules() for name, w in m.named_parameters(recurse=False)]
    return [(m, name) for m, name, w in every if id(w) in watched.seen and m is not model.embedding]


class Watched(TorchOps):
    """Operators of a step that record the weights of products."""

    def __init__(self, like: Tensor) -> None:
        super().__init__(None, like)
        self.seen: set[int] = set()
        self._made: list[tuple[Tensor, int]] = []  # results of products, and their weights

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        self.seen.add(id(weight))
        y = super().linear(x, weight, bias)
        self._made.append((y, id(weight)))
        return y

    def experts(self, x: Tensor, scores: Tensor, experts: Experts) -> Tensor:
        self.seen -= {weight for y, weight in self._made if y is scores}
        self.seen |= {id(experts.up), id(experts.down)}
        return super().experts(x, scores, experts)
