"""The mapping of a checkpoint's tensors to our weights, and their storage layouts.

A family has one table of names, ours to theirs, for all layers; `named` applies it to each weight of a model.
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
    """The storage layout of a tensor: two inverse functions. They are first applied to meta tensors for shapes."""

    load: Callable[[Tensor], Tensor]  # as stored -> ours
    store: Callable[[Tensor], Tensor]


PLAIN = Transform(lambda x: x, lambda x: x)
TRANSPOSED = Transform(lambda x: x.T, lambda x: x.T)  # (I, O) is our (O, I)
ROW = Transform(lambda x: x[0], lambda x: x[None])  # (1, N) is our (N)
ONE_PLUS = Transform(lambda x: x + 1, lambda x: x - 1)  # w of a norm that scales by 1 + w
CONVOLUTION = Transform(lambda x: x[:, 0].T, lambda x: x.T[:, None])  # (channels, 1, n) is our (n, channels)


def skipped(rows: int) -> Transform:
    """Skip leading rows that no token uses."""
    return Transform(lambda x: x[rows:], lambda x: F.pad(x, (*[0, 0] * (x.ndim - 1), rows, 0)))


def permuted(sizes: Sequence[int], order: Sequence[int]) -> Transform:
    """Rows stored as axes of `sizes` (-1: inferred), which are permuted to `order`.

    permuted((H, 2, -1), (1, 0, 2)): two parts per head -> the first part of all heads, then the second.
    """
    back = [order.index(axis) for axis in range(len(order))]
    turned = [sizes[axis] for axis in order]
    return Transform(lambda x: _reordered(x, sizes, order), lambda x: _reordered(x, turned, back))


def of_neighbours(config: ModelConfig) -> Transform:
    """Reorder rows of q and k from rotation of adjacent dimensions to rotation of halves."""
    heads = config.heads[0]
    size = heads.head_size
    rotated = size if heads.rotary is None else heads.rotary.rotated(size)
    return in_heads([*range(0, rotated, 2), *range(1, rotated, 2), *range(rotated, size)])


def in_heads(order: Sequence[int]) -> Transform:
    """Reorder the rows of each head: ours are the stored order[0], order[1], …"""
    back = sorted(range(len(order)), key=order.__getitem__)
    return Transform(
        *(lambda x, rows=rows: x.unflatten(0, (-1, len(rows)))[:, rows].flatten(0, 1) for rows in (order, back))
    )


def _reordered(x: Tensor, sizes: Sequence[int], order: Sequence[int]) -> Tensor:
    axes = x.view(*sizes, *x.shape[1:])
    return axes.permute(*order, *range(len(sizes), axes.ndim)).reshape(x.shape)


@dataclass(frozen=True)
class Source:
    """One tensor of a checkpoint: our weights that it concatenates along the first axis, and its layout."""

    parts: tuple[str, ...]
    transform: Transform = PLAIN
    optional: bool = False  # zeros if absent
    constant: float | None = None  # value of our weights, which are not stored

    def shape(self, ours: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
        """The stored shape, for weights of the shapes `ours`. Nothing is allocated."""
        return tuple(self.stored({part: torch.empty(*ours[part], device="meta") for part in self.parts}).shape)

    def stored(self, ours: Mapping[str, Tensor]) -> Tensor:
        return self.transform.store(torch.cat([ours[part] for part in self.parts]))

    def cut(self, tensor: Tensor, ours: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
        """Our weights from the stored tensor, each contiguous in its own storage."""
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
    """Sources by their full names, from a table of names.

    Args:
        weights: our names, as in `weight_shapes(config)`.
        names: our module, or a weight in it, as `place` returns it -> their name, with {} for the layer number.
            Weights with the same name are concatenated along the first axis.
        transforms: by their names, with {}, weight or bias included. optional: names that may be absent, likewise.
        constants: by names that are not stored, likewise: the value of all elements of our weight.
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
    """The name of a weight in a table of names, and the number of its layer.

    Parts are named by kind: `attention.q.weight`; so are their norms: `dense.norm.weight`, `dense.norm_sum.weight`.
    Names of an encoder begin with `encoder.`, and weights outside layers keep their names.
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
