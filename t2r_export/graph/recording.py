"""Record a model's step as a checked ONNX graph with separate weights.

Depends only on the model's `step` and `state_spec`, never on the kinds of its layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from t2r_export.config.targets import TARGETS, Target
from t2r_export.graph.layout import low_name
from t2r_export.graph.nodes import name_dims
from t2r_export.graph.portable import GraphOps
from t2r_export.graph.recorder import Value, value_info
from t2r_export.graph.weights import refer, shape
from t2r_export.model.transformer import Transformer
from t2r_export.version import __version__
from t2r_runtime.contract.signature import (
    HIDDEN,
    INPUT_IDS,
    INPUTS_EMBEDS,
    KEEP,
    LOG_SUM,
    LOGITS,
    SOURCE_IDS,
    SOURCE_LENGTHS,
    TOP_LOGITS,
    TOP_TOKENS,
)
from t2r_runtime.contract.state_spec import ADAPTER, BATCH, PAST, PRESENT, SOURCE_LENGTH, StateSpec

DAMPING = 2**-4  # factor of φ(q): φ(q)·z stays in float16 range if φ(q) sums to at most 16; smaller factors round more


def build_graph(
    model: Transformer,
    states: Sequence[StateSpec],
    batch: int | str,
    target: Target = TARGETS["portable"],
    top_k: int | None = None,
    tokens: str | None = None,
    float16_safe: bool = False,
    checks_drafts: bool = False,
    output_hidden: bool = False,
    adapters: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
) -> tuple[onnx.ModelProto, GraphOps]:
    """Record the step of `model`. Returns the checked message, whose initializers name its weights, and the recorder
    that holds them.

    Args:
        states: the model's.
        tokens: the letter of the token dimension; None: one token per sequence.
        float16_safe: for accelerators that always compute in float16. A state that is a sum becomes two tensors (the
        recorder's `low_after` has the second), because one would stop growing, and φ(q) is scaled down to keep φ(q)·z
        below 65,504.
        checks_drafts: a graph that reads `tokens` and returns logits after each of them, and the states after the first
        `keep`.
        output_hidden: also return the head's input where there are logits.
        adapters: by name of a weight W (out, in), A (adapters, in, rank) and B (adapters, rank, out), float32, of which
        the state ADAPTER chooses one per row: W x + B A x. Without that state each weight has one, which always counts.
    """
    ops = target.ops(model, batch, tokens)
    if float16_safe:
        ops.damping = DAMPING
    read = (batch,) if tokens is None else (batch, tokens)
    ids = Value(INPUT_IDS, "int64", read)
    if model.input_size is not None:
        ids = Value(INPUTS_EMBEDS, "float32", (*read, model.input_size))
    inputs, past = [ids], {}
    if checks_drafts:
        ops.keep = Value(KEEP, "int64", (batch,))
        inputs.append(ops.keep)
    ops.adapters = adapters or {}
    for spec in states:
        dims = tuple(batch if d == BATCH else d for d in spec.shape)
        past[spec.name] = Value(spec.past, spec.dtype, dims)
        inputs.append(past[spec.name])
        if float16_safe and spec.dtype == "float32" and not spec.constant:
            ops.low[spec.past] = Value(PAST + low_name(spec.name), "float32", dims)
    ops.chosen = past.pop(ADAPTER, None)
    hidden, present = model.hidden(ids, past, ops)
    if ops.chosen is not None:
        present[ADAPTER] = ops.emit("Identity", [ops.chosen], ops.chosen.shape)
    logits = model.head_of(hidden, ops)
    if checks_drafts:
        logits = ops.prompt.by_sequence(logits, model.config.vocab_size)
    results = {LOGITS: logits}
    if top_k is not None:
        results |= zip((TOP_LOGITS, TOP_TOKENS), ops.top_k(logits, top_k), strict=True)
        if model.encoder is not None:  # beam search compares log-probabilities
            results[LOG_SUM] = _log_sum(logits, ops)
    if output_hidden:
        results[HIDDEN] = ops.prompt.by_sequence(hidden, model.config.width) if checks_drafts else hidden
    results |= {spec.present: present[spec.name] for spec in states if not spec.constant}
    for name, after in ops.low_after.items():
        inputs.append(ops.low[name])
        results[PRESENT + ops.low[name].name.removeprefix(PAST)] = after
    return _finished(inputs, results, ops, target), ops


def _log_sum(logits: Value, ops: GraphOps) -> Value:
    """log Σ exp (B,) of logits (B, vocabulary), shifted by the maximum.

    Not ReduceLogSumExp, which is not vectorized in ONNX Runtime 1.31.
    """
    largest = ops.reduce_max(logits)
    weights = ops.exp(ops.sub(logits, largest))
    total = ops.emit("ReduceSum", [weights, ops.constant([-1], "int64")], largest.shape, keepdims=1)
    return ops.add(largest, ops.emit_elementwise("Log", [total])).viewed(logits.shape[:-1])


def build_encoder(
    model: Transformer, states: Sequence[StateSpec], batch: int | str, target: Target, length: int | str = SOURCE_LENGTH
) -> tuple[onnx.ModelProto, GraphOps]:
    """Record the encoder graph of a translator, like `build_graph`: source tokens (B, length) and lengths -> all
    constant states."""
    ops = target.ops(model, batch, length)
    inputs = [Value(SOURCE_IDS, "int64", (batch, length)), Value(SOURCE_LENGTHS, "int64", (batch,))]
    made = model.encode(inputs[0], inputs[1], ops)
    results = {spec.name: made[spec.name] for spec in states if spec.constant}
    results |= {spec.present: made[spec.name] for spec in states if spec.name in model.start_states}
    return _finished(inputs, results, ops, target), ops


def _finished(inputs: list[Value], results: dict[str, Value], ops: GraphOps, target: Target) -> onnx.ModelProto:
    """The checked message of the recorded graph, with named outputs."""
    results = {name: ops.settled(value) for name, value in results.items()}
    outputs = [dataclasses.replace(value, name=name) for name, value in results.items()]
    ops.rename({value.name: name for name, value in results.items()})
    ops.prune([value.name for value in outputs])
    return _checked(inputs, outputs, ops, target)


def _checked(inputs: list[Value], outputs: list[Value], ops: GraphOps, target: Target) -> onnx.ModelProto:
    """Check the message with ONNX's checker and add the type and shape of every tensor.

    Weights are declared as inputs for the checker only, so that it needs their types but not their data.
    """
    opsets = [helper.make_opsetid(domain, version) for domain, version in target.opsets.items()]
    names = {v.name for v in outputs}
    declared = [value_info(Value(name, "float32", shape(weight))) for name, weight in ops.weights.items()]
    graph = helper.make_graph(
        ops.nodes,
        "t2r_step",
        [*map(value_info, inputs), *declared],
        [value_info(v) for v in outputs],
        initializer=list(ops.constants.values()),
        value_info=[value_info(v) for v in ops.declared if v.name not in names],
    )
    model = helper.make_model(graph, opset_imports=opsets, ir_version=target.ir_version, producer_name="t2r-export")
    model.producer_version = __version__
    onnx.checker.check_model(model, full_check=True)
    model = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
    name_dims(model.graph.value_info, ops.shapes)
    del model.graph.input[len(inputs) :]
    model.graph.initializer.extend(refer(name, weight) for name, weight in ops.weights.items())
    return model
