"""A random graph that grows node by node: its values, shapes, axes, and how its inputs are declared."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from differential import ends_onnxruntime, plain_options
from onnx import ModelProto, NodeProto, helper, numpy_helper

Arrays = Mapping[str, np.ndarray]
ODD = (-3, -2, -1, 0, 1, 2, 3, 7, 100, 2**62, -(2**62))
SPECIAL = np.float32([np.nan, np.inf, -np.inf, -0.0, 0, 1e-40, 0.5, -0.5, 88, -104, 2000])
SIZES, WEIGHTS = (0, 1, 2, 3, 4, 9, 70), (2, 4, 5, 4, 3, 1, 1)
EXACT_NAMES = """
    Abs Neg Relu Max Min Ceil Floor Round Equal Greater GreaterOrEqual Less LessOrEqual TopK Mod Cast Concat Expand
    Gather GatherElements Identity Pad Range ReduceMax Reshape Shape Slice Split Squeeze Transpose Unsqueeze
"""
EXACT = frozenset(EXACT_NAMES.split())


class Drawn:
    """A graph that grows node by node, with the numbers that its values have."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.opset = self.chance.randrange(13, 27)
        self.nodes: list[NodeProto] = []
        self.values: dict[str, np.ndarray] = {}
        self.inputs: set[str] = set()
        self.constants: set[str] = set()
        self.rounded: set[str] = set()
        self.is_sharp = False
        self.is_valid = True

    def has_luck(self, share: float) -> bool:
        return self.chance.random() < share

    def odd(self, value: int) -> int:
        return self.chance.choice(ODD) if self.has_luck(0.02) else value

    def shape(self, least: int = 0, most: int = 4) -> tuple[int, ...]:
        return tuple(self.chance.choices(SIZES, WEIGHTS, k=self.chance.randint(least, most)))

    def axis(self, rank: int) -> int:
        return self.odd(self.chance.randrange(-rank, rank) if rank else 0)

    def like(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts to or with this one."""
        if self.has_luck(0.03):
            return self.shape()
        kept = [1 if self.has_luck(0.3) else size for size in shape[self.chance.choice([0, 0, len(shape) // 2]) :]]
        return (*self.shape(0, 1), *kept) if len(kept) == len(shape) and self.has_luck(0.1) else tuple(kept)

    def add(self, x: np.ndarray, constant: float = 0.3) -> str:
        name = f"x{len(self.values)}"
        self.values[name] = x
        (self.constants if self.has_luck(constant) else self.inputs).add(name)
        return name

    def floats(self, shape: Sequence[int]) -> str:
        fitting = [
            name
            for name, x in self.values.items()
            if x.dtype == np.float32 and x.shape == tuple(shape) and not (self.is_sharp and name in self.rounded)
        ]
        if fitting and self.has_luck(0.6):
            return self.chance.choice(fitting)
        x = self.numbers.standard_normal(shape).astype(np.float32)
        if self.has_luck(0.25):
            x = np.where(self.numbers.random(shape) < 0.2, self.numbers.choice(SPECIAL, shape), x)
        return self.add(np.asarray(x, np.float32))

    def some_floats(self, least: int = 0) -> str:
        known = [name for name, x in self.values.items() if x.dtype == np.float32 and x.ndim >= least]
        known = [name for name in known if not (self.is_sharp and name in self.rounded)]
        return self.chance.choice(known) if known and self.has_luck(0.6) else self.floats(self.shape(least))

    def integers(self, shape: Sequence[int], low: int, high: int, kind: type = np.int64, constant: float = 0.3) -> str:
        return self.add(self.numbers.integers(low, max(high, low + 1), tuple(shape)).astype(kind), constant)

    def listed(self, numbers: Sequence[int]) -> str:
        """Sizes or axes, which are constants of a graph that the provider claims."""
        return self.add(np.array([self.odd(number) for number in numbers], np.int64), constant=0.97)

    def any_kind(self, least: int = 0) -> str:
        if self.has_luck(0.7):
            return self.some_floats(least)
        kind = self.chance.choice([np.int64, np.int32, np.int8, np.uint8, np.bool_])
        return self.integers(self.shape(least), 0, 2 if kind == np.bool_ else 9, kind)

    def of(self, name: str) -> np.ndarray:
        return self.values[name]

    def node(self, op: str, inputs: Sequence[str], outputs: int = 1, domain: str = "", **attributes: Any) -> None:
        """Append a node and compute it with ONNX Runtime; the graph ends after a node that it refuses."""
        names = [f"x{len(self.values) + i}" for i in range(outputs)]
        given = list(inputs)
        if self.has_luck(0.01):
            given[self.chance.randrange(len(given))] = ""
        kept = {name: value for name, value in attributes.items() if value is not None}
        node = helper.make_node(op, given, names, domain=domain, **kept)
        if ends_onnxruntime(node):
            self.is_valid = False
            return
        self.nodes.append(node)
        read = {name: self.values[name] for name in given if name}
        try:
            made = self.model([node], read, {}, names)
            session = ort.InferenceSession(
                made.SerializeToString(), plain_options(), providers=["CPUExecutionProvider"]
            )
            found = session.run(None, read)
        except Exception:
            self.is_valid = False
            return
        self.values.update(zip(names, found, strict=True))
        if op not in EXACT or not self.rounded.isdisjoint(given):
            self.rounded.update(names)
        # ONNX Runtime crashes where it folds a constant Split with such an output
        if outputs > 1 and given[0] in self.inputs and self.has_luck(0.02):
            node.output[self.chance.randrange(outputs)] = ""
            self.is_valid = False

    def model(
        self,
        nodes: Sequence[NodeProto],
        inputs: Arrays,
        fixed: Arrays,
        outputs: Sequence[str],
        dims: Callable[[str, np.ndarray], list[Any] | None] = lambda name, x: list(x.shape),
    ) -> ModelProto:
        kinds = {name: helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in inputs.items()}
        shapes = {name: dims(name, x) for name, x in inputs.items()}
        graph = helper.make_graph(
            nodes,
            "drawn",
            [helper.make_tensor_value_info(name, kind, shapes[name]) for name, kind in kinds.items()],
            [helper.make_empty_tensor_value_info(name) for name in outputs],
            [numpy_helper.from_array(x, name) for name, x in fixed.items()],
        )
        domains = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=domains, ir_version=10)

    def finished(self) -> tuple[ModelProto, dict[str, np.ndarray]]:
        """The model, whose inputs have known, symbolic or no dimensions, and its inputs."""
        used = {name for node in self.nodes for name in node.input}
        made = [name for node in self.nodes for name in node.output if name]
        outputs = [name for name in made if name not in used or self.has_luck(0.2)]
        feeds = {name: self.values[name] for name in sorted(self.inputs & used)}
        fixed = {name: self.values[name] for name in sorted(self.constants & used)}
        how = self.chance.choice(["known"] * 3 + ["symbolic"] * 4 + ["none"])

        def dims(name: str, x: np.ndarray) -> list[Any] | None:
            if how == "none":
                return None
            return [f"{name}_{d}" if how == "symbolic" else size for d, size in enumerate(x.shape)]

        return self.model(self.nodes, feeds, fixed, outputs, dims), feeds
