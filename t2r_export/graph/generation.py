"""The generation graph: an ONNX Loop around the step that samples each token and feeds it back.

Usually a program calls the step once per token. This graph is made from a finished step graph of any target, float32 or
quantized. Its weights remain initializers outside of the loop, where ONNX Runtime packs them once and can map them from
a file. Loop-carried values are the states, which must have a fixed size (growing caches are refused), and the history
if penalties need it. Constant states of a translator stay outside, and banned tokens get a logit of -inf.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from t2r_export.graph import choice
from t2r_export.graph.nodes import made_of, needed, renamed
from t2r_export.graph.recorder import factors, quotient
from t2r_runtime.contract.signature import INPUT_IDS, LOGITS, Signature
from t2r_runtime.contract.state_spec import BATCH, PRESENT
from t2r_runtime.errors import UserError
from t2r_runtime.session.interface import GENERATED, MAX_TOKENS, OCCURRED, REAL_NUMBERS, STOP_TOKENS, WHOLE_NUMBERS

INSIDE = "loop."  # prefix of names that the body would otherwise share with the outer graph


def generation_graph(step: onnx.ModelProto, signature: Signature) -> onnx.ModelProto:
    """The generation graph of `step`. Its initializers are those of `step` and a few small ones.

    Args:
        step: a step graph whose initializers hold or name their weights.
        signature: the step graph's.

    Raises:
        UserError: a state that grows, or a batch other than 1.
    """
    check_signature(signature)
    graph = step.graph
    start, choose = choice.start(signature.vocab_size), choice.choose(signature.vocab_size)
    body = _body(graph, signature, choose)
    chained = signature.chained
    states = [spec.name for spec in chained]
    past = {value.name: value for value in graph.input}
    present = {value.name: value for value in graph.output}
    loop = helper.make_node(
        "Loop",
        [MAX_TOKENS, "", INPUT_IDS, *(spec.past for spec in chained), start.output[0].name],
        [f"{INSIDE}last", *(PRESENT + name for name in states), f"{INSIDE}text", GENERATED],
        name="loop",
        body=body,
    )
    scalars = [(name, TensorProto.INT64) for name in WHOLE_NUMBERS]
    scalars += [(name, TensorProto.DOUBLE) for name in REAL_NUMBERS]
    outer = helper.make_graph(
        [*start.node, *_mask(signature), loop],
        "t2r_generate",
        [
            _single(past[INPUT_IDS]),
            *(helper.make_tensor_value_info(name, kind, []) for name, kind in scalars),
            helper.make_tensor_value_info(STOP_TOKENS, TensorProto.INT64, ["stops"]),
            helper.make_tensor_value_info(OCCURRED, TensorProto.INT64, ["occurred"]),
            *(_single(past[spec.past]) for spec in signature.states),
        ],
        [
            helper.make_tensor_value_info(GENERATED, TensorProto.INT64, ["N"]),
            *(_single(present[PRESENT + name]) for name in states),
        ],
        [*graph.initializer, *start.initializer, *_free(signature)],
    )
    return made_of(step, outer)


def check_signature(signature: Signature) -> None:
    """Refuse a step graph whose states a Loop cannot carry.

    Raises:
        UserError: a state that grows, or a batch other than 1.
    """
    signature.require_constant("for a generation graph (--generate)")
    if signature.batch not in (None, 1):
        raise UserError(
            "a generation graph of one text", f"a batch of {signature.batch}", "leave out --batch or --generate"
        )


def _body(graph: onnx.GraphProto, signature: Signature, choose: onnx.GraphProto) -> onnx.GraphProto:
    """The loop body: the step on the loop's states and token, then sampling of the next token."""
    chained = signature.chained
    shared = [INPUT_IDS, *(spec.past for spec in chained), *(spec.present for spec in chained)]
    names = {name: INSIDE + name for name in shared}
    allowed = []
    for mask in _mask(signature):
        names[LOGITS] = INSIDE + LOGITS
        allowed.append(helper.make_node("Add", [names[LOGITS], mask.output[0]], [LOGITS], name="allowed"))
    nodes = renamed(needed(graph.node, [LOGITS, *(spec.present for spec in chained)]), names)
    nodes += [*allowed, *choose.node]
    made = {name for node in nodes for name in node.output}
    inside = [v for v in graph.value_info if v.name in made]
    inputs = {v.name: v for v in graph.input}
    outputs = {v.name: v for v in graph.output}
    _, iteration, text = choose.input
    go_on, token, text_after, written = choose.output
    return helper.make_graph(
        nodes,
        "step",
        [
            iteration,
            helper.make_tensor_value_info("going_on", TensorProto.BOOL, []),
            *(_single(inputs[name], INSIDE) for name in shared if name in inputs),
            text,
        ],
        [go_on, token, *(_single(outputs[spec.present], INSIDE) for spec in chained), text_after, written],
        value_info=[_single(value) for value in inside],
    )


def _free(signature: Signature) -> list[onnx.TensorProto]:
    """A mask (1, vocabulary), 1 for allowed tokens and 0 for banned ones; an empty list if none is banned."""
    banned = () if signature.source is None else signature.source.banned_tokens
    if not banned:
        return []
    free = np.ones((1, signature.vocab_size), np.float32)
    free[:, list(banned)] = 0
    return [numpy_helper.from_array(free, "free")]


def _mask(signature: Signature) -> list[onnx.NodeProto]:
    """Term added to the logits: 0 or -inf. It is computed because weights in files must be finite."""
    return [helper.make_node("Log", [free.name], ["banned"], name="banned") for free in _free(signature)]


def _single(value: onnx.ValueInfoProto, prefix: str = "") -> onnx.ValueInfoProto:
    """The value declaration for batch size 1."""
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    copy.name = prefix + value.name
    for dim in copy.type.tensor_type.shape.dim:
        if BATCH in factors(dim.dim_param)[1]:
            rest = quotient(dim.dim_param, BATCH)
            if isinstance(rest, int):
                dim.dim_value = rest
            else:
                dim.dim_param = rest
    return copy
