"""How a model's states stand in a graph: each as it is, as two that add up to it, or all of a kind packed into one.

An accelerator that computes in float16 wants sums in two parts, S.3 and S_low.3; the export's target adds the second.
Some accelerators' engines take no more than three states beside the tokens: `packed` stacks those of all layers on a
second axis, S (B, L, G, K, V), as the last step before a bundle is written. Nothing else knows of it but the
functions here that translate states for whoever compares a graph with its model.
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
from t2r_runtime.contract.signature import PAST, PRESENT, SOURCE_LENGTH, Signature, StateSpec
from t2r_runtime.errors import UserError

Kinds = dict[str, list[StateSpec]]  # the states by what stands before the layer's number in their names


def low_name(name: str) -> str:
    """`S.3` -> `S_low.3`: what the sum of a compensated state has rounded off."""
    kind, dot, layer = name.partition(".")
    return f"{kind}_low{dot}{layer}"


def with_source_length(specs: Sequence[StateSpec], length: int | None) -> list[StateSpec]:
    """The states of sources of this one length; None: of any."""
    if length is None:
        return list(specs)
    return [replace(s, shape=tuple(length if d == SOURCE_LENGTH else d for d in s.shape)) for s in specs]


def with_low(specs: Sequence[StateSpec], names: Iterable[str]) -> list[StateSpec]:
    """The states with a low part behind each that is among the names, as of a graph's inputs."""
    chosen = set(names)
    both: list[StateSpec] = []
    for spec in specs:
        both += [spec, replace(spec, name=low_name(spec.name), initial=0.0)] if spec.past in chosen else [spec]
    return both


def packed(bundle: Bundle) -> Bundle:
    """The bundle with one state for all layers' of a kind; its graphs are changed in place.

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
    """The states that a graph of this signature must have for a model's."""
    if signature.state_layout == "packed":
        return [_packed_spec(kind, members) for kind, members in _kinds(specs).items()]
    specs = with_source_length(specs, None if signature.source is None else signature.source.source_length)
    present = {spec.name for spec in signature.states}
    low = [spec.past for spec in specs if low_name(spec.name) in present]
    return with_low(specs, low) if low else list(specs)


def pack(states: Mapping[str, Any], specs: Iterable[StateSpec]) -> dict[str, np.ndarray]:
    """A model's states (arrays by name) as those of a graph, which are `specs`."""
    names = {spec.name for spec in specs}
    out: dict[str, np.ndarray] = {}
    for name, state in states.items():
        if name not in names:
            continue
        out[name], low = np.asarray(state), low_name(name)
        if low in names:  # the state to half precision, as an accelerator would round it, and the rest
            whole = out[name]
            out[name] = whole.astype(np.float16).astype(whole.dtype)
            out[low] = whole - out[name]
    for kind in names - out.keys():
        out[kind] = np.stack([np.asarray(state) for name, state in states.items() if name.partition(".")[0] == kind], 1)
    return out


def unpack(states: Mapping[str, np.ndarray], specs: Sequence[StateSpec]) -> dict[str, np.ndarray]:
    """Inverse of `pack`: a graph's states as those of the model, which are `specs`."""
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
    """The kinds of which the encoder starts all states, where these are the names of those that it starts."""
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
    """Let the graph split its packed inputs before its first node, and join its outputs behind the last.

    What a source has made is an input of a step graph and an output of an encoder's; a beam graph has no states.
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
            inside = [values.pop(each) for each in names]  # in the order of the kinds behind what is no state
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
    """The declaration of `count` tensors like `value` on an axis behind the first."""
    tensor = value.type.tensor_type
    batch, *rest = (d.dim_param or d.dim_value for d in tensor.shape.dim)
    return helper.make_tensor_value_info(name, tensor.elem_type, [batch, count, *rest])
