"""Which tensor of a checkpoint holds which of our weights, and in what form it is stored.

A family writes a table of names, ours to theirs, once for all layers; `named` reads it for each weight of a model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor

from t2r_export.config.model import ModelConfig

HEAD = "lm_head.weight"  # of the output projection, in every family so far
PLACED = re.compile(r"((?:encoder\.)?)blocks\.(\d+)\.(parts|norms|norms_after|norms_sum)\.(\d+)\.(.+)")


@dataclass(frozen=True)
class Transform:
    """How a tensor is stored: two functions, each the inverse of the other. Shapes alone go through them first."""

    load: Callable[[Tensor], Tensor]  # as stored -> ours
    store: Callable[[Tensor], Tensor]


PLAIN = Transform(lambda x: x, lambda x: x)
TRANSPOSED = Transform(lambda x: x.T, lambda x: x.T)  # (I, O) is our (O, I)
ROW = Transform(lambda x: x[0], lambda x: x[None])  # (1, N) is our (N)
ONE_PLUS = Transform(lambda x: x + 1, lambda x: x - 1)  # w of a norm that scales by 1 + w
CONVOLUTION = Transform(lambda x: x[:, 0].T, lambda x: x.T[:, None])  # (channels, 1, n) is our (n, channels)


def skipped(rows: int) -> Transform:
    """Rows before the first of ours, which no token has."""
    return Transform(lambda x: x[rows:], lambda x: F.pad(x, (*[0, 0] * (x.ndim - 1), rows, 0)))


def scaled(factor: float) -> Transform:
    return Transform(lambda x: x * factor, lambda x: x / factor)


def permuted(sizes: Sequence[int], order: Sequence[int]) -> Transform:
    """Rows that are stored as axes of `sizes` (-1: what is left), and are ours in another order of them.

    permuted((H, 2, -1), (1, 0, 2)): of each head two parts in turn -> the first part of all heads, then the second.
    """
    back = [order.index(axis) for axis in range(len(order))]
    turned = [sizes[axis] for axis in order]
    return Transform(lambda x: _reordered(x, sizes, order), lambda x: _reordered(x, turned, back))


def of_neighbours(config: ModelConfig) -> Transform:
    """Rows of q and k where neighbours rotate together, for halves that do."""
    heads = config.heads[0]
    size = heads.head_size
    rotated = size if heads.rotary is None else heads.rotary.rotated(size)
    return in_heads([*range(0, rotated, 2), *range(1, rotated, 2), *range(rotated, size)])


def in_heads(order: Sequence[int]) -> Transform:
    """Rows of each head in another order: ours is the stored order[0], order[1], …"""
    back = [order.index(row) for row in range(len(order))]
    return Transform(
        *(lambda x, rows=rows: x.unflatten(0, (-1, len(rows)))[:, rows].flatten(0, 1) for rows in (order, back))
    )


def _reordered(x: Tensor, sizes: Sequence[int], order: Sequence[int]) -> Tensor:
    axes = x.view(*sizes, *x.shape[1:])
    return axes.permute(*order, *range(len(sizes), axes.ndim)).reshape(x.shape)


@dataclass(frozen=True)
class Source:
    """One tensor of a checkpoint: our weights that it holds, one below the other, and how it is stored."""

    parts: tuple[str, ...]
    transform: Transform = PLAIN
    optional: bool = False  # zeros where it is absent
    constant: float | None = None  # what ours are, which no tensor holds

    def shape(self, ours: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
        """As stored, for weights of the shapes `ours`. Nothing is allocated."""
        return tuple(self.stored({part: torch.empty(*ours[part], device="meta") for part in self.parts}).shape)

    def stored(self, ours: Mapping[str, Tensor]) -> Tensor:
        return self.transform.store(torch.cat([ours[part] for part in self.parts]))

    def cut(self, tensor: Tensor, ours: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
        """Our weights out of the stored tensor: each has its own memory, in the order it is used in."""
        parts = self.transform.load(tensor).split([ours[part][0] for part in self.parts])
        return {name: _own(part) for name, part in zip(self.parts, parts, strict=True)}


def _own(x: Tensor) -> Tensor:
    whole = x.is_contiguous() and x.untyped_storage().nbytes() == x.nbytes
    return x if whole else x.clone(memory_format=torch.contiguous_format)


def named(
    config: ModelConfig,
    weights: Iterable[str],
    names: Mapping[str, str],
    transforms: Mapping[str, Transform] | None = None,
    optional: Collection[str] = (),
    constants: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, Source]:
    """Their tensors by their full names, from a table of names.

    Args:
        weights: names of ours, as `weight_shapes(config)` has them.
        names: of a module or of a weight in it, as `place` writes it -> theirs, with {} for the number of the layer.
            What several have for a name holds them one below the other.
        transforms: of theirs, with {}, weight or bias included. optional: theirs that may be absent, likewise.
        constants: of names that no tensor has, likewise: what all numbers of ours are.
    """
    found: dict[str, Source] = {}
    for weight in weights:
        key, layer = place(config, weight)
        module, _, kind = key.rpartition(".")
        pattern = names.get(key) or f"{names[module]}.{kind}"
        name = pattern.replace("{}", layer)
        before = found[name].parts if name in found else ()
        transform = (transforms or {}).get(pattern, PLAIN)
        found[name] = Source((*before, weight), transform, pattern in optional, constants.get(pattern))
    return found


def place(config: ModelConfig, weight: str) -> tuple[str, str]:
    """What a weight is called in a table of names, and the number of its layer.

    A part goes by its kind: `attention.q.weight`; so do its norms: `dense.norm.weight`, `dense.norm_sum.weight`. An
    encoder's begin with `encoder.`, and what is in no layer has its own name.
    """
    match = PLACED.fullmatch(weight)
    if match is None:
        return weight, ""
    side, layer, kind, part, rest = match.groups()
    stack = config.encoder if side else config
    assert stack is not None
    owner = stack.layers[int(layer)].parts[int(part)].kind
    inner = "" if kind == "parts" else kind.replace("norms", "norm") + "."
    return f"{side}{owner}.{inner}{rest}", layer
