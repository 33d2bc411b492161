"""A step graph as a generation graph: an ONNX Loop around the step, which chooses each token and reads it.

The usual way is a program that calls the step once per token. Made from a finished step graph, float32 or quantized, of
any target, whose weights stay where they are: as initializers outside of the loop, where ONNX Runtime packs them for
its kernels once and maps them from a file. Everything that the step remembers has a fixed size, so it is what a Loop
carries; a cache that grows is refused. Sampling is t2r_runtime.sampling, number for number.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

from t2r_export.graph.nodes import needed
from t2r_runtime.errors import UserError
from t2r_runtime.interface import DRAWN, GENERATED, MAX_TOKENS, SEED, STOP_TOKENS, TEMPERATURE, TOP_K, TOP_P
from t2r_runtime.noise import FACTORS, GOLDEN, SHIFTS, WORD
from t2r_runtime.signature import BATCH, INPUT_IDS, LOGITS, PRESENT, Signature

INSIDE = "loop."  # before the names that the body and the graph around it would share

# Written in ONNX's own text form. Names are apart from a step's, whose nodes name their outputs `node.out`.
_CONSTANTS = f"""
    int64 no_limit = {{0}}, int64 none = {{0}}, int64 one = {{1}}, int64 bad_token = {{-1}},
    int64 golden = {{{GOLDEN}}}, int64 low_word = {{{WORD - 1}}}, int64 size = {{%(vocabulary)d}},
    double greedy = {{0}}, double half = {{0.5}}, double words = {{{WORD}}}, float too_large = {{3.4e38}},
    double whole = {{1}}, double never = {{-1.7e308}},
    int64[1] flat = {{-1}},
    {", ".join(f"int64 shift_{n} = {{{1 << n}}}" for n in sorted(set(SHIFTS)))},
    {", ".join(f"int64 factor_{i} = {{{factor - WORD}}}" for i, factor in enumerate(FACTORS))}
"""


def _mix(x: str, out: str) -> str:
    """t2r_runtime.noise.mix of x < 2^32 in int64. Factors have 2^32 taken off, so that no product passes 63 bits; what
    that changes are bits above the lowest 32, which are cut off."""
    lines = []
    for i, (shift, _) in enumerate(zip(SHIFTS, FACTORS, strict=False)):
        lines += [
            f"{out}_down_{i} = Div({x}, shift_{shift})",
            f"{out}_turned_{i} = BitwiseXor({x}, {out}_down_{i})",
            f"{out}_times_{i} = Mul({out}_turned_{i}, factor_{i})",
            f"{out}_{i} = BitwiseAnd({out}_times_{i}, low_word)",
        ]
        x = f"{out}_{i}"
    return "\n".join([*lines, f"{out}_down = Div({x}, shift_{SHIFTS[-1]})", f"{out} = BitwiseXor({x}, {out}_down)"])


# before the loop: what is the same for all draws
_START = f"""
start (int64 {SEED}, int64 {DRAWN}) => (int64 draws) <{_CONSTANTS}> {{
    seeded = Add({SEED}, golden)
    seed_word = BitwiseAnd(seeded, low_word)
    {_mix("seed_word", "seed_hash")}
    draws = Add(seed_hash, {DRAWN})
    chance = Greater({TEMPERATURE}, greedy)
    no_edge = LessOrEqual({TOP_K}, no_limit)
    no_nucleus = GreaterOrEqual({TOP_P}, whole)
    unsorted = And(no_edge, no_nucleus)
    edge = Min({TOP_K}, size)
    limit = Where(no_edge, size, edge)
    count = Reshape(limit, flat)
}}"""

# in the loop: logits (1, vocabulary) become a token (1), or -1 where they are not finite, and whether to go on
_CHOOSE = f"""
choose (float[1, %(vocabulary)d] {LOGITS}, int64 iteration) => (bool go_on, int64[1] token, int64 written) {{
    chosen = If(chance) <
        then_branch = draw () => (int64[1] drawn_token) {{
            values, tokens = If(unsorted) <
                then_branch = all () => (float[N] all_values, int64[N] all_tokens) {{
                    all_values = Reshape({LOGITS}, flat)
                    all_tokens = Range(none, size, one)
                }},
                else_branch = few () => (float[N] few_values, int64[N] few_tokens) {{
                    row = Reshape({LOGITS}, flat)
                    few_values, few_tokens = TopK(row, count)
                }}
            >
            number = Add(draws, iteration)
            number_word = BitwiseAnd(number, low_word)
            {_mix("number_word", "key")}
            keyed = Add(tokens, key)
            keyed_word = BitwiseAnd(keyed, low_word)
            {_mix("keyed_word", "hash")}
            hash_double = Cast <to = {TensorProto.DOUBLE}> (hash)
            centred = Add(hash_double, half)
            uniform = Div(centred, words)
            log_uniform = Log(uniform)
            waiting = Neg(log_uniform)
            log_waiting = Log(waiting)
            wide = Cast <to = {TensorProto.DOUBLE}> (values)
            best = ReduceMax <keepdims = 0> (wide)
            below = Sub(wide, best)
            scores = Div(below, {TEMPERATURE})
            allowed = If(no_nucleus) <
                then_branch = keep () => (double[N] all_scores) {{
                    all_scores = Identity(scores)
                }},
                else_branch = reach () => (double[N] nucleus_scores) {{
                    weights = Exp(scores)
                    sum = ReduceSum <keepdims = 0> (weights)
                    enough = Mul({TOP_P}, sum)
                    reached = CumSum(weights, none)
                    before = Sub(reached, weights)
                    inside = Less(before, enough)
                    nucleus_scores = Where(inside, scores, never)
                }}
            >
            noisy = Sub(allowed, log_waiting)
            place = ArgMax <axis = 0, keepdims = 1> (noisy)
            drawn_token = Gather(tokens, place)
        }},
        else_branch = take () => (int64[1] best_token) {{
            best_token = ArgMax <axis = 1, keepdims = 0> ({LOGITS})
        }}
    >
    total = ReduceSum <keepdims = 0> ({LOGITS})
    finite = Less(total, too_large)
    token = Where(finite, chosen, bad_token)
    written = Squeeze(token)
    ends = Equal(token, {STOP_TOKENS})
    ends_counted = Cast <to = {TensorProto.INT64}> (ends)
    ends_found = ReduceSum <keepdims = 0> (ends_counted)
    no_end = Equal(ends_found, none)
    go_on = And(no_end, finite)
}}"""


def generation_graph(step: onnx.ModelProto, signature: Signature) -> onnx.ModelProto:
    """The graph that generates with `step`; its initializers are those of `step`, and a few small ones.

    Args:
        step: a step graph, whose initializers hold their weights or name them.
        signature: the step graph's.

    Raises:
        UserError: a state that grows, or a batch other than 1.
    """
    check_signature(signature)
    graph = step.graph
    start = _parsed(_START, signature)
    choose = _parsed(_CHOOSE, signature)
    body = _body(graph, signature, choose)
    states = [spec.name for spec in signature.states]
    past = {value.name: value for value in graph.input}
    present = {value.name: value for value in graph.output}
    loop = helper.make_node(
        "Loop",
        [MAX_TOKENS, "", INPUT_IDS, *(spec.past for spec in signature.states)],
        [f"{INSIDE}last", *(PRESENT + name for name in states), GENERATED],
        name="loop",
        body=body,
    )
    scalars = [(MAX_TOKENS, TensorProto.INT64), (TEMPERATURE, TensorProto.DOUBLE), (TOP_P, TensorProto.DOUBLE)]
    scalars += [(name, TensorProto.INT64) for name in (TOP_K, SEED, DRAWN)]
    outer = helper.make_graph(
        [*start.node, loop],
        "t2r_generate",
        [
            _single(past[INPUT_IDS]),
            *(helper.make_tensor_value_info(name, kind, []) for name, kind in scalars),
            helper.make_tensor_value_info(STOP_TOKENS, TensorProto.INT64, ["stops"]),
            *(_single(past[spec.past]) for spec in signature.states),
        ],
        [
            helper.make_tensor_value_info(GENERATED, TensorProto.INT64, ["N"]),
            *(_single(present[PRESENT + name]) for name in states),
        ],
        [*graph.initializer, *start.initializer],
    )
    made = helper.make_model(outer, opset_imports=step.opset_import, ir_version=step.ir_version)
    made.producer_name, made.producer_version = step.producer_name, step.producer_version
    _check(made)
    return made


def check_signature(signature: Signature) -> None:
    """Refuse a step graph that no loop can carry.

    Raises:
        UserError: a state that grows, or a batch other than 1.
    """
    signature.require_constant("for a generation graph (--generate)")
    if signature.batch not in (None, 1):
        raise UserError(
            "a generation graph of one text", f"a batch of {signature.batch}", "leave out --batch or --generate"
        )


def _parsed(text: str, signature: Signature) -> onnx.GraphProto:
    return onnx.parser.parse_graph(text % {"vocabulary": signature.vocab_size})


def _body(graph: onnx.GraphProto, signature: Signature, choose: onnx.GraphProto) -> onnx.GraphProto:
    """One iteration: the step, whose states and token are the loop's, and the choice of the next token."""
    shared = [INPUT_IDS, *(spec.past for spec in signature.states), *(spec.present for spec in signature.states)]
    names = {name: INSIDE + name for name in shared}
    nodes = [*_renamed(needed(graph.node, [LOGITS, *(s.present for s in signature.states)]), names), *choose.node]
    made = {name for node in nodes for name in node.output}
    inside = [v for v in graph.value_info if v.name in made]
    inputs = {v.name: v for v in graph.input}
    outputs = {v.name: v for v in graph.output}
    go_on, token, written = choose.output
    return helper.make_graph(
        nodes,
        "step",
        [
            choose.input[1],
            helper.make_tensor_value_info("going_on", TensorProto.BOOL, []),
            *(_single(inputs[name], INSIDE) for name in shared if name in inputs),
        ],
        [go_on, token, *(_single(outputs[spec.present], INSIDE) for spec in signature.states), written],
        value_info=[_single(value) for value in inside],
    )


def _renamed(nodes: Sequence[onnx.NodeProto], names: dict[str, str]) -> list[onnx.NodeProto]:
    copies = []
    for node in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        for field in (copy.input, copy.output):
            field[:] = [names.get(name, name) for name in field]
        copies.append(copy)
    return copies


def _single(value: onnx.ValueInfoProto, prefix: str = "") -> onnx.ValueInfoProto:
    """The declaration for a batch of 1."""
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    copy.name = prefix + value.name
    for dim in copy.type.tensor_type.shape.dim:
        if dim.dim_param == BATCH:
            dim.dim_value = 1
    return copy


def _check(model: onnx.ModelProto) -> None:
    """ONNX's own checker, to which weights that are not there are inputs, as in t2r_export.graph.recording."""
    checked = onnx.ModelProto()
    checked.CopyFrom(model)
    there = checked.graph.initializer
    for i in reversed(range(len(there))):
        if there[i].data_location == TensorProto.EXTERNAL:  # named, or in a file
            checked.graph.input.append(helper.make_tensor_value_info(there[i].name, there[i].data_type, there[i].dims))
            del there[i]
    onnx.checker.check_model(checked, full_check=True)
