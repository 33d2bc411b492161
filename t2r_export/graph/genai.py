"""Combine a step graph and its prefill graph into the single graph that onnxruntime-genai calls for prompts and tokens.

genai usually runs graphs of known attention layers. It also feeds back unknown states by name: for each layer
one state of rank 4 and one of rank 3, which fits S and z. An If on the number of tokens selects one of our two graphs;
their weights are initializers of the outer graph. Inputs and outputs that differ from runtimes/CONTRACT.md
(`position_ids` (B, N), logits (B, 1, vocabulary)) are converted around the If.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from t2r_export.config.layer import kinds_of
from t2r_export.graph.bundle import Bundle
from t2r_export.graph.nodes import made_of, needed, renamed
from t2r_runtime.contract.signature import INPUT_IDS, LOGITS, PREFILL, Signature
from t2r_runtime.contract.state_spec import BATCH, GROWING, POSITION, TOKENS, StateSpec
from t2r_runtime.errors import UserError

POSITION_IDS = "position_ids"  # int64 (B, N): positions of the tokens, from 0
SUMS, CACHE = ("S", "z"), ("k", "v")
GROWN = "T+N"  # the length of a cache after a run
ZERO, ONE, FIRST = (
    numpy_helper.from_array(np.array(value), f"genai.{name}")
    for name, value in (("zero", [0]), ("one", [1]), ("first", 0))
)
EXPECTED = "softmax layers of one shape and linear layers of one shape, with S and z or S alone, for onnxruntime-genai"


def genai_graph(bundle: Bundle) -> onnx.ModelProto:
    """The combined graph of a bundle that has a prefill graph. Its initializers refer to the bundle's weights.

    Inputs are int64 `input_ids` (B, N), `position_ids` (B, N) if the model has a state `position`, and `past_X` for
    every other state; outputs are `logits` (B, 1, vocabulary) and `present_X`. A linear layer without z gets one that
    stays zero.

    Raises:
        UserError: see `check_layers`.
    """
    signature = bundle.signature
    check_layers(signature)
    states = [spec for spec in signature.states if spec.name != POSITION]
    positions = len(states) < len(signature.states)
    unused = _missing(states)
    step, prompt = bundle.step.graph, bundle.companions[PREFILL].graph
    choice = helper.make_node(
        "If",
        ["genai.is_step"],
        ["genai.logits", *(spec.present for spec in states)],
        name="step_or_prompt",
        then_branch=_branch("step", step, states, [helper.make_node("Squeeze", [INPUT_IDS, ONE.name], ["step.ids"])]),
        else_branch=_branch("prompt", prompt, states),
    )
    graph = helper.make_graph(
        [
            *_before(positions),
            choice,
            helper.make_node("Unsqueeze", ["genai.logits", ONE.name], [LOGITS]),
            *(helper.make_node("Identity", [spec.past], [spec.present]) for spec in unused),
        ],
        "t2r_genai",
        [
            *(_ids(name) for name in (INPUT_IDS, *([POSITION_IDS] if positions else []))),
            *(_tensor(spec.past, spec.shape) for spec in (*states, *unused)),
        ],
        [
            _tensor(LOGITS, (BATCH, 1, signature.vocab_size)),
            *(_tensor(spec.present, _grown(spec)) for spec in (*states, *unused)),
        ],
        [*_together(step.initializer, prompt.initializer), ZERO, ONE, FIRST],
    )
    return made_of(bundle.step, graph)


def check_layers(signature: Signature) -> None:
    """Refuse states that genai does not feed back. Each layer must have S, or S and z, or k and v.

    Raises:
        UserError: a layer has other states, or shapes that differ from the first layer of its kind.
    """
    if signature.source is not None:
        raise _refused("a translator")
    layers: dict[str, list[StateSpec]] = {}
    for spec in signature.states:
        kind, dot, layer = spec.name.partition(".")
        if dot:
            layers.setdefault(layer, []).append(spec)
    first: dict[str, StateSpec] = {}
    for layer, specs in layers.items():
        mixer = kinds_of(signature.layers[int(layer)])[0]
        kinds = tuple(spec.name.partition(".")[0] for spec in specs)
        if kinds not in (SUMS, SUMS[:1], CACHE) or (kinds == CACHE and not specs[0].grows):
            raise _refused(f"layer {layer}, {mixer}, with {', '.join(kinds)}")
        for kind, spec in zip(kinds, specs, strict=True):
            like = first.setdefault(kind, spec)
            if like.shape != spec.shape:
                raise _refused(f"{like.name} {list(like.shape)} and {spec.name} {list(spec.shape)}")
            if spec.initial != 0:
                raise _refused(f"{spec.name}, which starts as {spec.initial}")


def _refused(received: str) -> UserError:
    return UserError(EXPECTED, received, "choose other mixers, or leave out --format")


def _missing(states: Sequence[StateSpec]) -> list[StateSpec]:
    """A z for every S that has none, with the shape of existing ones, or the smallest possible shape."""
    there = {spec.name: spec for spec in states}
    shape = next((spec.shape for spec in states if spec.name.startswith("z.")), (BATCH, 1, 1))
    layers = [name.partition(".")[2] for name in there if name.startswith("S.")]
    return [StateSpec(f"z.{layer}", "float32", shape) for layer in layers if f"z.{layer}" not in there]


def _before(positions: bool) -> list[onnx.NodeProto]:
    """Nodes that compute whether one token is read, and the number of tokens read so far (the first position)."""
    nodes = [
        helper.make_node("Shape", [INPUT_IDS], ["genai.tokens"], start=1, end=2),
        helper.make_node("Equal", ["genai.tokens", ONE.name], ["genai.single"]),
        helper.make_node("Squeeze", ["genai.single", ZERO.name], ["genai.is_step"]),
    ]
    if positions:
        nodes += [
            helper.make_node("Gather", [POSITION_IDS, FIRST.name], ["genai.position"], axis=1),
            helper.make_node("Cast", ["genai.position"], [f"past_{POSITION}"], to=TensorProto.INT32),
        ]
    return nodes


def _branch(
    name: str, graph: onnx.GraphProto, states: Sequence[StateSpec], before: Sequence[onnx.NodeProto] = ()
) -> onnx.GraphProto:
    """One branch; it reads outer-scope values, and `before` produces its token ids."""
    results = [LOGITS, *(spec.present for spec in states)]
    names = {result: f"{name}.{result}" for result in results}
    if before:
        names[INPUT_IDS] = before[0].output[0]
    nodes = renamed(needed(graph.node, results), names)
    made = {output for node in nodes for output in node.output}
    # no shapes: an If requires symbolic shapes of its branches to match exactly
    outputs = [helper.make_tensor_value_info(names[result], TensorProto.FLOAT, None) for result in results]
    return helper.make_graph(
        [*before, *nodes], name, [], outputs, value_info=[v for v in graph.value_info if v.name in made]
    )


def _together(*parts: Iterable[TensorProto]) -> list[TensorProto]:
    """The initializers of both graphs, without duplicate names."""
    found: dict[str, TensorProto] = {}
    for tensor in (tensor for part in parts for tensor in part):
        assert found.setdefault(tensor.name, tensor) == tensor, tensor.name
    return list(found.values())


def _ids(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.INT64, [BATCH, TOKENS])


def _tensor(name: str, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _grown(spec: StateSpec) -> tuple[int | str, ...]:
    return tuple(GROWN if d == GROWING else d for d in spec.shape)
