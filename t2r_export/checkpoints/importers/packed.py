"""Weights that AWQ or GPTQ packed into integers, as float32 (arXiv 2306.00978, 2210.17323).

A weight (out, in) is stored transposed: numbers n, and per group of inputs a scale s and a zero point z, w = s (n - z).
Numbers of few bits are packed into int32: those of AWQ along `out`, in an order of its own, those of GPTQ along `in`.
Zero points are packed along `out`; the first format of GPTQ stores z - 1.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from t2r_export.checkpoints.importers.base import Fields, spelt
from t2r_export.checkpoints.importers.files import DOWNLOAD
from t2r_export.checkpoints.importers.stored import Stored, opened
from t2r_export.checkpoints.weights import compare, listed
from t2r_runtime.errors import UserError

KEY = "quantization_config"
BITS = {"awq": (4,), "gptq": (4, 8)}
ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # places of successive numbers in an int32 of AWQ
FORMATS = {"gptq": 1, "gptq_v2": 0}  # of GPTQ -> what to add to a stored zero point
# keys with which other weights are stored -> the only value that is read
NEUTRAL: dict[str, Any] = {"dynamic": {}, "is_marlin_format": False, "zero_point": True}
KINDS = ("qweight", "qzeros", "scales", "g_idx")
BEFORE = "use the model from before it was quantized"


@dataclass(frozen=True)
class Packing:
    """How a folder's weights are packed."""

    method: str  # in BITS
    bits: int
    group: int | None  # inputs per group; None: all
    added: int  # to a stored zero point
    reordered: bool  # groups are of any inputs, named by g_idx


def packing(fields: Fields) -> Packing | None:
    """The packing that a config.json describes; None: weights are in floating point.

    Raises:
        UserError: another method or format, or options that change single modules.
    """
    data = fields.get(KEY)
    if not data:
        return None
    if not isinstance(data, dict) or data.get("quant_method") not in list(BITS):  # of any type
        expected = f"weights in floating point in {fields.where}, or packed by awq or gptq"
        raise UserError(expected, "another quantization_config", BEFORE)
    inner, method = Fields(data, f"{KEY} of {fields.where}"), data["quant_method"]
    bits, group = data.get("bits"), data.get("group_size")
    if type(bits) is not int or bits not in BITS[method]:
        raise inner.wrong("bits", f"one of {', '.join(map(str, BITS[method]))}", bits, BEFORE)
    if group != -1:
        inner.size("group_size")
    formats = FORMATS if method == "gptq" else {"gemm": 0}
    key = "checkpoint_format" if method == "gptq" else "version"
    found = data.get(key, next(iter(formats)))
    if not isinstance(found, str) or found.lower() not in formats:
        raise inner.wrong(key, f"one of {', '.join(formats)}", found, BEFORE)
    for key, neutral in NEUTRAL.items():
        if data.get(key, neutral) not in (None, neutral):
            raise inner.wrong(key, f"{spelt(neutral)} or absent", data[key], BEFORE)
    return Packing(method, bits, None if group == -1 else group, formats[found.lower()], data.get("desc_act") is True)


class Packed:
    """The tensors of a folder, with a weight in place of the packed ones of each product."""

    def __init__(self, how: Packing, stored: Iterable[dict[str, Stored]]) -> None:
        """Raises UserError for tensors that do not fit each other."""
        self.how = how
        self.parts: dict[str, dict[str, Stored]] = {}
        self.tensors: dict[str, Stored] = {}
        for name, tensor in (pair for one in stored for pair in one.items()):
            if name in self.tensors:
                raise UserError(
                    f"{listed([name])} in one file", f"in {self.tensors[name].path} and {tensor.path}", DOWNLOAD
                )
            self.tensors[name] = dataclasses.replace(tensor, opened=self.opened)
        for name in [name for name in self.tensors if name.endswith(f".{KINDS[0]}")]:
            base = name.removesuffix(KINDS[0])
            parts = {kind: self.tensors.pop(base + kind) for kind in KINDS if base + kind in self.tensors}
            weight, path = f"{base}weight", parts[KINDS[0]].path
            if weight in self.tensors:
                raise UserError(f"{listed([name])}, or {listed([weight])}", "both", DOWNLOAD)
            self.parts[weight] = parts
            dtype = f"{how.method}, {how.bits} bits"
            self.tensors[weight] = Stored(path, weight, self._shape(base, parts), dtype, opened=self.opened)

    def stored(self) -> Iterator[dict[str, Stored]]:
        """Names and shapes, for `importers.folder.read`."""
        yield self.tensors

    @contextlib.contextmanager
    def opened(self, path: Path) -> Iterator[Callable[[str], Tensor]]:
        """A function that reads a tensor of this file; a packed one from the files of its parts."""
        with opened(path) as stored:
            yield lambda name: self._value(name) if name in self.parts else stored(name)

    def _shape(self, base: str, parts: dict[str, Stored]) -> tuple[int, int]:
        """The weight's shape (out, in), after a comparison of its parts."""
        rows, columns = (*parts[KINDS[0]].shape, 0, 0)[:2]
        per = 32 // self.how.bits
        inputs, outputs = (rows, columns * per) if self.how.method == "awq" else (rows * per, columns)
        groups = -(-inputs // (self.how.group or max(inputs, 1)))
        expected: dict[str, tuple[int, ...]] = {
            "qweight": (rows, columns),
            "qzeros": (groups, -(-outputs // per)),
            "scales": (groups, outputs),
        }
        if self.how.reordered or "g_idx" in parts:
            expected["g_idx"] = (inputs,)
        where = f"{parts[KINDS[0]].path}"
        shapes = {base + kind: tensor.shape for kind, tensor in parts.items()}
        compare({base + kind: shape for kind, shape in expected.items()}, shapes, where)
        wrong = [base + kind for kind, tensor in parts.items() if (tensor.dtype == "I32") != (kind != "scales")]
        if wrong:
            raise UserError(f"in {where} scales of floating point and integers of 32 bits", listed(wrong), DOWNLOAD)
        return outputs, inputs

    def _value(self, name: str) -> Tensor:
        """A weight (out, in), float32."""
        parts = {}
        for kind, tensor in self.parts[name].items():
            with opened(tensor.path) as stored:
                parts[kind] = stored(tensor.name)
        inputs, outputs = self.tensors[name].shape[::-1]
        awq = self.how.method == "awq"
        numbers = self._unpacked(parts["qweight"]) if awq else self._unpacked(parts["qweight"].T).T
        zeros = self._unpacked(parts["qzeros"])[:, :outputs] + self.how.added
        groups = parts.get("g_idx", torch.arange(inputs) // (self.how.group or inputs)).long()
        if not ((groups >= 0) & (groups < len(zeros))).all():
            raise UserError(f"groups below {len(zeros)} in g_idx of {listed([name])}", "others", DOWNLOAD)
        weight: Tensor = (numbers - zeros[groups]) * parts["scales"].float()[groups]
        return weight.T.contiguous()

    def _unpacked(self, x: Tensor) -> Tensor:
        """The numbers of each int32 of x, along its last axis."""
        shifts = torch.arange(0, 32, self.how.bits, dtype=torch.int32)
        if self.how.method == "awq":
            shifts = shifts[list(ORDER)]
        return ((x[..., None] >> shifts) & ((1 << self.how.bits) - 1)).flatten(-2)
