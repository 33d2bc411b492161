"""Encoders and the layers that read their output, against their definitions; padding has no effect."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import small
from reference import guarded
from small import CLAMP, SOFTMAX, TRANSLATORS, B, M, linear
from t2r_export.config.mixers import Guard, LinearConfig, MixerConfig
from t2r_export.config.parts import CrossConfig
from t2r_export.lab.config.merged import MergedConfig
from t2r_export.lab.merged import Merged
from t2r_export.model.mixers.base import Heads, HeadSizes
from t2r_export.model.mixers.bidirectional import LinearEncoder, SoftmaxEncoder
from t2r_export.model.parts.base import Site
from t2r_export.model.parts.cross import Cross
from t2r_export.model.step import Step
from t2r_export.model.torch_ops import TorchOps
from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError

GATED = linear(5, guard=CLAMP, update_rule="gated", gate="data")
H, G, D = 6, 3, 4
SIZES = HeadSizes(10, H, G, D, 1e-5, None, 0.7)
names = pytest.mark.parametrize("name", TRANSLATORS)


def heads() -> dict[str, Any]:
    """GPT2's heads, with another scale."""
    assert small.GPT2.attention is not None
    return {**dataclasses.asdict(small.GPT2.attention), "scale": SIZES.scale}


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


def source_step(lengths: Tensor, length: int = M) -> Step[Tensor]:
    return Step(TorchOps(length, random(1)), None, (), lengths=lengths)


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention of one query (d) to keys (n, d) and values (n, V)."""
    return (SIZES.scale * k @ q).softmax(0) @ v


def ratio(q: Tensor, k: Tensor, v: Tensor, guard: Guard) -> Tensor:
    """Linear attention of φ(q) (K) to φ(k) (n, K) and values (n, V), weight by weight."""
    weights = k @ q
    return weights @ v / guarded(float(weights.sum()), guard)


@torch.no_grad()
@pytest.mark.parametrize("config", [SOFTMAX, linear(5, guard=CLAMP), linear(5)])
def test_encoders_are_their_definition(config: MixerConfig) -> None:
    """Head by head and token by token, over each source's own tokens."""
    made = (SoftmaxEncoder if config is SOFTMAX else LinearEncoder)(SIZES, config).double()
    lengths = torch.tensor([M, 4])
    q, k, v = random(B, H, M, D), random(B, G, M, D, seed=1), random(B, G, M, D, seed=2)
    o, after = made(Heads(q, k, v, q, q), {}, source_step(lengths))
    assert o.shape == (B, H, M, D) and after == {}
    phi_q, phi_k = (q, k) if config is SOFTMAX else made.over.maps.features(q, k, TorchOps(M))
    for b, h, m in np.ndindex(B, H, M):
        seen, g = slice(0, int(lengths[b])), h // (H // G)
        keys, values = phi_k[b, g, seen], v[b, g, seen]
        one = attended(q[b, h, m], keys, values) if config is SOFTMAX else None
        expected = ratio(phi_q[b, h, m], keys, values, config.guard) if one is None else one
        torch.testing.assert_close(o[b, h, m], expected)


@torch.no_grad()
@pytest.mark.parametrize("tokens", [None, 3])
@pytest.mark.parametrize("config", [SOFTMAX, linear(5, guard=CLAMP), linear(6, "hedgehog", query_scale=0.5)])
def test_cross_layers_are_their_definition(config: MixerConfig, tokens: int | None) -> None:
    width, T = 10, tokens or 1
    made = Cross(Site(width), CrossConfig(inside=config, **heads())).double()
    lengths = torch.tensor([M, 4])
    source, x = random(B * M, width), random(B * T, width, seed=1)
    state = made.read(source, source_step(lengths))
    assert {spec.name: spec.dims(B, 0, M) for spec in made.state_spec()} == {
        n: tuple(s.shape) for n, s in state.items()
    }
    y, after = made(x, state, Step(TorchOps(tokens, x), None, (), lengths=lengths))
    assert after == {}
    q, k, v = (
        layer(rows).view(B, n, heads, D).transpose(1, 2)
        for layer, rows, n, heads in ((made.q, x, T, H), (made.k, source, M, G), (made.v, source, M, G))
    )
    if config is not SOFTMAX:
        phi_q, phi_k = made.inner.over.maps.features(q * config.query_scale, k, TorchOps(M))
    o = torch.empty(B, H, T, D).double()
    for b, h, t in np.ndindex(B, H, T):
        seen, g = slice(0, int(lengths[b])), h // (H // G)
        if config is SOFTMAX:
            o[b, h, t] = attended(q[b, h, t], k[b, g, seen], v[b, g, seen])
        else:
            o[b, h, t] = ratio(phi_q[b, h, t], phi_k[b, g, seen], v[b, g, seen], config.guard)
    torch.testing.assert_close(y, made.o(o.transpose(1, 2).reshape(B * T, H * D)))


@torch.no_grad()
@pytest.mark.parametrize("tokens", [None, 5])
@pytest.mark.parametrize("config", [SOFTMAX, linear(5, guard=CLAMP), linear(5, normalizer="none"), GATED])
def test_merged_layers_are_their_definition(config: MixerConfig, tokens: int | None) -> None:
    """One sum per query over the source and the prefix; a gate decays the prefix, not the source."""
    width, T, lengths = 10, tokens or 1, torch.tensor([M, 4])
    made = Merged(Site(width), MergedConfig(inside=config, **heads())).double()
    source, x = random(B * M, width), random(B * T, width, seed=1)
    read = made.read(source, source_step(lengths))
    fresh = {s.name: torch.zeros(s.dims(B), dtype=torch.float64) for s in made.state_spec() if not s.constant}
    y, after = made(x, fresh | read, Step(TorchOps(tokens, x), None, (), lengths=lengths))
    assert after.keys() == fresh.keys()
    q, k, v, source_k, source_v = (
        layer(rows).view(B, n, heads, D).transpose(1, 2)
        for layer, rows, n, heads in (
            (made.q, x, T, H),
            *((layer, x, T, G) for layer in (made.k, made.v)),
            *((layer, source, M, G) for layer in (made.source_k, made.source_v)),
        )
    )
    gate = torch.ones(B, T, G).double()
    if isinstance(config, LinearConfig):
        q, k = made.inner.maps.features(q, k, TorchOps(T))  # type: ignore[union-attr, operator]
        source_k = made.inner.maps.of_keys.of(source_k, False, TorchOps(M))  # type: ignore[union-attr, operator]
        if config is GATED:
            gate = made.inner.gates.logits(x, TorchOps(T)).sigmoid().view(B, T, G)  # type: ignore[union-attr, operator]
    o = torch.empty(B, H, T, D).double()
    for b, h, t in np.ndindex(B, H, T):
        g, seen = h // (H // G), int(lengths[b])
        keys, values = (torch.cat([x[b, g, :seen], own[b, g, : t + 1]]) for x, own in ((source_k, k), (source_v, v)))
        if config is SOFTMAX:
            o[b, h, t] = attended(q[b, h, t], keys, values)
            continue
        left = [gate[b, s + 1 : t + 1, g].prod() for s in range(t + 1)]
        weights = (keys @ q[b, h, t]) * torch.cat([torch.ones(seen).double(), torch.stack(left)])
        o[b, h, t] = weights @ values
        if config.normalizer == "z":  # type: ignore[union-attr]
            o[b, h, t] /= guarded(float(weights.sum()), config.guard)  # type: ignore[union-attr]
    torch.testing.assert_close(y, made.o(o.transpose(1, 2).reshape(B * T, H * D)))


def test_merged_step_has_no_source_inputs() -> None:
    """The source's sums are the initial S and z; with a gate they remain separate inputs."""
    merged, gated = (small.model(f"translator_{name}") for name in ("merged", "merged_gated"))
    assert not [s.name for s in merged.state_spec() if s.constant]
    assert merged.start_states == ["S.0", "z.0", "S.1", "z.1"]
    assert [s.name for s in gated.state_spec() if s.constant] == [
        "source_S.0",
        "source_z.0",
        "source_S.1",
        "source_z.1",
    ]
    assert gated.start_states == []


@torch.no_grad()
@names
@settings(max_examples=10)
@given(data=st.data())
def test_what_is_behind_a_source_changes_nothing(name: str, data: st.DataObject) -> None:
    made = small.model(TRANSLATORS[name]).double()
    lengths = torch.tensor(data.draw(st.lists(st.integers(1, M), min_size=B, max_size=B)))
    source, other = (small.sources(seed=seed)[0] for seed in (0, 7))
    there = torch.arange(M) < lengths[:, None]
    ids = small.ids()
    logits, _ = made.prefill(ids, made.start(source, lengths))
    changed, _ = made.prefill(ids, made.start(torch.where(there, source, other), lengths))
    torch.testing.assert_close(changed, logits, rtol=0, atol=1e-12)
    for row, length in enumerate(lengths.tolist()):
        alone, _ = made.prefill(ids[row : row + 1], made.start(source[row : row + 1, :length], lengths[row : row + 1]))
        torch.testing.assert_close(alone[0], logits[row], rtol=1e-9, atol=1e-9)


@torch.no_grad()
@names
def test_every_token_of_a_source_counts(name: str) -> None:
    made = small.model(TRANSLATORS[name]).double()
    source, lengths = small.sources()
    logits, _ = made.prefill(small.ids(), made.start(source, lengths))
    for row, place in ((0, 0), (0, M - 1), (1, int(lengths[1]) - 1)):
        other = source.clone()
        other[row, place] = (other[row, place] + 1) % small.SOURCE_VOCABULARY
        changed, _ = made.prefill(small.ids(), made.start(other, lengths))
        assert (changed - logits)[row].abs().max() > 1e-4
        assert torch.equal(changed[1 - row], logits[1 - row])


@names
def test_states_of_a_source_are_those_of_the_spec(name: str) -> None:
    made = small.model(TRANSLATORS[name])
    states = made.start(*small.sources())
    specs = made.state_spec()
    assert {s.name: (s.dims(B, 0, M), f"torch.{s.dtype}") for s in specs} == {
        name: (tuple(value.shape), str(value.dtype)) for name, value in states.items()
    }
    assert [s.constant for s in specs] == sorted(s.constant for s in specs), "what a step changes comes first"
    with pytest.raises(UserError, match="a source for a translator"):
        made.init_state(2)


def test_tables_are_shared_or_not() -> None:
    own, shared = (Transformer(small.translator(source_vocabulary=size).build()) for size in (13, None))
    names = set(dict(own.named_parameters())) - set(dict(shared.named_parameters()))
    assert names == {"encoder.embedding.weight"}
