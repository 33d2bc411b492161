"""How random_graphs.py draws a node of each operator that moves or selects numbers."""

from __future__ import annotations

import numpy as np
from drawn import Drawn

SMALL = (0, 1, 2, 3)


def concat(d: Drawn, op: str) -> None:
    first = d.any_kind(1)
    shape = d.of(first).shape
    axis = d.axis(len(shape))
    parts = [first]
    for _ in range(d.chance.randrange(4)):
        dims = list(shape)
        if -len(dims) <= axis < len(dims):
            dims[axis] = d.chance.choice(SMALL)
        is_float = d.of(first).dtype == np.float32
        parts.append(d.floats(dims) if is_float else d.integers(dims, 0, 2, d.of(first).dtype.type))
    d.node(op, parts, axis=axis)


def expand(d: Drawn, op: str) -> None:
    x = d.any_kind()
    d.node(op, [x, d.listed(d.chance.choice([d.like(d.of(x).shape), (*d.shape(0, 1), *d.of(x).shape), d.shape()]))])


def gather(d: Drawn, op: str) -> None:
    x = d.any_kind(1)
    axis = d.axis(d.of(x).ndim)
    size = d.of(x).shape[axis] if -d.of(x).ndim <= axis < d.of(x).ndim else 1
    far = 1 if d.has_luck(0.02) else 0
    numbers = d.integers(d.shape(0, 2), -size, size + far, d.chance.choice([np.int64, np.int32]))
    d.node(op, [x, numbers], axis=axis if axis or d.has_luck(0.5) else None)


def gather_elements(d: Drawn, op: str) -> None:
    x = d.any_kind(1)
    shape = d.of(x).shape
    axis = d.axis(len(shape))
    dims = [d.chance.randint(0, size) if d.has_luck(0.3) else size for size in shape]
    size = 1
    if -len(shape) <= axis < len(shape):
        size, dims[axis] = shape[axis], d.chance.choice(SMALL)
    d.node(op, [x, d.integers(dims, -size, size, d.chance.choice([np.int64, np.int64, np.int32]))], axis=axis)


def pad(d: Drawn, op: str) -> None:
    x = d.some_floats()
    pads = [d.chance.choice([0, 0, 1, 2, -1 if d.has_luck(0.1) else 0]) for _ in range(2 * d.of(x).ndim)]
    value = [d.floats(d.chance.choice([(), (), (1,)]))] if d.has_luck(0.5) else []
    d.node(op, [x, d.listed(pads), *value], mode=d.chance.choice([None, "constant", "constant", "reflect"]))


def ranged(d: Drawn, op: str) -> None:
    kind = d.chance.choice([np.int64, np.int64, np.int32, np.float32])
    numbers = (d.chance.randint(-5, 5), d.chance.randint(-5, 9), d.chance.choice([-3, -1, 1, 1, 2]))
    d.node(op, [d.add(np.array(number, kind), 0.97) for number in numbers])


def reshape(d: Drawn, op: str) -> None:
    x = d.any_kind()
    left, to = d.of(x).size, []
    for _ in range(d.chance.randrange(4)):
        size = d.chance.choice([size for size in (1, 2, 3, 9, 70) if left % size == 0])
        to.append(size)
        left //= size
    to.append(left)
    d.chance.shuffle(to)
    if d.has_luck(0.5):
        to[d.chance.randrange(len(to))] = d.chance.choice([-1, -1, 0])
    d.node(op, [x, d.listed(to)], allowzero=d.chance.choice([None, None, 0, 1]) if d.opset >= 14 else None)


def shape(d: Drawn, op: str) -> None:
    ends = {name: d.odd(d.chance.randint(-4, 4)) if d.has_luck(0.5) else None for name in ("start", "end")}
    d.node(op, [d.any_kind()], **(ends if d.opset >= 15 else {}))


def cut(d: Drawn, op: str) -> None:
    x = d.any_kind(1)
    rank = d.of(x).ndim
    axes = d.chance.sample(range(rank), d.chance.randint(1, rank))
    axes = [axis - rank if d.has_luck(0.3) else axis for axis in axes]
    sizes = [d.of(x).shape[axis] for axis in axes]
    starts = [d.chance.randint(-size - 1, size + 1) for size in sizes]
    ends = [d.chance.choice([d.chance.randint(-size - 1, size + 1), 2**63 - 1, size]) for size in sizes]
    given = [d.listed(starts), d.listed(ends)]
    if d.has_luck(0.8):
        given.append(d.listed(axes))
    elif d.has_luck(0.3):
        given.append("")
    if len(given) == 3 and d.has_luck(0.3):
        given.append(d.listed([d.chance.choice([1, 1, 1, 2, -1]) for _ in starts]))
    d.node(op, [x, *given])


def split(d: Drawn, op: str) -> None:
    x = d.any_kind(1)
    axis = d.axis(d.of(x).ndim)
    size = d.of(x).shape[axis] if -d.of(x).ndim <= axis < d.of(x).ndim else 3
    parts = d.chance.randint(1, 4)
    if d.has_luck(0.5):
        cuts = sorted(d.chance.randint(0, size) for _ in range(parts - 1))
        sizes = [end - begin for begin, end in zip([0, *cuts], [*cuts, size], strict=True)]
        return d.node(op, [x, d.listed(sizes)], parts, axis=axis)
    d.node(op, [x], parts, axis=axis, num_outputs=parts if d.opset >= 18 else None)


def squeeze(d: Drawn, op: str) -> None:
    x = d.any_kind()
    ones = [at for at, size in enumerate(d.of(x).shape) if size == 1]
    axes = [
        at - d.of(x).ndim if d.has_luck(0.3) else at for at in d.chance.sample(ones, d.chance.randint(0, len(ones)))
    ]
    d.node(op, [x, *([d.listed(axes)] if axes or d.has_luck(0.1) else [])])


def transpose(d: Drawn, op: str) -> None:
    x = d.any_kind()
    order = d.chance.sample(range(d.of(x).ndim), d.of(x).ndim)
    d.node(op, [x], perm=[d.odd(axis) for axis in order] if order and d.has_luck(0.8) else None)


def unsqueeze(d: Drawn, op: str) -> None:
    x = d.any_kind()
    count = d.chance.randint(0, 2)
    rank = d.of(x).ndim + count
    axes = [at - rank if d.has_luck(0.3) else at for at in d.chance.sample(range(rank), count)]
    d.node(op, [x, d.listed(axes)])
