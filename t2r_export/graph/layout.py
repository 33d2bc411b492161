"""Layout of a model's states in a graph: separate, split into high and low parts, or packed into one tensor per kind.

For accelerators that compute in float16, a sum is kept in two parts, S.3 and S_low.3; the export's target adds the
second. Some engines accept at most three states beside the tokens: `packed` stacks the states of all layers on a second
axis, S (B, L, G, K, V), as the last step before a bundle is written. Only this module knows the layout: it converts
states so that a graph can be compared with its model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from t2r_export.graph.bundle import Bundle
from t2r_export.graph.nodes import set_nodes
from t2r_runtime.contract.signature import Signature
from t2r_runtime.contract.state_spec import PAST, PRESENT, SOURCE_LENGTH, StateSpec
from t2r_runtime.errors import UserError

Kinds = dict[str, list[StateSpec]]  # the states, keyed by name without layer number


def low_name(name: str) -> str:
    """`S.3` -> `S_low.3`: the rounding error of a compensated sum."""
    kind, dot, layer = name.partition(".")
    return f"{kind}_low{dot}{layer}"


def with_source_length(specs: Sequence[StateSpec], length: int | None) -> list[StateSpec]:
    """The states for sources of exactly this length; None: of any length."""
    if length is None:
        return list(specs)
    return [replace(s, shape=tuple(length if d == SOURCE_LENGTH else d for d in s.shape)) for s in specs]


def with_low(specs: Sequence[StateSpec], names: Iterable[str]) -> list[StateSpec]:
    """The states, each followed by its low part if that is among `names` (the graph's inputs)."""
    chosen = set(names)
    both: list[StateSpec] = []
    for spec in specs:
        both += [spec, replace(spec, name=low_name(spec.name), initial=0.0)] if spec.past in chosen else [spec]
    return both


def packed(bundle: Bundle) -> Bundle:
    """Pack the states of each kind into one tensor; modifies the bundle's graphs in place.

    Raises:
        UserError: layers whose states differ in shape.
    """
    kinds, signature = _kinds(bundle.signature.states), bundle.signature
    states = tuple(_packed_spec(kind, members) for kind, members in kinds.items())
    source = signature.source
    if source is not None:
        source = replace(source, start_states=_packed_starts(source.start_states, kinds))
    for model in bundle.graphs:
        _pack_graph(model.graph, kinds)
    return replace(bundle, signature=replace(signature, states=states, state_layout="packed", source=source))


def states_in(specs: Sequence[StateSpec], signature: Signature) -> list[StateSpec]:
    """The states that a graph with this signature must have for a model's states."""
    if signature.state_layout == "packed":
        return [_packed_spec(kind, members) for kind, members in _kinds(specs).items()]
    specs = with_source_length(specs, None if signature.source is None else signature.source.source_length)
    present = {spec.name for spec in signature.states}
    low = [spec.past for spec in specs if low_name(spec.name) in present]
    return with_low(specs, low) if low else list(specs)


def pack(states: Mapping[str, Any], specs: Iterable[StateSpec]) -> dict[str, np.ndarray]:
    """Convert a model's states (arrays by name) to a graph's states, described by `specs`."""
    names = {spec.name for spec in specs}
    out: dict[str, np.ndarray] = {}
    for name, state in states.items():
        if name not in names:
            continue
        out[name], low = np.asarray(state), low_name(name)
        if low in names:  # the state rounded to float16, and the remainder
            whole = out[name]
            out[name] = whole.astype(np.float16).astype(whole.dtype)
            out[low] = whole - out[name]
    for kind in names - out.keys():
        out[kind] = np.stack([np.asarray(state) for name, state in states.items() if name.partition(".")[0] == kind], 1)
    return out


def unpack(states: Mapping[str, np.ndarray], specs: Sequence[StateSpec]) -> dict[str, np.ndarray]:
    """Inverse of `pack`: convert a graph's states to the model's states, described by `specs`."""
    out: dict[str, np.ndarray] = {}
    for kind, members in _kinds(specs).items():
        for i, name in enumerate(spec.name for spec in members):
            whole = states[name] if name in states else states[kind][:, i]
            low = states.get(low_name(name))
            out[name] = whole if low is None else whole.astype(np.float64) + low
    return out


def _kinds(specs: Iterable[StateSpec]) -> Kinds:
    kinds: Kinds = {}
    for spec in specs:
        kinds.setdefault(spec.name.partition(".")[0], []).append(spec)
    return kinds


def _packed_starts(names: Sequence[str], kinds: Kinds) -> tuple[str, ...]:
    """The kinds whose states are all started by the encoder, given the names of started states."""
    starts = {kind: [spec.name in names for spec in members] for kind, members in kinds.items()}
    for kind, started in starts.items():
        if any(started) and not all(started):
            expected = f"all or none of the states to pack into {kind} to start from the source"
            raise UserError(expected, "some", "export with --state-layout layers")
    return tuple(kind for kind, started in starts.items() if all(started))


def _packed_spec(kind: str, members: Sequence[StateSpec]) -> StateSpec:
    first = members[0]
    if first.name == kind:
        return first
    for other in members:
        if replace(other, name=first.name) != first:
            raise UserError(
                f"states of one shape to pack into {kind}",
                f"{first.name} {list(first.shape)} and {other.name} {list(other.shape)}",
                "export with --state-layout layers",
            )
    batch, *rest = first.shape
    return replace(first, name=kind, shape=(batch, len(members), *rest))


def _pack_graph(graph: onnx.GraphProto, kinds: Kinds) -> None:
    """Insert nodes that split the packed inputs before the first node and join the outputs after the last.

    Constant states are inputs of a step graph and outputs of an encoder graph.
    """
    inputs, outputs = ({value.name: value for value in values} for values in (graph.input, graph.output))
    axis = numpy_helper.from_array(np.array([1]), "packed.axis")
    before, after = [], []
    for kind, members in kinds.items():
        constant = members[0].constant
        past = (inputs, kind if constant else PAST + kind, [s.past for s in members])
        present = (outputs, kind if constant else PRESENT + kind, [s.name if constant else s.present for s in members])
        for values, name, names in (past, present):
            if names[0] not in values:
                continue
            parts = [f"{each}.packed" for each in names]
            if name != names[0] and values is inputs:
                parts = parts if names[1:] else [name]
                if names[1:]:
                    before.append(helper.make_node("Split", [name], parts, name, axis=1, num_outputs=len(names)))
                before += [_node("Squeeze", part, axis, each) for part, each in zip(parts, names, strict=True)]
            elif name != names[0]:
                after += [_node("Unsqueeze", each, axis, part) for part, each in zip(parts, names, strict=True)]
                after.append(helper.make_node("Concat", parts, [name], name, axis=1))
            inside = [values.pop(each) for each in names]  # non-states first, then states in the order of kinds
            values[name] = inside[0] if name == names[0] else _stacked(inside[0], name, len(names))
            if name != names[0]:
                apart = inside if parts[0] != name else []
                graph.value_info.extend(_stacked(value, f"{value.name}.packed", 1) for value in apart)
                graph.value_info.extend(inside)
    if before or after:
        graph.initializer.append(axis)
    set_nodes(graph, [*before, *graph.node, *after])
    for field, values in ((graph.input, inputs), (graph.output, outputs)):
        del field[:]
        field.extend(values.values())


def _node(op: str, x: str, axis: onnx.TensorProto, y: str) -> onnx.NodeProto:
    return helper.make_node(op, [x, axis.name], [y], f"{y}.{op.lower()}")


def _stacked(value: onnx.ValueInfoProto, name: str, count: int) -> onnx.ValueInfoProto:
    """The declaration of `count` tensors like `value` stacked on the second axis."""
    tensor = value.type.tensor_type
    batch, *rest = (d.dim_param or d.dim_value for d in tensor.shape.dim)
    return helper.make_tensor_value_info(name, tensor.elem_type, [batch, count, *rest])
