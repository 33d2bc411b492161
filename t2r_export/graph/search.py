"""Beam search as a graph: runtimes/CONTRACT.md, "The search", number for number as t2r_runtime.translate.beam has it.

Written in ONNX's own text form. Names are apart from a step's, whose nodes name their outputs `node.out`. Dimensions: W
is the width, n the tokens of a hypothesis, and K the candidates.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto

from t2r_runtime.contract.signature import LOGITS, Signature
from t2r_runtime.session.interface import EARLY_STOPPING, FORCED_END, LENGTH_PENALTY, MAX_TOKENS, MIN_TOKENS, WIDTH

_CONSTANTS = """
    int64 none = {0}, int64 one = {1}, int64 never_number = {2}, int64 bad_token = {-1}, int64 size = {%(vocabulary)d},
    int64 factor = {%(factor)d}, int64[1] flat = {-1}, int64[1] first_axis = {0}, int64[1] second_axis = {1},
    int64[1] vocabulary_shape = {%(vocabulary)d}, int64 starts_before = {%(before)d}, int64 first_token = {%(first)d},
    int64[%(starts)d] start_tokens = {%(start_tokens)s}, double nothing = {0}, double lowest = {-1.7e308},
    float zero = {0}, float lowest_logit = {-3.4e38}, float too_large = {3.4e38}%(ends)s%(banned)s
"""

# before the loop: what is the same for all steps, and the first hypotheses, of which all but one cannot go on
_START = """
start (int64 {width}) => (int64[W] first_tokens, double[W] first_sums, int64[W, n] no_texts, double[W] no_scores)
<%(constants)s> {{
    impossible = Log(nothing)
    impossible_logit = Log(zero)
    width_count = Reshape({width}, flat)
    rows_of_one = Expand(none, width_count)
    every_row = Range(none, {width}, one)
    one_row = Equal(every_row, none)
    first_sums = Where(one_row, nothing, impossible)
    no_scores = Expand(impossible, width_count)
    no_text_shape = Concat <axis = 0> (width_count, first_axis)
    no_texts = ConstantOfShape <value = int64[1] {{-1}}> (no_text_shape)
    blank_shape = Concat <axis = 0> (width_count, second_axis)
    blanks = Expand(bad_token, blank_shape)
    first_tokens = Expand(first_token, width_count)
    trips = Identity({max_tokens})
    greedy = Equal({width}, one)
    wide = Mul({width}, factor)
    candidates = Where(greedy, one, wide)
    of_a_row = Min(candidates, size)
    row_count = Reshape(of_a_row, flat)
    of_all_rows = Mul(of_a_row, {width})
    kept = Min(candidates, of_all_rows)
    kept_count = Reshape(kept, flat)
    kept_numbers = Range(none, kept, one)
    in_front = Less(kept_numbers, {width})
    when_full = Equal({early_stopping}, one)
    eager = Or(greedy, when_full)
    asked_never = Equal({early_stopping}, never_number)
    longer_is_better = Greater({length_penalty}, nothing)
    at_the_longest = And(asked_never, longer_is_better)
    longest = Cast <to = {double}> ({max_tokens})
    asked_to_force = Greater({forced_end}, none)
    free = Expand(zero, vocabulary_shape)
    %(masks)s
}}"""

_MASKS = """
    {name}_masked = Expand(impossible_logit, {name}_shape)
    {out} = ScatterElements <axis = 0> ({of}, {name}, {name}_masked)
"""

# in the loop: logits (W, vocabulary) and hypotheses become the next hypotheses, and the rows that they come from
_CHOOSE = """
choose (float[W, %(vocabulary)d] {logits}, int64 iteration, double[W] sums, int64[W, n] texts, double[W] scores,
        int64[W, n] finished) =>
       (bool go_on, int64[W] tokens, double[W] sums_after, int64[W, m] texts_after, double[W] scores_after,
        int64[W, m] finished_after, int64[W] rows) {{
    length = Add(iteration, one)
    last = Equal(length, {max_tokens})
    force = And(forced, last)
    early = Less(iteration, {min_tokens})
    may_end = Where(early, no_end, no_banned)
    mask = Where(force, end_alone, may_end)
    largest = ReduceMax <keepdims = 1> ({logits}, second_axis)
    below = Sub({logits}, largest)
    weights = Exp(below)
    total = ReduceSum <keepdims = 1> (weights, second_axis)
    log_total = Log(total)
    log_sums = Add(largest, log_total)
    log_probabilities = Sub({logits}, log_sums)
    allowed = Add(log_probabilities, mask)
    row_values, row_tokens = TopK(allowed, row_count)
    row_possible = Greater(row_values, lowest_logit)
    row_forced = And(row_possible, force)
    row_added = Where(row_forced, zero, row_values)
    added = Cast <to = {double}> (row_added)
    sum_column = Unsqueeze(sums, second_axis)
    row_sums = Add(sum_column, added)
    all_sums = Reshape(row_sums, flat)
    best, places = TopK(all_sums, kept_count)
    parents = Div(places, of_a_row)
    all_tokens = Reshape(row_tokens, flat)
    chosen = Gather(all_tokens, places)
    chosen_column = Unsqueeze(chosen, second_axis)
    %(ended)s
    over = Or(ended, last)
    possible = Greater(best, lowest)
    over_in_front = And(over, in_front)
    finishes = And(over_in_front, possible)
    length_real = Cast <to = {double}> (length)
    divisor = Pow(length_real, {length_penalty})
    normalized = Div(best, divisor)
    new_scores = Where(finishes, normalized, impossible)
    parent_texts = Gather(texts, parents)
    new_texts = Concat <axis = 1> (parent_texts, chosen_column)
    finished_longer = Concat <axis = 1> (finished, blanks)
    scores_of_all = Concat <axis = 0> (scores, new_scores)
    texts_of_all = Concat <axis = 0> (finished_longer, new_texts)
    best_scores, best_places = TopK(scores_of_all, width_count)
    finished_after = Gather(texts_of_all, best_places)
    going_sums = Where(over, impossible, best)
    sums_after, going = TopK(going_sums, width_count)
    rows = Gather(parents, going)
    tokens = Gather(chosen, going)
    texts_after = Gather(new_texts, going)
    worst_score = ReduceMin <keepdims = 0> (best_scores)
    best_sum = ReduceMax <keepdims = 0> (sums_after)
    full = Greater(worst_score, lowest)
    length_then = Where(at_the_longest, longest, length_real)
    divisor_then = Pow(length_then, {length_penalty})
    score_then = Div(best_sum, divisor_then)
    no_better = LessOrEqual(score_then, worst_score)
    settled = Or(eager, no_better)
    enough = And(full, settled)
    some_go_on = Greater(best_sum, lowest)
    not_enough = Not(enough)
    not_last = Not(last)
    log_sum_of_all = ReduceSum <keepdims = 0> (log_sums)
    finite = Less(log_sum_of_all, too_large)
    scores_after = Where(finite, best_scores, impossible)
    more = And(not_enough, not_last)
    more_go_on = And(more, some_go_on)
    go_on = And(more_go_on, finite)
}}"""

_ENDED = """
    equal_ends = Equal(chosen_column, ends)
    counted_ends = Cast <to = {whole}> (equal_ends)
    most_ends = ReduceMax <keepdims = 0> (counted_ends, second_axis)
    ended = Greater(most_ends, none)
"""

# in the place of `choose`, while a start token has another behind it: each hypothesis has that one more
_READ = """
read () => (bool read_on, int64[W] next_tokens, double[W] same_sums, int64[W, m] longer_texts, double[W] same_scores,
            int64[W, m] longer_finished, int64[W] same_rows) {
    next_number = Add(iteration, one)
    next_token = Gather(start_tokens, next_number)
    next_tokens = Expand(next_token, width_count)
    read_on = Greater(one, none)
    same_sums = Identity(sums)
    next_column = Unsqueeze(next_tokens, second_axis)
    longer_texts = Concat <axis = 1> (texts, next_column)
    same_scores = Identity(scores)
    longer_finished = Concat <axis = 1> (finished, blanks)
    same_rows = Identity(every_row)
}"""

_NAMES = {"width": WIDTH, "max_tokens": MAX_TOKENS, "min_tokens": MIN_TOKENS, "early_stopping": EARLY_STOPPING}
_NAMES |= {"length_penalty": LENGTH_PENALTY, "forced_end": FORCED_END, "logits": LOGITS}
_NAMES |= {"double": str(TensorProto.DOUBLE), "whole": str(TensorProto.INT64)}


def start(signature: Signature) -> onnx.GraphProto:
    """Before the loop: its outputs are the first tokens, sums, texts and scores that the loop carries."""
    return onnx.parser.parse_graph(_START.format(**_NAMES) % _fields(signature))


def choose(signature: Signature) -> onnx.GraphProto:
    """In the loop: logits and what the loop carries -> whether to go on, what it carries next, and whose states."""
    return onnx.parser.parse_graph(_CHOOSE.format(**_NAMES) % _fields(signature))


def read() -> onnx.GraphProto:
    """The same outputs, where a start token is next."""
    return onnx.parser.parse_graph(_READ)


def _fields(signature: Signature) -> dict[str, object]:
    assert signature.source is not None
    tokens, ends, banned = signature.source.start_tokens, signature.eos_tokens, signature.source.banned_tokens
    masks = _mask("banned", banned, "free", "no_banned") + _mask("ends", ends, "no_banned", "no_end")
    if ends:
        masks += """
        nobody = Expand(impossible_logit, vocabulary_shape)
        an_end = Slice(ends, first_axis, second_axis)
        as_it_is = Expand(zero, second_axis)
        end_alone = ScatterElements <axis = 0> (nobody, an_end, as_it_is)
        forced = Identity(asked_to_force)
        """
    else:
        masks += "end_alone = Identity(no_banned)\nforced = Less(one, none)\n"  # nothing to force
    fields: dict[str, object] = {"vocabulary": signature.vocab_size, "factor": max(2, 1 + len(ends))}
    fields |= {"starts": len(tokens), "start_tokens": _listed(tokens), "first": tokens[0], "before": len(tokens) - 1}
    fields |= {"ends": _constants("ends", ends), "banned": _constants("banned", banned), "masks": masks}
    fields["ended"] = (_ENDED if ends else "ended = Less(chosen, none)").format(**_NAMES)
    return {**fields, "constants": _CONSTANTS % fields}


def _mask(name: str, tokens: tuple[int, ...], of: str, out: str) -> str:
    """A mask (vocabulary) that also leaves out these tokens."""
    return _MASKS.format(name=name, of=of, out=out) if tokens else f"{out} = Identity({of})\n"


def _constants(name: str, tokens: tuple[int, ...]) -> str:
    if not tokens:
        return ""
    count = len(tokens)
    return f", int64[{count}] {name} = {{{_listed(tokens)}}}, int64[1] {name}_shape = {{{count}}}"


def _listed(tokens: tuple[int, ...]) -> str:
    return ", ".join(map(str, tokens))
