"""Peak memory of linear attention over T tokens, forward and backward: chunked against naive form.

    python benchmarks/memory_chunked.py [--lengths 512,1024,2048,4096] [--sizes 9,3,32,64] [--batch 1]

The naive form computes a masked and normalized T × T matrix per head. Each measurement is a separate process that
reports the increase of its peak resident memory; the outputs of both forms are compared first. Prints a table, the
exponent of growth, and a JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from t2r_export.config.mixers import Guard
from t2r_export.model.recurrences import chunk_size
from t2r_export.model.torch_ops import TorchOps

GUARD = Guard()
Form = Callable[[Tensor, Tensor, Tensor], Tensor]


def naive_form(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """φ(q) (B, H, T, K), φ(k) (B, G, T, K), v (B, G, T, V) -> o (B, H, T, V), from the empty state."""
    R = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(R, dim=1), v.repeat_interleave(R, dim=1)
    weights = (q @ k.mT).tril()
    weights = TorchOps().divide(weights, weights.sum(-1, keepdim=True), GUARD)
    return weights @ v


def chunked_form(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    B, G, _, K = k.shape
    S, z = q.new_zeros(B, G, K, v.shape[-1]), q.new_zeros(B, G, K)
    ops = TorchOps(q.shape[2])
    numerator, denominator, _, _ = ops.linear_attention(q, k, v, S, z)
    assert denominator is not None
    return ops.divide(numerator, denominator, GUARD)


FORMS: dict[str, Form] = {"chunked": chunked_form, "naive": naive_form}


def inputs(batch: int, length: int, sizes: list[int]) -> list[Tensor]:
    H, G, K, V = sizes
    generator = torch.Generator().manual_seed(0)
    shapes = (batch, H, length, K), (batch, G, length, K), (batch, G, length, V)
    return [torch.rand(shape, generator=generator).requires_grad_() for shape in shapes]


def measure(form: Form, batch: int, length: int, sizes: list[int]) -> int:
    """Increase of peak memory in bytes during a forward and backward pass, without inputs and their gradients."""
    form(*inputs(1, 32, sizes)).sum().backward()  # warm-up
    tensors = inputs(batch, length, sizes)
    for tensor in tensors:
        tensor.grad = torch.zeros_like(tensor)
    before = _resident()
    form(*tensors).sum().backward()
    return max(0, _peak() - before)


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def agree(sizes: list[int]) -> float:
    """The largest difference between the two forms on a short text."""
    tensors = inputs(2, 100, sizes)
    return float((chunked_form(*tensors) - naive_form(*tensors)).abs().max().detach())


def point(form: str, batch: int, length: int, sizes: list[int]) -> int:
    program = [sys.executable, __file__, "--point", json.dumps([form, batch, length, sizes])]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    return int(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="512,1024,2048,4096")
    parser.add_argument("--sizes", default="9,3,32,64", help="H,G,K,V; the default is one layer of SmolLM-135M")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--point", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        form, batch, length, sizes = json.loads(options.point)
        print(measure(FORMS[form], batch, length, sizes))
        return
    lengths = [int(length) for length in options.lengths.split(",")]
    sizes = [int(size) for size in options.sizes.split(",")]
    H, G, K, V = sizes
    difference = agree(sizes)
    assert difference < 1e-4, f"the two forms differ by {difference}: no memory is worth measuring"
    peaks = {form: [point(form, options.batch, length, sizes) for length in lengths] for form in FORMS}
    print(f"H={H} G={G} K={K} V={V}, batch {options.batch}, chunks of {chunk_size(K, V, H // G)}; peak in MB")
    print(f"{'T':>8}{'chunked':>12}{'naive':>12}{'naive / chunked':>18}")
    for row in zip(lengths, *peaks.values(), strict=True):
        length, small, large = row
        print(f"{length:>8}{small / 1e6:>12.1f}{large / 1e6:>12.1f}{large / max(small, 1):>18.1f}")
    growth = {form: exponent(lengths, values) for form, values in peaks.items()}
    print("memory grows as T to the power of " + ", ".join(f"{value:.2f} ({form})" for form, value in growth.items()))
    result = {"sizes": sizes, "batch": options.batch, "lengths": lengths, "bytes": peaks, "exponent": growth}
    print(json.dumps({**result, "torch": torch.__version__, "difference": difference}))


def exponent(lengths: list[int], values: list[int]) -> float:
    """The slope between the shortest and the longest on logarithmic axes: 1 is linear, 2 is quadratic."""
    return math.log(values[-1] / values[0]) / math.log(lengths[-1] / lengths[0])


if __name__ == "__main__":
    # more threads would add their buffers to the peak
    torch.set_num_threads(1)
    main()
