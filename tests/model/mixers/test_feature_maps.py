"""Every feature map with every normalizer: against the NumPy definition, in all forms, and in the graph."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import reference
import small
from model.mixers.alone import Alone, by_steps, random_mixer
from small import GPT2, LLAMA, B, G, H, T, V
from t2r_export.config.mixers import Guard, LinearConfig
from t2r_export.config.mixers.linear import FEATURE_SIZES
from t2r_export.config.model import ModelConfig
from t2r_export.fold import fold
from t2r_export.lab.random_maps import Favor, RandomFourier
from t2r_export.model.initialize import initialize
from t2r_export.model.mixers.feature_maps import FEATURE_MAPS, feature_map
from t2r_export.model.mixers.linear import LinearMixer
from t2r_export.model.ops import State
from t2r_export.model.torch_ops import TorchOps
from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError

# differs from the head size where possible; favor's is more than one block of directions
SIZES = {"relu": 5, "relu2": 5, "elu": V, "rfa": 6, "favor": 7, "dpfp": 6 * V, "hedgehog": 6}
GUARD = Guard("clamp", 0.1)  # large: φ(q)·z of untrained random features is near or below zero
MODELS = {"learned": dataclasses.replace(GPT2, norm_eps=0.1), "rotary": dataclasses.replace(LLAMA, norm_eps=0.1)}
CASES = [(name, normalizer) for name in FEATURE_MAPS for normalizer in LinearConfig.NORMALIZERS]


def config(name: str, normalizer: str = "z", **options: object) -> LinearConfig:
    made = LinearConfig(SIZES[name], guard=GUARD, feature_map=name, normalizer=normalizer)
    return dataclasses.replace(made, **options)  # type: ignore[arg-type]


def mixer(layer: LinearConfig, model: ModelConfig = MODELS["learned"]) -> Alone:
    made = random_mixer(model, layer, scale=0.7)
    assert isinstance(made.inner, LinearMixer)
    return made


def inputs(layer: LinearConfig, length: int = T, seed: int = 1) -> tuple[Tensor, State[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(B, length, GPT2.width, generator=generator, dtype=torch.float64)
    K = layer.feature_size
    state = {"S": torch.randn(B, G, K, V, generator=generator, dtype=torch.float64)}
    if layer.normalizer == "z":
        state["z"] = 0.5 + torch.rand(B, G, K, generator=generator, dtype=torch.float64)
    return x, state


def numbers(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy()


def phi(made: Alone, x: np.ndarray, query: bool) -> np.ndarray:
    """φ of x (B, T, heads, d) by reference, one vector after another, with the mixer's weights."""
    name, K = made.config.feature_map, made.config.feature_size
    the_map = made.maps.of_queries if query else made.maps.of_keys
    out = np.empty((*x.shape[:3], K))
    for b, t, h in np.ndindex(*x.shape[:3]):
        head = h // (x.shape[2] // the_map.heads)  # of a joint map's key heads
        one = x[b, t, h]
        weight = numbers(the_map.weight)[head].T if hasattr(the_map, "weight") else None
        if name == "relu":
            out[b, t, h] = reference.relu(one, weight, numbers(the_map.bias)[head])
        elif name == "relu2":
            out[b, t, h] = reference.relu(one, weight, numbers(the_map.bias)[head]) ** 2
        elif name == "elu":
            out[b, t, h] = reference.elu(one)
        elif name == "rfa":
            scale = np.sqrt(V) * numbers(the_map.inverse_sigma)[head]  # the map's own W has d^-½ inside
            out[b, t, h] = reference.random_fourier(one, weight * scale)
        elif name == "favor":
            out[b, t, h] = reference.favor(one, weight * V**0.25)  # the map's own W has d^-¼ inside
            if query:
                out[b, t, h] /= out[b, t, h].sum()
            else:
                out[b, t, h] *= np.sqrt(K)
        elif name == "dpfp":
            out[b, t, h] = reference.dpfp(one, K // (2 * V))
        else:
            out[b, t, h] = reference.hedgehog(one, weight)
    return out


def by_definition(made: Alone, x: Tensor, state: State[Tensor]) -> list[np.ndarray]:
    """y and the states after, from the mixer's weights and reference alone."""

    def project(layer: torch.nn.Linear, values: np.ndarray, heads: int) -> np.ndarray:
        y = values @ numbers(layer.weight).T + numbers(layer.bias)
        return y.reshape(*values.shape[:2], heads, -1)

    a, layer = numbers(x), made.config
    q, k, v = project(made.q, a, H) * layer.query_scale, project(made.k, a, G), project(made.v, a, G)
    with_z = layer.normalizer == "z"
    z = numbers(state["z"]) if with_z else np.zeros((B, G, layer.feature_size))
    o, S, z = reference.recurrent(
        phi(made, q, True), phi(made, k, False), v, numbers(state["S"]), z, layer.guard if with_z else None
    )
    if layer.normalizer.endswith("norm"):
        shift = numbers(made.norm.bias) if made.norm.bias is not None else None
        for place in np.ndindex(*o.shape[:3]):
            o[place] = reference.head_norm(o[place], numbers(made.norm.weight), shift, 0.1)
    y = project(made.o, o.reshape(*a.shape[:2], -1), 1)[:, :, 0]
    return [y, S, z] if with_z else [y, S]


def assert_same(received: tuple[Tensor, State[Tensor]], expected: tuple[Tensor, State[Tensor]]) -> None:
    torch.testing.assert_close(received[0], expected[0], rtol=1e-9, atol=1e-9)
    assert received[1].keys() == expected[1].keys()
    for name, value in expected[1].items():
        torch.testing.assert_close(received[1][name], value, rtol=1e-9, atol=1e-9)


def test_the_tables_agree() -> None:
    assert FEATURE_MAPS.keys() == FEATURE_SIZES.keys() == SIZES.keys()
    for name in FEATURE_MAPS:
        cls = feature_map(name)
        assert cls.joint == (name in LinearConfig.RANDOM)
        learned = [p for p, _ in cls(2, V, config(name)).named_parameters() if p == "weight"]
        assert bool(learned) == (name in LinearConfig.LEARNED)


@torch.no_grad()
@pytest.mark.parametrize("name, normalizer", CASES)
def test_sequence_and_step_are_the_definition(name: str, normalizer: str) -> None:
    made = mixer(config(name, normalizer, query_scale=0.5))
    x, state = inputs(made.config)
    expected = by_definition(made, x, state)
    for y, after in (made(x, state), by_steps(made, x, state)):
        for received, wanted in zip((y, *after.values()), expected, strict=True):
            np.testing.assert_allclose(received.numpy(), wanted, rtol=1e-9, atol=1e-9)


@settings(max_examples=40)
@given(st.sampled_from(CASES), st.integers(1, 9), st.integers(0, 9), st.integers(0, 5), st.booleans())
@torch.no_grad()
def test_split_anywhere_folded_or_not(case: tuple[str, str], length: int, at: int, seed: int, folded: bool) -> None:
    made = mixer(config(*case))
    x, state = inputs(made.config, length, seed)
    whole = made(x, state)
    other = made.fold() if folded else made
    assert_same(by_steps(other, x, state), whole)
    if 0 < at < length:
        first, between = other(x[:, :at], state)
        second, after = other(x[:, at:], between)
        assert_same((torch.cat([first, second], 1), after), whole)


@torch.no_grad()
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_fold_leaves_constants_alone(name: str, fixed: bool) -> None:
    """A folded map keeps only random directions, with any σ inside; projections are one matrix."""
    made = mixer(config(name, "rms_norm", fixed_sigma=fixed and name == "rfa"))
    folded = made.fold()
    assert {n for n, _ in folded.named_parameters()} == {
        *("qkv.weight", "qkv.bias", "inner.norm.weight", "o.weight", "o.bias")
    }
    assert [n for n, _ in folded.named_buffers()] == (
        ["inner.maps.joint.weight"] if name in LinearConfig.RANDOM else []
    )
    x, state = inputs(made.config)
    assert_same(folded(x, state), made(x, state))


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("name, normalizer", CASES)
def test_exported_and_verified(name: str, normalizer: str, kind: str, tmp_path: Path) -> None:
    """A rotated layer that stays unfolded, and a folded one, in each form of the graph."""
    layers = (config(name, normalizer), config(name, normalizer, positions="drop", query_scale=0.7))
    model = dataclasses.replace(MODELS[kind], layers=layers)
    states = {"S.0", "S.1", "position"} | ({"z.0", "z.1"} if normalizer == "z" else set())
    npu = (kind, normalizer) in {("rotary", "z"), ("learned", "group_norm")}
    for target in ("portable", "fused", *(["npu"] if npu else [])):
        made, report = small.graph(tmp_path / "g.onnx", model, target=target)
        assert [f.folded for f in report.folds] == [kind == "learned", True]
        assert {s.name for s in report.signature.states} == states
        outcome = small.proof(made, tmp_path / "g.onnx", steps=20)
        assert outcome.passed, (target, outcome)


@pytest.mark.parametrize("name", LinearConfig.RANDOM)
def test_other_directions_in_every_training_step(name: str) -> None:
    made = mixer(config(name, redraw=True))
    x, state = inputs(made.config)
    with torch.no_grad():
        still = [made(x, state)[0] for _ in range(2)]
    assert torch.equal(*still), "in use the directions are the model's own"
    again = Alone(made.model, copy.deepcopy(made.layer))
    made.train()
    torch.manual_seed(0)
    first, second = (made(x, state)[0] for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    again.train()
    resumed = again(x, state)[0]
    assert torch.equal(resumed, first), "the next directions follow from the present ones"
    with torch.no_grad():
        assert torch.equal(again(x, state)[0], resumed), "validation draws none"
    (first.sum() + second.sum()).backward()  # the first pass's directions are still there
    made.eval()
    last = made(x, state)[0]
    assert torch.equal(last, second), "the last directions are kept"


@pytest.mark.parametrize("name", LinearConfig.RANDOM)
def test_queries_and_keys_see_the_same_directions(name: str) -> None:
    made = feature_map(name)(G, V, config(name))
    x = torch.randn(B, G, T, V)
    grouped = x.repeat_interleave(H // G, dim=1)
    query, key = made(grouped, True, TorchOps()), made(x, False, TorchOps())
    assert query.shape == (B, H, T, SIZES[name])
    if name == "rfa":
        torch.testing.assert_close(query.view(B, G, H // G, T, -1)[:, :, 1], key)
    else:  # the same up to a factor of each query
        scale = key / query.view(B, G, H // G, T, -1)[:, :, 1]
        torch.testing.assert_close(scale, scale[..., :1].expand_as(scale), rtol=1e-4, atol=1e-4)


def test_favor_directions_orthogonal_and_bounded() -> None:
    made = Favor(G, 8, LinearConfig(13, feature_map="favor")).double()
    directions = made.weight.mT * 8**0.25  # (G, m, d)
    products = directions @ directions.mT
    torch.testing.assert_close(products[:, :8, :8], 8 * torch.eye(8).double().expand(G, 8, 8), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(products[:, 8:, 8:], 8 * torch.eye(5).double().expand(G, 5, 5), rtol=1e-5, atol=1e-5)
    keys = directions[:, None, 3:4] * 8**0.25  # the worst key of direction 3 is that direction itself
    features = made(keys.transpose(0, 1), False, TorchOps())
    torch.testing.assert_close(features[0, :, 0, 3], torch.full((G,), 8 / 2).double().exp(), rtol=1e-5, atol=1e-5)
    assert features.max() <= np.exp(8 / 2) * (1 + 1e-5)
    extreme = torch.full((1, G, 1, 8), 1e4).double()
    assert torch.isfinite(made(extreme, True, TorchOps())).all()
    assert torch.isfinite(made(extreme, False, TorchOps())).all()


def test_nothing_is_divided_by_zero() -> None:
    """x = 0, the input of a dead projection: no feature of any map is NaN."""
    for name in FEATURE_MAPS:
        for query in (True, False):
            features = feature_map(name)(G, V, config(name))(torch.zeros(1, G, 1, V), query, TorchOps())
            assert torch.isfinite(features).all(), name


@pytest.mark.parametrize("name", ["hedgehog", "rfa"])
def test_feature_map_initialization(name: str) -> None:
    made = initialize(dataclasses.replace(GPT2, layers=(config(name),)).build(), seed=0)
    maps = made.blocks[0].mixers[0].inner.maps.of_queries  # type: ignore[union-attr]
    if name == "hedgehog":
        assert torch.equal(maps.weight[0], torch.eye(V, 3))
    else:
        assert isinstance(maps, RandomFourier)
        assert (maps.inverse_sigma == 1).all()


def test_sigma() -> None:
    made = RandomFourier(G, V, config("rfa", sigma=0.5))
    assert (made.inverse_sigma == 2).all()
    assert [name for name, _ in made.named_parameters()] == ["inverse_sigma"]
    fixed = RandomFourier(G, V, config("rfa", sigma=0.5, fixed_sigma=True))
    assert not list(fixed.parameters())


@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_every_weight_learns(name: str) -> None:
    made = mixer(config(name, "group_norm"))
    x, state = inputs(made.config)
    small.assert_learns(made, made(x, state)[0])


@pytest.mark.parametrize(
    "name, size, which",
    [
        ("elu", 5, "the head size, 4"),
        ("rfa", 7, "even (a sine and a cosine per random direction)"),
        ("dpfp", 12, "8 · n, with n from 1 to 7"),
        ("dpfp", 64, "8 · n, with n from 1 to 7"),
        ("hedgehog", 3, "even (W x and -W x)"),
    ],
)
def test_sizes_that_cannot_be(name: str, size: int, which: str) -> None:
    with pytest.raises(UserError) as caught:
        dataclasses.replace(GPT2, layers=(LinearConfig(size, feature_map=name),))
    assert str(caught.value) == (
        f"expected feature_size to be {which}, with the feature map {name}; received {size}; correct feature_size"
    )


def test_favor_needs_a_head_that_float32_can_hold() -> None:
    with pytest.raises(UserError) as caught:
        dataclasses.replace(GPT2.with_attention(head_size=129), layers=(LinearConfig(8, feature_map="favor"),))
    assert str(caught.value) == (
        "expected a head size of at most 128 with the feature map favor; received 129; choose another feature map"
    )


def test_reading_a_config_allocates_nothing() -> None:
    """The shapes of an untrusted model, however many random features it claims."""
    from t2r_export.checkpoints.weights import weight_shapes

    huge = dataclasses.replace(GPT2, layers=(LinearConfig(1 << 20, feature_map="favor"),)).build()
    assert weight_shapes(huge)["blocks.0.parts.0.inner.maps.joint.weight"] == (G, V, 1 << 20)


def test_fold_of_a_model_says_folded() -> None:
    _, (report,) = fold(small.model(dataclasses.replace(GPT2, layers=(config("favor", "none"),))))
    assert report.status == "folded"


def philox(key: tuple[int, int], count: int) -> list[int]:
    """Words of Philox4x64-10 (Salmon et al. 2011, table 2), in Python integers."""
    mask, words = (1 << 64) - 1, list[int]()
    for block in range(1, 2 + count // 4):
        x, k = [block, 0, 0, 0], list(key)
        for _ in range(10):
            a, b = 0xD2E7470EE14C6C93 * x[0], 0xCA5A826395121157 * x[2]
            x = [b >> 64 ^ x[1] ^ k[0], b & mask, a >> 64 ^ x[3] ^ k[1], a & mask]
            k = [k[0] + 0x9E3779B97F4A7C15 & mask, k[1] + 0xBB67AE8584CAA73B & mask]
        words += x
    return words[:count]


def normals(head: int, count: int) -> list[float]:
    """As docs/mixers.md defines them."""
    u = [(word >> 11) * 2.0**-53 for word in philox((0, head), count + count % 2)]
    pairs = [(math.sqrt(-2 * math.log1p(-a)), 2 * math.pi * b) for a, b in zip(u[::2], u[1::2], strict=True)]
    return [value for r, t in pairs for value in (r * math.cos(t), r * math.sin(t))][:count]


def orthonormal(columns: np.ndarray) -> np.ndarray:
    """Gram-Schmidt, on the columns of (d, d)."""
    made = np.zeros_like(columns)
    for n in range(columns.shape[1]):
        rest = columns[:, n] - made[:, :n] @ (made[:, :n].T @ columns[:, n])
        made[:, n] = rest / np.linalg.norm(rest)
    return made


def test_random_directions_match_docs() -> None:
    d, heads = 5, 3
    rfa = RandomFourier(heads, d, LinearConfig(6, feature_map="rfa")).weight
    expected = [np.reshape(normals(head, d * 3), (d, 3)) / math.sqrt(d) for head in range(heads)]
    np.testing.assert_allclose(rfa.numpy(), expected, rtol=1e-6)
    favor = Favor(heads, d, LinearConfig(8, feature_map="favor")).weight  # two blocks, the second truncated
    for head in range(heads):
        blocks = np.reshape(normals(head, 2 * d * d), (2, d, d))
        rows = np.concatenate([orthonormal(block) for block in blocks])[:8]
        np.testing.assert_allclose(favor[head].numpy(), rows.T * d**0.25, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["rfa", "favor"])
def test_random_directions_deterministic(name: str) -> None:
    layer = config(name)
    models = [Transformer(dataclasses.replace(small.WIDE, layers=(layer, layer)).build()) for _ in range(2)]
    torch.manual_seed(3)
    models.append(Transformer(dataclasses.replace(small.WIDE, layers=(layer, layer)).build()))
    weights = [model.state_dict()["blocks.1.parts.0.inner.maps.joint.weight"] for model in models]
    assert torch.equal(weights[0], weights[1]) and torch.equal(weights[0], weights[2])


def test_on_the_device_meta_nothing_is_drawn() -> None:
    with torch.device("meta"):
        made = Favor(2, 128, LinearConfig(1 << 20, feature_map="favor"))
    assert made.weight.shape == (2, 128, 1 << 20) and made.weight.device.type == "meta"
