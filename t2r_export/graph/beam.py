"""An encoder graph and a step graph as a beam graph: the encoder, then an ONNX Loop around step and search.

One run translates one sentence. Like a generation graph it is made from finished graphs, float32 or quantized, whose
weights stay where they are. The hypotheses are the rows of a step, and what the loop carries: their tokens, their
states, their sums, and what is finished. What the encoder made of the source stands outside of the loop, as the weights
do.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from t2r_export.graph import search
from t2r_export.graph.nodes import made_of, needed, renamed
from t2r_runtime.contract.signature import (
    INPUT_IDS,
    LOGITS,
    SOURCE_IDS,
    SOURCE_LENGTH,
    SOURCE_LENGTHS,
    Signature,
)
from t2r_runtime.errors import UserError
from t2r_runtime.session.interface import GENERATED, LENGTH_PENALTY, SCORES, SEARCH_NUMBERS

INSIDE, ENCODER, FIRST = "loop.", "encoder.", "first."  # before names that two of the graphs would share
CARRIED = ("sums", "texts", "scores", "finished")  # beside tokens and states, as t2r_export.graph.search has them


def beam_graph(step: onnx.ModelProto, encoder: onnx.ModelProto, signature: Signature) -> onnx.ModelProto:
    """The graph that translates; its initializers are those of both, and a few small ones.

    Args:
        step, encoder: graphs of one translator, whose initializers hold their weights or name them.
        signature: the step graph's.

    Raises:
        UserError: a state that grows, or a fixed batch.
    """
    check_signature(signature)
    start = search.start(signature)
    encoding, weights = _encoder(encoder, {tensor.name: tensor for tensor in step.graph.initializer})
    rows, constants = _first_rows(signature)
    last = [INSIDE + "tokens", *(INSIDE + FIRST + spec.name for spec in signature.chained)]
    first = [FIRST + spec.name for spec in signature.chained]
    loop = helper.make_node(
        "Loop",
        ["trips", "", start.output[0].name, *first, *(value.name for value in start.output[1:]), "no_texts"],
        [*last, *(INSIDE + name for name in CARRIED)],
        name="loop",
        body=_body(step.graph, signature),
    )
    numbers = [(name, TensorProto.INT64) for name in SEARCH_NUMBERS] + [(LENGTH_PENALTY, TensorProto.DOUBLE)]
    outer = helper.make_graph(
        [*encoding, *start.node, *rows, loop, *_results()],
        "t2r_beam",
        [
            helper.make_tensor_value_info(SOURCE_IDS, TensorProto.INT64, [1, SOURCE_LENGTH]),
            *(helper.make_tensor_value_info(name, kind, []) for name, kind in numbers),
        ],
        [
            helper.make_tensor_value_info(GENERATED, TensorProto.INT64, ["found", "N"]),
            helper.make_tensor_value_info(SCORES, TensorProto.DOUBLE, ["found"]),
        ],
        [*step.graph.initializer, *weights, *start.initializer, *constants],
    )
    return made_of(step, outer)


def check_signature(signature: Signature) -> None:
    """Refuse a step graph whose hypotheses no loop can carry.

    Raises:
        UserError: a decoder alone, a state that grows, or a fixed batch.
    """
    if signature.source is None:
        raise UserError("a translator for a beam graph (--beam)", "a decoder alone", "leave out --beam")
    signature.require_constant("for a beam graph (--beam)")
    if signature.batch is not None:
        raise UserError("a beam graph of any width", f"a batch of {signature.batch}", "leave out --batch or --beam")


def _encoder(
    model: onnx.ModelProto, there: dict[str, onnx.TensorProto]
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """The encoder's nodes with its outputs under `encoder.` names, and those of its initializers that are not there."""
    graph, names, added = model.graph, {}, []
    for tensor in graph.initializer:
        if tensor.name in there and tensor.SerializeToString() == there[tensor.name].SerializeToString():
            continue
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        if tensor.name in there:
            copy.name = names[tensor.name] = ENCODER + tensor.name
        added.append(copy)
    names |= {name: ENCODER + name for node in graph.node for name in node.output if name}
    length = [
        helper.make_node("Shape", [SOURCE_IDS], [SOURCE_LENGTHS], name=f"{ENCODER}length", start=1, end=2),
    ]
    nodes = renamed(graph.node, names)
    for node in nodes:
        node.name = node.name and ENCODER + node.name
    return [*length, *nodes], added


def _first_rows(signature: Signature) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """What each hypothesis begins with, as many rows as the beam is wide; and the constants that this takes."""
    assert signature.source is not None
    nodes, constants = [], []
    for spec in signature.states:
        name = spec.name if spec.constant else FIRST + spec.name
        found = ENCODER + (spec.name if spec.constant else spec.present)
        if not spec.constant and spec.name not in signature.source.start_states:
            found = f"{FIRST}{spec.name}.one"
            initial = np.full(spec.dims(1), spec.initial, spec.dtype)
            constants.append(numpy_helper.from_array(initial, found))
        nodes.append(helper.make_node("Gather", [found, "rows_of_one"], [name], name=f"{name}.rows", axis=0))
    return nodes, constants


def _body(graph: onnx.GraphProto, signature: Signature) -> onnx.GraphProto:
    """One iteration: the step, whose rows are the hypotheses, and the search, which says whose states go on."""
    assert signature.source is not None
    chained = signature.chained
    shared = [INPUT_IDS, *(spec.past for spec in chained), *(spec.present for spec in chained)]
    names = {name: INSIDE + name for name in shared}
    nodes = renamed(needed(graph.node, [LOGITS, *(spec.present for spec in chained)]), names)
    choose = search.choose(signature)
    iteration, *carried = choose.input[1:]
    go_on, tokens, *after, rows = choose.output
    nodes += choose.node if len(signature.source.start_tokens) == 1 else _chosen_or_read(choose)
    for spec in chained:
        moved = helper.make_node("Gather", [INSIDE + spec.present, rows.name], [f"moved.{spec.name}"], axis=0)
        moved.name = f"moved.{spec.name}"
        nodes.append(moved)
    inputs = {value.name: value for value in graph.input}
    outputs = {value.name: value for value in graph.output}
    made = {name for node in nodes for name in node.output}
    return helper.make_graph(
        nodes,
        "step",
        [
            iteration,
            helper.make_tensor_value_info("going_on", TensorProto.BOOL, []),
            *(_as(inputs[name], INSIDE + name) for name in (INPUT_IDS, *(spec.past for spec in chained))),
            *carried,
        ],
        [go_on, tokens, *(_as(outputs[spec.present], f"moved.{spec.name}") for spec in chained), *after],
        value_info=[value for value in graph.value_info if value.name in made],
    )


def _chosen_or_read(choose: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The search, or where another start token is forced, that one; the outputs are the search's."""
    names = {value.name: value.name for value in choose.output}
    inner = {name: f"chosen.{name}" for name in names}
    branch = helper.make_graph(
        renamed(choose.node, inner), "choose", [], [_as(value, inner[value.name]) for value in choose.output]
    )
    return [
        helper.make_node("Less", ["iteration", "starts_before"], ["starting"], name="starting"),
        helper.make_node("If", ["starting"], list(names), name="next", then_branch=search.read(), else_branch=branch),
    ]


def _results() -> list[onnx.NodeProto]:
    """Of what the loop found, what is there: places in the order of their scores."""
    return [
        helper.make_node("Greater", [f"{INSIDE}scores", "lowest"], ["there"], name="there"),
        helper.make_node("Compress", [f"{INSIDE}scores", "there"], [SCORES], name=SCORES, axis=0),
        helper.make_node("Compress", [f"{INSIDE}finished", "there"], [GENERATED], name=GENERATED, axis=0),
    ]


def _as(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    copy.name = name
    return copy
