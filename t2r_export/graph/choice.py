"""Token sampling as a graph: the contract's sampling and penalties, with the same numerics.

Written in ONNX's text format. Names cannot collide with a step graph's, which have the form `node.out`.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto

from t2r_runtime.contract.noise import FACTORS, GOLDEN, SHIFTS, WORD
from t2r_runtime.contract.signature import INPUT_IDS, LOGITS
from t2r_runtime.decode.history import RECENT
from t2r_runtime.session.interface import (
    DRAWN,
    MIN_P,
    NO_REPEAT_NGRAM,
    OCCURRED,
    REPETITION_PENALTY,
    SEED,
    STOP_TOKENS,
    TEMPERATURE,
    TOP_K,
    TOP_P,
)

_CONSTANTS = f"""
    int64 no_limit = {{0}}, int64 none = {{0}}, int64 one = {{1}}, int64 bad_token = {{-1}},
    int64 golden = {{{GOLDEN}}}, int64 low_word = {{{WORD - 1}}}, int64 size = {{%(vocabulary)d}},
    double nothing_real = {{0}}, double half = {{0.5}}, double words = {{{WORD}}}, float too_large = {{3.4e38}},
    double whole = {{1}}, double never = {{-1.7e308}}, float zero = {{0}}, float lowest = {{-3.4e38}},
    int64[1] flat = {{-1}}, int64[1] first_axis = {{0}}, int64[1] second_axis = {{1}},
    int64[1] recent = {{{-RECENT}}}, int64[1] end = {{{1 << 62}}},
    {", ".join(f"int64 shift_{n} = {{{1 << n}}}" for n in sorted(set(SHIFTS)))},
    {", ".join(f"int64 factor_{i} = {{{factor - WORD}}}" for i, factor in enumerate(FACTORS))}
"""


def _mix(x: str, out: str) -> str:
    """The contract's `noise.mix` of x < 2^32 in int64. Factors are reduced by 2^32 so that products fit into 63 bits;
    this changes only bits above the lowest 32, which are masked."""
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


# loop-invariant: the same for all draws
_START = f"""
start (int64 {SEED}, int64 {DRAWN}) => (int64[P] text_before) <{_CONSTANTS}> {{
    seeded = Add({SEED}, golden)
    seed_word = BitwiseAnd(seeded, low_word)
    {_mix("seed_word", "seed_hash")}
    draws = Add(seed_hash, {DRAWN})
    chance = Greater({TEMPERATURE}, nothing_real)
    no_edge = LessOrEqual({TOP_K}, no_limit)
    no_nucleus = GreaterOrEqual({TOP_P}, whole)
    unsorted = And(no_edge, no_nucleus)
    edge = Min({TOP_K}, size)
    limit = Where(no_edge, size, edge)
    count = Reshape(limit, flat)
    no_floor = LessOrEqual({MIN_P}, nothing_real)
    floor = Log({MIN_P})
    penalty = Cast <to = {TensorProto.FLOAT}> ({REPETITION_PENALTY})
    no_penalty = Equal({REPETITION_PENALTY}, whole)
    no_ngram = LessOrEqual({NO_REPEAT_NGRAM}, none)
    looks_ahead = And(no_penalty, no_ngram)
    looks_back = Not(looks_ahead)
    impossible = Log(zero)
    text_before = If(looks_back) <
        then_branch = read () => (int64[P] text_read) {{
            text_whole = Concat <axis = 0> ({OCCURRED}, {INPUT_IDS})
            text_read = Slice(text_whole, recent, end)
        }},
        else_branch = forget () => (int64[P] text_forgotten) {{
            text_forgotten = Slice(flat, end, end)
        }}
    >
}}"""

# t2r_runtime.contract.penalties: logits (1, vocabulary) before and after
_PENALIZED = f"""
    penalized = If(looks_back) <
        then_branch = lower () => (float[1, %(vocabulary)d] possible) {{
            old = Gather <axis = 1> ({LOGITS}, text)
            positive = Greater(old, zero)
            divided = Div(old, penalty)
            multiplied = Mul(old, penalty)
            new = Where(positive, divided, multiplied)
            places = Unsqueeze(text, first_axis)
            lowered = ScatterElements <axis = 1> ({LOGITS}, places, new)
            possible = If(no_ngram) <
                then_branch = any () => (float[1, %(vocabulary)d] as_lowered) {{
                    as_lowered = Identity(lowered)
                }},
                else_branch = forbid () => (float[1, %(vocabulary)d] as_possible) {{
                    length = Size(text)
                    begins = Sub(length, {NO_REPEAT_NGRAM})
                    tail_begin = Add(begins, one)
                    rows = Max(tail_begin, none)
                    numbers = Range(none, rows, one)
                    columns = Range(none, {NO_REPEAT_NGRAM}, one)
                    number_column = Unsqueeze(numbers, second_axis)
                    indices = Add(number_column, columns)
                    found = Gather(text, indices)
                    tail_unbound = Add(tail_begin, columns)
                    last_index = Sub(length, one)
                    tail_low = Max(tail_unbound, none)
                    tail_indices = Min(tail_low, last_index)
                    tail = Gather(text, tail_indices)
                    last_column = Sub({NO_REPEAT_NGRAM}, one)
                    next = Equal(columns, last_column)
                    equal = Equal(found, tail)
                    same = Or(equal, next)
                    same_counted = Cast <to = {TensorProto.INT64}> (same)
                    same_all = ReduceMin <keepdims = 0> (same_counted, second_axis)
                    begun = Cast <to = {TensorProto.BOOL}> (same_all)
                    followers = Gather <axis = 1> (found, last_column)
                    forbidden = Compress <axis = 0> (followers, begun)
                    forbidden_places = Unsqueeze(forbidden, first_axis)
                    forbidden_shape = Shape(forbidden_places)
                    nothing = Expand(impossible, forbidden_shape)
                    left = ScatterElements <axis = 1> (lowered, forbidden_places, nothing)
                    largest_left = ReduceMax <keepdims = 0> (left)
                    some_left = Greater(largest_left, lowest)
                    as_possible = Where(some_left, left, lowered)
                }}
            >
        }},
        else_branch = as_it_is () => (float[1, %(vocabulary)d] as_given) {{
            as_given = Identity({LOGITS})
        }}
    >
"""

# loop body: logits (1, vocabulary) -> a token (1), or -1 if they are not finite, and the continue flag; appends the
# token to the history if penalties need one
_CHOOSE = f"""
choose (float[1, %(vocabulary)d] {LOGITS}, int64 iteration, int64[P] text) =>
    (bool go_on, int64[1] token, int64[Q] text_after, int64 written) {{
    {_PENALIZED}
    chosen = If(chance) <
        then_branch = draw () => (int64[1] drawn_token) {{
            values, tokens = If(unsorted) <
                then_branch = all () => (float[N] all_values, int64[N] all_tokens) {{
                    all_values = Reshape(penalized, flat)
                    all_tokens = Range(none, size, one)
                }},
                else_branch = few () => (float[N] few_values, int64[N] few_tokens) {{
                    row = Reshape(penalized, flat)
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
            probable = If(no_floor) <
                then_branch = keep_all () => (double[N] as_allowed) {{
                    as_allowed = Identity(allowed)
                }},
                else_branch = rise () => (double[N] above_floor) {{
                    above = GreaterOrEqual(scores, floor)
                    above_floor = Where(above, allowed, never)
                }}
            >
            noisy = Sub(probable, log_waiting)
            place = ArgMax <axis = 0, keepdims = 1> (noisy)
            drawn_token = Gather(tokens, place)
        }},
        else_branch = take () => (int64[1] best_token) {{
            best_token = ArgMax <axis = 1, keepdims = 0> (penalized)
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
    text_after = If(looks_back) <
        then_branch = extend () => (int64[Q] text_recent) {{
            text_longer = Concat <axis = 0> (text, token)
            text_recent = Slice(text_longer, recent, end)
        }},
        else_branch = leave () => (int64[Q] text_left) {{
            text_left = Identity(text)
        }}
    >
}}"""


def start(vocabulary: int) -> onnx.GraphProto:
    """Loop-invariant nodes. Their output is the initial history, if penalties need one."""
    return onnx.parser.parse_graph(_START % {"vocabulary": vocabulary})


def choose(vocabulary: int) -> onnx.GraphProto:
    """Loop body: logits, iteration number and history -> continue flag, token (1), extended history, and the token as a
    scalar ()."""
    return onnx.parser.parse_graph(_CHOOSE % {"vocabulary": vocabulary})
