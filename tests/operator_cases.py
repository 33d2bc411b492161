"""A call and inputs for every operator: one token per sequence, and many."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from operators import (
    ADD,
    CACHED,
    CLAMP,
    EXPERTS,
    IDS,
    PAST,
    PLACES,
    QKV,
    RATE,
    ROWS,
    RULES,
    TURNING,
    WITH_Z,
    Build,
    X,
    Y,
    Z,
    by_channel,
    erased,
    experts,
    floats,
    heads,
    with_past,
)
from small import WIDTH, B, G, H, K, T, V

# "operator" or "operator: variant" -> the call and its inputs, one token per sequence
CASES: dict[str, tuple[Build, list[Tensor]]] = {
    "parameter": (lambda ops, w, x: ops.add(x[0], ops.parameter(w.shift)), [X]),
    "constant": (lambda ops, w, x: ops.add(x[0], ops.constant(np.arange(4.0), "float32", "row")), [Y]),
    "constant: whole": (lambda ops, w, x: ops.mul(x[0], ops.constant([3], "int32", "three")), [PLACES]),
    "embedding": (lambda ops, w, x: ops.embedding(x[0], w.table), [IDS]),
    "embedding: of matrices": (lambda ops, w, x: ops.embedding(x[0], w.pairs), [torch.tensor([[3, 1, 4], [0, 0, 2]])]),
    "embedding: of an operand": (lambda ops, w, x: ops.embedding(x[0], x[1]), [IDS, floats(9, 3)]),
    "linear": (lambda ops, w, x: ops.linear(x[0], w.weight, w.bias), [X]),
    "linear: no bias": (lambda ops, w, x: ops.linear(x[0], w.weight, None), [X]),
    "linears": (lambda ops, w, x: ops.linears(x[0], [[w.layers["a"], w.layers["b"]], [w.layers["c"]]]), [X]),
    "linears: no bias": (lambda ops, w, x: ops.linears(x[0], [[w.bare["a"]], [w.bare["b"]]]), [X]),
    "linears: one group": (lambda ops, w, x: ops.linears(x[0], [[w.bare["a"], w.bare["b"]]]), [X]),
    "layer_norm": (lambda ops, w, x: ops.layer_norm(x[0], w.scale, w.shift, 0.1), [X]),
    "layer_norm: of a sum": (lambda ops, w, x: ops.layer_norm(ops.add(*x), w.scale, w.shift, 0.1), [X, X.flip(1)]),
    "rms_norm": (lambda ops, w, x: ops.rms_norm(x[0], w.scale, 0.1), [X]),
    "rms_norm: of a sum": (lambda ops, w, x: ops.rms_norm(ops.add(*x), w.scale, 0.1), [X, X.flip(1)]),
    "rms_norm: no scale": (lambda ops, w, x: ops.rms_norm(x[0], None, 0.1), [Y]),
    "add": (lambda ops, w, x: ops.add(*x), [Y, floats(B, 1, 5, 1, seed=2)]),
    "add: a number": (lambda ops, w, x: ops.add(x[0], 1), [PLACES]),
    "sub": (lambda ops, w, x: ops.sub(*x), [Y, floats(B, 3, 5, 4, seed=2)]),
    "sub: from a number": (lambda ops, w, x: ops.sub(1.0, x[0]), [Y]),
    "mul": (lambda ops, w, x: ops.mul(*x), [Y, floats(B, 3, 1, 4, seed=2)]),
    "mul: a number": (lambda ops, w, x: ops.mul(x[0], 0.3), [Y]),
    "div": (lambda ops, w, x: ops.div(*x), [Y, 1 + floats(B, 3, 5, 1, seed=2).abs()]),
    "matmul": (lambda ops, w, x: ops.matmul(*x), [Y, Z]),
    "matmul: broadcast": (lambda ops, w, x: ops.matmul(*x), [Y, floats(B, 1, 4, 7)]),
    "maximum": (lambda ops, w, x: ops.maximum(x[0], 0.25), [Y]),
    "minimum": (lambda ops, w, x: ops.minimum(x[0], 0.25), [Y]),
    "minimum: whole": (lambda ops, w, x: ops.minimum(x[0], 39), [PLACES]),
    "relu": (lambda ops, w, x: ops.relu(x[0]), [Y]),
    "exp": (lambda ops, w, x: ops.exp(x[0]), [Y]),
    "exp: of a log_sigmoid": (lambda ops, w, x: ops.exp(ops.log_sigmoid(x[0])), [Y]),
    "log": (lambda ops, w, x: ops.log(x[0]), [Y.abs()]),
    "sigmoid": (lambda ops, w, x: ops.sigmoid(x[0]), [Y]),
    "log_sigmoid": (lambda ops, w, x: ops.log_sigmoid(x[0]), [torch.tensor([[-100.0, -9, -1], [0, 9, 100]])]),
    "elu": (lambda ops, w, x: ops.elu(x[0]), [Y]),
    "silu": (lambda ops, w, x: ops.silu(x[0]), [Y]),
    "soft_cap": (lambda ops, w, x: ops.soft_cap(x[0], 0.7), [Y]),
    "soft_cap:none": (lambda ops, w, x: ops.mul(ops.soft_cap(x[0], None), 2.0), [Y]),
    "tanh": (lambda ops, w, x: ops.tanh(x[0]), [Y]),
    "gelu": (lambda ops, w, x: ops.gelu(x[0], tanh=False), [Y]),
    "gelu: tanh": (lambda ops, w, x: ops.gelu(x[0], tanh=True), [Y]),
    "softplus": (lambda ops, w, x: ops.softplus(x[0]), [torch.tensor([[-30.0, -9, -1], [0, 9, 100]])]),
    "expm1": (lambda ops, w, x: ops.div(ops.expm1(x[0]), x[0]), [-torch.logspace(-30, 4, 50).view(B, 25)]),
    "sqrt": (lambda ops, w, x: ops.sqrt(x[0]), [Y.abs()]),
    "sin": (lambda ops, w, x: ops.sin(x[0]), [Y]),
    "cos": (lambda ops, w, x: ops.cos(x[0]), [Y]),
    "softmax": (lambda ops, w, x: ops.softmax(x[0]), [Y]),
    "mean": (lambda ops, w, x: ops.mean(x[0]), [Y]),
    "reduce_max": (lambda ops, w, x: ops.reduce_max(x[0]), [Y]),
    "top_k": (lambda ops, w, x: ops.top_k(x[0], 2), [Y]),
    "gather": (lambda ops, w, x: ops.gather(*x), [Y, torch.randint(0, 4, (B, 3, 5, 7))]),
    "to_int8": (lambda ops, w, x: ops.to_int8(x[0]), [40 * Y.clamp(-3, 3)]),
    "straight_through": (lambda ops, w, x: ops.straight_through(ops.relu(x[0]), x[0]), [Y]),
    "cast: to int64": (lambda ops, w, x: ops.cast(x[0], "int64"), [PLACES]),
    "cast: to int32": (lambda ops, w, x: ops.cast(x[0], "int32"), [IDS]),
    "cast: to float32": (lambda ops, w, x: ops.cast(x[0], "float32"), [PLACES]),
    "reshape": (lambda ops, w, x: ops.reshape(x[0], (-1, 5, 12)), [Y]),
    "reshape: kept and left": (lambda ops, w, x: ops.reshape(x[0], (0, 0, -1, 2, 1)), [Y]),
    "unsqueeze": (lambda ops, w, x: ops.unsqueeze(x[0], 1), [Y]),
    "unsqueeze: last": (lambda ops, w, x: ops.unsqueeze(x[0], -1), [PLACES]),
    "squeeze": (lambda ops, w, x: ops.squeeze(x[0], 1), [floats(B, 1, 4)]),
    "squeeze: last": (lambda ops, w, x: ops.squeeze(x[0], -1), [floats(B, 4, 1)]),
    "transpose": (lambda ops, w, x: ops.transpose(x[0], (0, 3, 1, 2)), [Y]),
    "transpose: of an axis of 1": (lambda ops, w, x: ops.transpose(x[0], (0, 2, 1, 3)), [floats(B, 3, 1, 4)]),
    "split": (lambda ops, w, x: ops.split(x[0], [1, 2, 7]), [X]),
    "split: equal": (lambda ops, w, x: ops.split(x[0], [5, 5]), [X]),
    "split: an axis": (lambda ops, w, x: ops.split(x[0], [3, 2], axis=2), [Y]),
    "split: one part": (lambda ops, w, x: ops.split(x[0], [4]), [Y]),
    "concat": (lambda ops, w, x: ops.concat(x), [Y, floats(B, 3, 5, 2)]),
    "concat: an axis": (lambda ops, w, x: ops.concat(x, axis=1), [Y, floats(B, 2, 5, 4)]),
    "repeat_heads": (lambda ops, w, x: ops.repeat_heads(x[0], H), [floats(B, G, 1, K)]),
    "repeat_heads: of one": (lambda ops, w, x: ops.repeat_heads(x[0], H), [floats(B, 1, 1, K)]),
    "repeat_heads: none": (lambda ops, w, x: ops.mul(ops.repeat_heads(x[0], G), 2.0), [floats(B, G, 1, K)]),
    "slice_from": (lambda ops, w, x: ops.slice_from(x[0], 2), [Y]),
    "slice_from: all": (lambda ops, w, x: ops.slice_from(x[0], 0), [Y]),
    "slice_last": (lambda ops, w, x: ops.slice_last(x[0], 2), [Y]),
    "drop_last": (lambda ops, w, x: ops.drop_last(x[0], 2), [Y]),
    "pad_front": (lambda ops, w, x: ops.pad_front(x[0], 3), [Y]),
    "digits": (lambda ops, w, x: ops.digits(x[0], 256, 4), [torch.tensor([2**31 - 1, 70_000], dtype=torch.int32)]),
    "flatten_tokens": (lambda ops, w, x: ops.flatten_tokens(x[0]), [X]),
    "last_token": (lambda ops, w, x: ops.last_token(x[0]), [X]),
    "split_heads": (lambda ops, w, x: ops.split_heads(x[0], G), [floats(B, G * V)]),
    "merge_heads": (lambda ops, w, x: ops.merge_heads(x[0]), [floats(B, G, 1, V)]),
    "advance": (lambda ops, w, x: ops.advance(x[0]), [PLACES]),
    "causal_attention": (lambda ops, w, x: ops.causal_attention(*x, 0.3), CACHED),
    "causal_attention: softcap": (lambda ops, w, x: ops.causal_attention(*x, 0.7, 1.5), CACHED),
    "pack_for_fused": (lambda ops, w, x: ops.pack_for_fused(x[0]), [X]),
    "damp": (lambda ops, w, x: ops.damp(x[0]), [Y]),
    "divide": (lambda ops, w, x: ops.divide(*x, CLAMP), [Y, floats(B, 3, 5, 1, seed=2)]),
    "divide: eps added": (lambda ops, w, x: ops.divide(*x, ADD), [Y, floats(B, 3, 5, 1, seed=2).abs()]),
    "guarded": (lambda ops, w, x: ops.guarded(x[0], "clamp", 0.25), [Y]),
    "guarded: added": (lambda ops, w, x: ops.guarded(x[0], "add", 0.25), [Y]),
    "accumulate": (lambda ops, w, x: ops.accumulate(*x), [Y, floats(B, 3, 5, 4, seed=2)]),
    "each": (
        lambda ops, w, x: ops.each(ops.relu, *ops.split(ops.split_heads(x[0], H + G), [H, G], axis=1)),
        [floats(B, (H + G) * V)],
    ),
    "rotate": (lambda ops, w, x: ops.rotate(*x), [floats(B, H, 1, 6), floats(B, 1, 1, 3), floats(B, 1, 1, 3)]),
    "rotate: a part of a head": (
        lambda ops, w, x: ops.rotate(*x),
        [floats(B, H, 1, 7), floats(B, 1, 1, 2), floats(B, 1, 1, 2)],
    ),
    "rotate: by constants": (lambda ops, w, x: ops.rotate(*x), [floats(B, H, 5, 6), floats(5, 3), floats(5, 3)]),
    "group_queries": (lambda ops, w, x: ops.group_queries(x[0], G), [floats(B, H, 1, K)]),
    "group_queries: each its own": (lambda ops, w, x: ops.group_queries(x[0], H), [floats(B, H, 1, K)]),
    "ungroup_queries": (lambda ops, w, x: ops.ungroup_queries(x[0], H), [floats(B, G, 2, K)]),
    **{
        f"linear_attention: {rule}": (
            lambda ops, w, x, given=given: ops.linear_attention(*x[:4], None, *(i and x[i] for i in given)),
            heads(1),
        )
        for rule, given in RULES.items()
    },
    "linear_attention: heads share keys": (
        lambda ops, w, x: ops.linear_attention(*x[:4], None),
        by_channel(1, G),
    ),
    "linear_attention: a gate a channel": (
        lambda ops, w, x: ops.linear_attention(*x[:4], None, x[4]),
        by_channel(1, G),
    ),
    "linear_attention: a gate a channel, with z": (
        lambda ops, w, x: ops.linear_attention(*x[:4], x[7], x[4]),
        [*by_channel(1, G), floats(B, H, K, seed=9)],
    ),
    "linear_attention: the same gates a channel for all": (
        lambda ops, w, x: ops.linear_attention(*x[:4], None, x[7]),
        [*by_channel(1, G), -floats(1, H, 1, K, seed=9).exp()],
    ),
    "linear_attention: a gate a channel, delta": (
        lambda ops, w, x: ops.linear_attention(*x[:4], None, x[4], x[7]),
        [*by_channel(1, G), RATE],
    ),
    "linear_attention: erase": (lambda ops, w, x: erased(ops, x), by_channel(1, H)),
    "linear_attention: erase, heads share keys": (lambda ops, w, x: erased(ops, x), by_channel(1, G)),
    "linear_recurrence": (
        lambda ops, w, x: ops.linear_recurrence(*x),
        [X, -floats(B, WIDTH, seed=1).exp(), floats(B, WIDTH, seed=2)],
    ),
    "linear_recurrence: one gate for all": (
        lambda ops, w, x: ops.linear_recurrence(*x),
        [X, -floats(1, WIDTH, seed=1).exp(), floats(B, WIDTH, seed=2)],
    ),
    "complex_recurrence": (lambda ops, w, x: ops.complex_recurrence(*x), [X, *TURNING]),
    "complex_product": (lambda ops, w, x: ops.complex_product(*x), [X, TURNING[1]]),
    "linear_attention: with z": (lambda ops, w, x: ops.linear_attention(*x), heads(1)[WITH_Z]),
    "linear_attention: gated, with z": (lambda ops, w, x: ops.linear_attention(*x), heads(1)[:6]),
    "normalizer": (lambda ops, w, x: ops.normalizer(x[0], x[1], x[4]), heads(1)),
    "normalizer: heads share keys": (
        lambda ops, w, x: ops.normalizer(*x),
        [*by_channel(1, G)[:2], floats(B, H, K), by_channel(1, G)[4]],
    ),
    "normalizer: gated": (lambda ops, w, x: ops.normalizer(x[0], x[1], x[4], x[5]), heads(1)),
    **{
        f"experts: {name}": (lambda ops, w, x, how=how: experts(ops, w, x, *how), [X, floats(B, 5, seed=3)])
        for name, how in EXPERTS.items()
    },
    "padding_mask": (lambda ops, w, x: ops.padding_mask(*x), [heads(1)[4][..., None], torch.tensor([1, K])]),
    "cache_places": (lambda ops, w, x: ops.sub(*ops.cache_places(*x)), [floats(B, G, 5, K), floats(B, G, 1, K)]),
    "remainder": (lambda ops, w, x: ops.remainder(x[0], 7), [PLACES]),
}

# the same with T tokens per sequence
MANY: dict[str, tuple[Build, list[Tensor]]] = {
    "flatten_tokens": (lambda ops, w, x: ops.flatten_tokens(x[0]), [floats(B, T, WIDTH)]),
    "last_token": (lambda ops, w, x: ops.last_token(x[0]), [ROWS]),
    "split_heads": (lambda ops, w, x: ops.split_heads(x[0], G), [floats(B * T, G * V)]),
    "split_heads: one of one number": (lambda ops, w, x: ops.split_heads(x[0], 1), [floats(B * T, 1)]),
    "merge_heads": (lambda ops, w, x: ops.merge_heads(x[0]), [floats(B, G, T, V)]),
    "merge_heads: of split ones": (lambda ops, w, x: ops.merge_heads(ops.split_heads(x[0], 5)), [ROWS]),
    "advance": (lambda ops, w, x: ops.advance(x[0]), [PLACES]),
    **{
        f"blocks: of {size}": (lambda ops, w, x, size=size: ops.blocks(x[0], size), [floats(B, G, T, V)])
        for size in (4, T, 10)
    },
    "unblock": (lambda ops, w, x: ops.unblock(ops.mul(ops.blocks(x[0], 4), 2.0)), [floats(B, G, T, V)]),
    "causal_attention": (lambda ops, w, x: ops.causal_attention(*x, 0.3), QKV),
    "causal_attention: softcap": (lambda ops, w, x: ops.causal_attention(*x, 0.7, 1.5), QKV),
    "causal_attention: past": (lambda ops, w, x: ops.causal_attention(*with_past(ops, x), 0.3), [*QKV, *PAST]),
    "causal_attention: past and softcap": (
        lambda ops, w, x: ops.causal_attention(*with_past(ops, x), 0.7, 1.5),
        [*QKV, *PAST],
    ),
    "causal_attention: each head its own": (
        lambda ops, w, x: ops.causal_attention(*with_past(ops, x), 0.3),
        [QKV[0][:, :G], *QKV[1:], *PAST],
    ),
    "causal_attention: of two layers": (
        lambda ops, w, x: ops.causal_attention(
            ops.causal_attention(*with_past(ops, x), 0.3), *with_past(ops, x)[1:], 1.0
        ),
        [QKV[0][..., :4], QKV[1][..., :4], QKV[2], PAST[0][..., :4], PAST[1]],
    ),
    "padding_mask": (lambda ops, w, x: ops.padding_mask(*x), [QKV[1], torch.tensor([2, T], dtype=torch.int32)]),
    "padding_mask: int64": (lambda ops, w, x: ops.padding_mask(*x), [QKV[1], torch.tensor([1, 3])]),
    "causal_mask": (lambda ops, w, x: ops.causal_mask(*x), [PAST[0], QKV[1]]),
    "cache_places": (lambda ops, w, x: ops.sub(*ops.cache_places(with_past(ops, x)[1], x[1])), [*QKV, *PAST]),
    "lstm": (
        lambda ops, w, x: ops.lstm(*x, list(w.lstm.parameters())),
        [ROWS, floats(B, WIDTH, seed=1), floats(B, WIDTH, seed=2)],
    ),
    "gru": (lambda ops, w, x: ops.gru(*x, list(w.gru.parameters())), [ROWS, floats(B, WIDTH, seed=1)]),
    **{
        f"{name}: {rule}": (
            lambda ops, w, x, name=name, given=given: getattr(ops, name)(
                *x[:4], None, *[*(i and x[i] for i in given), None, None][:2]
            ),
            heads(T),
        )
        for name in ("linear_attention_chunks", "linear_attention")
        for rule, given in RULES.items()
    },
    "repeat_heads": (lambda ops, w, x: ops.repeat_heads(x[0], H), [QKV[1]]),
    "linear_attention: heads share keys": (
        lambda ops, w, x: ops.linear_attention(*x[:4], None),
        by_channel(T, G),
    ),
    "linear_attention: a gate a channel, with z": (
        lambda ops, w, x: ops.linear_attention(*x[:4], x[7], x[4]),
        [*by_channel(T, G), floats(B, H, K, seed=9)],
    ),
    "linear_attention: the same gates a channel for all": (
        lambda ops, w, x: ops.linear_attention(*x[:4], None, x[7]),
        [*by_channel(T, G), -floats(1, H, 1, K, seed=9).exp()],
    ),
    "linear_attention: erase, heads share keys": (lambda ops, w, x: erased(ops, x), by_channel(T, G)),
    "linear_attention_chunks: erase": (lambda ops, w, x: erased(ops, x, many=True), by_channel(T, H)),
    **{
        f"{name}: {how}": (
            lambda ops, w, x, name=name: getattr(ops, name)(*x),
            [ROWS, -floats(B * T, WIDTH, seed=1).exp(), floats(B, WIDTH, seed=2)],
        )
        for name, how in (("linear_recurrence", "rows"), ("linear_recurrence_many", "rows"))
    },
    "linear_recurrence: one gate for all": (
        lambda ops, w, x: ops.linear_recurrence(*x),
        [ROWS, -floats(1, WIDTH, seed=1).exp(), floats(B, WIDTH, seed=2)],
    ),
    **{
        name: (lambda ops, w, x, name=name: getattr(ops, name)(*x), [ROWS, *TURNING])
        for name in ("complex_recurrence", "complex_recurrence_many")
    },
    "normalizer: heads share keys": (
        lambda ops, w, x: ops.normalizer(*x),
        [*by_channel(T, G)[:2], floats(B, H, K), by_channel(T, G)[4]],
    ),
    "linear_attention_chunks: with z": (
        lambda ops, w, x: ops.linear_attention_chunks(*x, None, None),
        heads(T)[WITH_Z],
    ),
    "linear_attention_chunks: gated, with z": (lambda ops, w, x: ops.linear_attention_chunks(*x, None), heads(T)[:6]),
    "linear_attention_chunks: one gate for all": (
        lambda ops, w, x: ops.linear_attention_chunks(*x, None),
        [*heads(T)[WITH_Z], -floats(1, G, 1, 1).abs()],
    ),
    "normalizer": (lambda ops, w, x: ops.normalizer(x[0], x[1], x[4]), heads(T)),
    "normalizer: gated": (lambda ops, w, x: ops.normalizer(x[0], x[1], x[4], x[5]), heads(T)),
    "slice_from": (lambda ops, w, x: ops.slice_from(x[0], 2), [QKV[2]]),
    "slice_from: chunks": (lambda ops, w, x: ops.slice_from(ops.blocks(x[0], 4), 1), [QKV[2]]),
    "slice_last": (lambda ops, w, x: ops.slice_last(x[0], 3), [QKV[2]]),
    # of all tokens; tests/graph/test_draft_check.py has the first few
    "of_kept": (lambda ops, w, x: ops.mul(ops.of_kept(x[0]), 2.0), [QKV[2]]),
    "kept_cache": (lambda ops, w, x: ops.mul(ops.kept_cache(x[0]), 2.0), [QKV[2]]),
    "kept_buffer": (lambda ops, w, x: ops.kept_buffer(ops.concat(x, axis=2), 4), [Y[:, :, :4], QKV[2]]),
    "drop_last": (lambda ops, w, x: ops.drop_last(x[0], 3), [QKV[2]]),
    "drop_last: what was joined": (lambda ops, w, x: ops.drop_last(ops.concat(x, axis=2), 4), [Y[:, :, :4], QKV[2]]),
    "pad_front": (lambda ops, w, x: ops.pad_front(x[0], 3), [QKV[2]]),
    "group_queries": (lambda ops, w, x: ops.group_queries(x[0], G), [QKV[0]]),
    "ungroup_queries": (lambda ops, w, x: ops.ungroup_queries(ops.group_queries(x[0], G), H), [QKV[0]]),
    **{
        f"experts: {name}": (lambda ops, w, x, how=how: experts(ops, w, x, *how), [ROWS, floats(B * T, 5, seed=3)])
        for name, how in EXPERTS.items()
    },
    "linear": (lambda ops, w, x: ops.linear(x[0], w.weight, w.bias), [ROWS]),
    "pack_for_fused": (lambda ops, w, x: ops.pack_for_fused(x[0]), [ROWS]),
}
