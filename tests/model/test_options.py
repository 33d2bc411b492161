"""Options of common models beside plain pre-norm blocks: each against its formula, and as a graph."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import small
from t2r_export.config.attention import HeadsConfig, PositionScale
from t2r_export.config.mixers import HybridConfig, LinearConfig, SoftmaxConfig, WindowConfig
from t2r_export.config.model import ModelConfig
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.uniform import UniformConfig
from t2r_export.fold import fold
from t2r_export.lab.config.shared import SharedConfig
from t2r_export.lab.config.span import SpanConfig
from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError

SOFTMAX = UniformConfig(
    vocab_size=17,
    width=12,
    layers=(SoftmaxConfig(), SoftmaxConfig()),
    attention=HeadsConfig(heads=6, kv_heads=3, head_size=8, positions=RotaryConfig(theta=50.0)),
    ffn_size=11,
    norm="rms",
    position="none",
    tied_head=False,
)
BLOCKS: dict[str, dict[str, Any]] = {
    "pre": {},
    "post": {"norm_position": "post", "norm": "layer"},
    "after": {"norm_position": "after"},
    "both": {"norm_position": "both"},
    "parallel": {"parallel": True},
    "scales": {"embedding_scale": 3.5, "logit_scale": 0.25},
    "soft cap": {"logit_softcap": 2.0, "logit_scale": 4.0},
    "head bias": {"head_bias": True, "tied_head": True},
}
ATTENTIONS: dict[str, dict[str, Any]] = {
    "q and k norms": {"qk_norm": True},
    "q and k norms over all heads": {"qk_norm": True, "qk_norm_wide": True},
    "q and k norms after the rotation": {"qk_norm": True, "qk_norm_after": True},
    "q scaled by its position": {"position_scale": PositionScale(factor=0.9, length=3)},
    "part of a head": {"positions": RotaryConfig(theta=50.0, size=4)},
    "scale": {"scale": 0.9},
    "soft cap": {"softcap": 1.5},
    "sink": {"sink": True},
    "gate": {"gate": True},
    "gate per head": {"gate": True, "gate_per_head": True},
    "all": {
        "qk_norm": True,
        "qk_norm_after": True,
        "scale": 0.2,
        "position_scale": PositionScale(factor=0.4, length=4),
        "softcap": 3.0,
        "positions": RotaryConfig(theta=9.0, size=2),
    },
}


def by_definition(model: Transformer, ids: Tensor) -> Tensor:
    """Logits (T, vocabulary) of one sequence of a softmax model, from its weights, in plain torch."""
    c = model.config
    x = model.embedding.weight[ids] * c.embedding_scale
    for n, block in enumerate(model.blocks):
        first, second = c.layers[n].parts
        mix = lambda y, n=n: attention(model, n, y)  # noqa: E731
        ffn = lambda y, block=block: feed_forward(block.parts[1], y)  # noqa: E731
        norm1, norm2 = (lambda y, m=m: normed(m, y) for m in block.norms)
        if second.beside:
            x = x + mix(norm1(x)) + ffn(norm2(x))
        elif first.norm_sum is not None:
            x = normed(block.norms_sum[0], x + mix(x))
            x = normed(block.norms_sum[1], x + ffn(x))
        elif second.norm_after is not None:
            x = x + normed(block.norms_after[0], mix(norm1(x)))
            x = x + normed(block.norms_after[1], ffn(norm2(x)))
        else:
            x = x + mix(norm1(x))
            x = x + ffn(norm2(x))
    logits = model.head(normed(model.norm, x)) * c.logit_scale
    return logits if c.logit_softcap is None else c.logit_softcap * torch.tanh(logits / c.logit_softcap)


def normed(norm: Any, x: Tensor) -> Tensor:
    if norm.weight is None:
        return x
    if norm.bias is not None:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps)
    return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight


def feed_forward(ffn: Any, x: Tensor) -> Tensor:
    y: Tensor = ffn.down(torch.nn.functional.gelu(ffn.up(x), approximate="tanh"))
    return y


def attention(model: Transformer, layer: int, x: Tensor) -> Tensor:
    """One head, one query, one key at a time."""
    made = model.blocks[layer].parts[0]
    a = made.config
    q, k, v = (part(x).unflatten(-1, (-1, a.head_size)) for part in (made.q, made.k, made.v))
    if a.qk_norm_wide:
        q, k = (normed(norm, y.flatten(1)).view_as(y) for norm, y in ((made.q_norm, q), (made.k_norm, k)))
    norms = (made.q_norm, made.k_norm) if a.qk_norm and not a.qk_norm_wide else ()
    if norms and not a.qk_norm_after:
        q, k = (normed(norm, y) for norm, y in zip(norms, (q, k), strict=True))
    q, k = rotated(a, q), rotated(a, k)
    if norms and a.qk_norm_after:
        q, k = (normed(norm, y) for norm, y in zip(norms, (q, k), strict=True))
    if a.position_scale is not None:
        lengths = torch.arange(len(x)).div(a.position_scale.length, rounding_mode="floor")
        q = q * (1 + a.position_scale.factor * torch.log1p(lengths))[:, None, None]
    scale = a.head_size**-0.5 if a.scale is None else a.scale
    out = torch.empty_like(q)
    for t in range(len(x)):
        for h in range(a.heads):
            g = h // (a.heads // a.kv_heads)
            scores = k[: t + 1, g] @ q[t, h] * scale
            if a.softcap is not None:
                scores = a.softcap * torch.tanh(scores / a.softcap)
            if a.sink:
                scores = torch.cat([scores, made.inner.sink[h : h + 1]])
            out[t, h] = scores.softmax(-1)[: t + 1] @ v[: t + 1, g]
    if a.gate:
        opening = made.gate(x).sigmoid()
        out = out * (opening[..., None] if a.gate_per_head else opening.view_as(out))
    y: Tensor = made.o(out.flatten(1))
    return y


def rotated(a: HeadsConfig, x: Tensor) -> Tensor:
    """x (T, heads, d): pair i of the first numbers as a complex number, turned by position · theta^(-2i/size)."""
    assert a.rotary is not None
    size = a.rotary.rotated(a.head_size)
    angle = torch.arange(len(x)).double()[:, None] * a.rotary.theta ** (-torch.arange(0, size, 2) / size)
    pairs = torch.complex(x[..., : size // 2], x[..., size // 2 : size]) * torch.polar(
        torch.ones_like(angle), angle
    ).unsqueeze(1)
    return torch.cat([pairs.real, pairs.imag, x[..., size:]], -1)


def options() -> list[Any]:
    blocks = [pytest.param(dataclasses.replace(SOFTMAX, **changes), id=name) for name, changes in BLOCKS.items()]
    return [*blocks, *(pytest.param(SOFTMAX.with_attention(**c), id=name) for name, c in ATTENTIONS.items())]


@torch.no_grad()
@pytest.mark.parametrize("config", options())
def test_the_model_is_the_formula(config: UniformConfig) -> None:
    model, ids = small.model(config).double(), small.ids(length=9)
    expected = torch.stack([by_definition(model, row) for row in ids])
    # float32 tables of rotations
    torch.testing.assert_close(model(ids), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("config", options())
def test_every_option_matters(config: UniformConfig) -> None:
    plain, ids = small.model(SOFTMAX), small.ids(length=9)
    changed = small.model(config)
    changed.load_state_dict(plain.state_dict(), strict=False)
    same = torch.allclose(changed(ids), plain(ids), rtol=1e-3, atol=1e-3)
    assert same == (config == SOFTMAX)


@pytest.mark.parametrize("config", options())
def test_the_graph_is_the_model(config: UniformConfig, tmp_path: Path) -> None:
    checkpoint, _ = small.graph(tmp_path / "g.onnx", config, prefill=True)
    assert small.proof(checkpoint, tmp_path / "g.onnx", steps=20).passed


@pytest.mark.parametrize("changes", ATTENTIONS.values(), ids=ATTENTIONS)
def test_windows_have_them_too(changes: dict[str, Any], tmp_path: Path) -> None:
    """A window that holds the whole text equals softmax attention with every option."""
    full = small.model(SOFTMAX.with_attention(**changes))
    window = Transformer(full.config.with_mixers(WindowConfig(9, 3), WindowConfig(9, 3))).eval()
    window.load_state_dict(full.state_dict())
    ids = small.ids(length=11)
    with torch.no_grad():
        torch.testing.assert_close(window(ids), full(ids), rtol=1e-4, atol=1e-4)


def test_qk_norm_not_foldable() -> None:
    config = dataclasses.replace(
        SOFTMAX.with_attention(qk_norm=True), layers=(LinearConfig(5, positions="drop"), SoftmaxConfig())
    )
    report = fold(small.model(config))[1]
    assert [layer.folded for layer in report] == [False, False]
    assert report[0].reason == "q and k are normalized between the projection and φ (qk_norm)"


@torch.no_grad()
def test_linear_layers_scale_q_where_they_rotate_it() -> None:
    ids = small.ids(length=9)
    for positions, scales in (("drop", False), ("after", False), ("keep", True)):
        plain = dataclasses.replace(SOFTMAX, layers=(LinearConfig(4, positions=positions),))
        one, other = (small.model(plain.with_attention(**c)) for c in ({}, ATTENTIONS["q scaled by its position"]))
        folded, report = fold(other)
        assert torch.equal(one(ids), other(ids)) != scales
        assert report[0].folded != scales
        torch.testing.assert_close(folded(ids), other(ids), rtol=1e-4, atol=1e-4)


def test_windows_of_keys_normalized_after_the_rotation(tmp_path: Path) -> None:
    changes = ATTENTIONS["q and k norms after the rotation"]
    config = dataclasses.replace(SOFTMAX.with_attention(**changes), layers=(WindowConfig(5, 2), WindowConfig(4, 0)))
    checkpoint, _ = small.graph(tmp_path / "g.onnx", config, prefill=True)
    assert small.proof(checkpoint, tmp_path / "g.onnx", steps=20).passed


def test_layers_may_have_attentions_of_their_own(tmp_path: Path) -> None:
    other = {"heads": 4, "kv_heads": 2, "head_size": 6, "positions": RotaryConfig(theta=7.0)}
    config = small.with_layers(SOFTMAX, SoftmaxConfig(), small.attention(SOFTMAX, SoftmaxConfig(), **other))
    model = small.model(config)
    assert len(model.ropes) == 2
    assert [s.shape[1] for s in model.state_spec() if s.name.startswith("k.")] == [3, 2]
    assert ModelConfig.from_dict(config.build().to_dict()) == config.build()
    checkpoint, _ = small.graph(tmp_path / "g.onnx", config)
    assert small.proof(checkpoint, tmp_path / "g.onnx", steps=20).passed


def test_one_rotation_for_all_layers_alike() -> None:
    assert len(small.model(SOFTMAX).ropes) == 1
    assert math.isclose(float(small.model(SOFTMAX).ropes[0].frequencies[0]), 1.0)


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda: SOFTMAX.with_attention(kv_heads=4),
            "expected kv_heads to divide heads=6; received 4; correct kv_heads",
        ),
        (
            lambda: SOFTMAX.with_attention(positions=RotaryConfig(size=10)),
            "expected a rotary size of at most 8; received 10; correct it",
        ),
        (
            lambda: SOFTMAX.with_attention(positions=RotaryConfig(size=3)),
            "expected an even rotary size of at most 16384 for rotary positions; received 3; correct rotary size",
        ),
        (
            lambda: SOFTMAX.with_attention(head_size=7),
            "expected an even head_size of at most 16384 for rotary positions; received 7; correct head_size",
        ),
        (
            lambda: SOFTMAX.with_attention(qk_norm_wide=True),
            "expected qk_norm with qk_norm_wide; received none; add qk_norm",
        ),
        *(
            (
                lambda mixer=mixer: dataclasses.replace(
                    SOFTMAX.with_attention(qk_norm=True, qk_norm_after=True), layers=(mixer, SoftmaxConfig())
                ),
                "expected softmax, window or linear layers where q and k are normalized after the rotation "
                f"(qk_norm_after); received a {mixer.kind} layer; choose one of those",
            )
            for mixer in (SpanConfig(6, ramp=2), HybridConfig(4, 5))
        ),
        *(
            (
                lambda mixer=mixer: dataclasses.replace(
                    SOFTMAX.with_attention(sink=True), layers=(SoftmaxConfig(), mixer)
                ),
                "expected softmax, window or linear layers without memory where attention has a sink; "
                f"received a {mixer.kind} layer; choose one of those",
            )
            for mixer in (SpanConfig(6, ramp=2), HybridConfig(4, 5), SharedConfig(), WindowConfig(4, memory=2))
        ),
        (
            lambda: SOFTMAX.with_attention(gate_per_head=True),
            "expected gate with gate_per_head; received none; add gate",
        ),
        (
            lambda: SOFTMAX.with_attention(position_scale=PositionScale(factor=0.1, length=0)),
            "expected length to be an integer from 1 to 2147483647; received 0; correct length",
        ),
        (
            lambda: SOFTMAX.with_attention(softcap=0),
            "expected softcap to be a finite positive number; received 0; correct softcap",
        ),
        (
            lambda: dataclasses.replace(SOFTMAX, attention=None),
            "expected an attention config for layer 0, a softmax layer; received none; add attention to the config",
        ),
        (
            lambda: dataclasses.replace(SOFTMAX, parallel=True, norm_position="post"),
            "expected parallel parts with residual sums and without norm_sum; received norm_sum; correct the config",
        ),
        (
            lambda: dataclasses.replace(SOFTMAX, norm_position="middle"),
            "expected norm_position to be one of pre, post, after, both; received 'middle'; choose one of those for "
            "norm_position",
        ),
    ],
)
def test_impossible_options(change: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        change()
    assert str(caught.value) == message
