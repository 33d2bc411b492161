"""Feed-forwards by kind: product keys against the whole table, and blocks that have none."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import small
from small import FFN, GPT2, MEMORY, NO_FFN, WIDTH, B, T
from t2r_export.checkpoints import checkpoint
from t2r_export.config.parts import DenseConfig
from t2r_export.config.plain import from_plain, to_plain
from t2r_export.config.uniform import Dense, UniformConfig
from t2r_export.describe import describe
from t2r_export.lab.config.product_key import ProductKeyConfig
from t2r_export.lab.product_key import QUERY_EPS, ProductKey
from t2r_export.model.parts.base import Site
from t2r_export.model.parts.dense import Dense as DensePart
from t2r_export.model.step import Step
from t2r_export.model.torch_ops import TorchOps
from t2r_export.model.units import Units
from t2r_runtime.errors import UserError


def memory(config: ProductKeyConfig = MEMORY) -> ProductKey:
    made = ProductKey(Site(WIDTH), config).double()
    generator = torch.Generator().manual_seed(0)
    for weight in made.parameters():
        weight.data = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
    return made


def read(made: ProductKey, x: torch.Tensor, tokens: int | None = None) -> torch.Tensor:
    """Rows x (N, D) -> (N, D)."""
    y, after = made(x, {}, Step(TorchOps(tokens, x), None, []))
    assert after == {}
    found: torch.Tensor = y
    return found


def by_definition(made: ProductKey, x: np.ndarray) -> np.ndarray:
    """x (D): scores all n² keys with the whole query and keeps the best (Lample et al. 2019)."""
    config, weights = made.config, {name: weight.detach().numpy() for name, weight in made.named_parameters()}
    query = (weights["query.weight"] @ x + weights["query.bias"]).reshape(config.heads, config.query_size)
    spread = query - query.mean(-1, keepdims=True)
    query = spread / np.sqrt((spread**2).mean(-1, keepdims=True) + QUERY_EPS)
    query = query * weights["norm.weight"] + weights["norm.bias"]
    out = np.zeros(WIDTH)
    for head in range(config.heads):
        first, second = weights["keys"][2 * head], weights["keys"][2 * head + 1]  # (half, n) each
        keys = [np.concatenate([first[:, i], second[:, j]]) for i in range(config.keys) for j in range(config.keys)]
        scores = np.array([query[head] @ key for key in keys])
        best = np.argsort(scores)[-config.top :]
        shares = np.exp(scores[best]) / np.exp(scores[best]).sum()
        out += shares @ weights["values"][best]
    return out


@torch.no_grad()
@settings(max_examples=20)
@given(keys=st.integers(1, 6), half=st.integers(1, 3), heads=st.integers(1, 3), top=st.integers(1, 6))
def test_product_keys_find_the_best_of_all_keys(keys: int, half: int, heads: int, top: int) -> None:
    made = memory(ProductKeyConfig(keys, 2 * half, heads, min(top, keys)))
    x = torch.randn(B, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = np.stack([by_definition(made, row) for row in x.numpy()])
    np.testing.assert_allclose(read(made, x).numpy(), expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_a_sequence_is_its_tokens() -> None:
    made = memory()
    x = torch.randn(B, T, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    whole = read(made, x.flatten(0, 1), T).unflatten(0, (B, T))
    by_token = torch.stack([read(made, x[:, t]) for t in range(T)], 1)
    torch.testing.assert_close(whole, by_token, rtol=1e-12, atol=1e-12)


def test_every_weight_learns() -> None:
    made = memory()
    read(made, torch.randn(50, WIDTH, dtype=torch.float64)).square().sum().backward()
    for name, weight in made.named_parameters():
        assert weight.grad is not None, name
        used = weight.grad.abs().sum(-1) > 0  # only the values that some token read
        assert used.any() if name == "values" else used.all(), name


def test_initial_scale() -> None:
    made = ProductKey(Site(64), ProductKeyConfig(32, 16))
    assert float(made.keys.detach().abs().max()) <= 8**-0.5
    assert float(made.values.detach().std()) == pytest.approx(64**-0.5, rel=0.02)


def test_the_graph_reads_the_top_keys_alone(tmp_path: Path) -> None:
    small.graph(tmp_path / "g.onnx", "mixed")
    nodes = onnx.load(tmp_path / "g.onnx").graph.node
    assert sum(node.op_type == "TopK" for node in nodes) == 2
    assert [node.op_type for node in nodes if "blocks.1.parts.1.values" in node.input] == ["Gather"]


@pytest.mark.parametrize("prefill", [False, True])
def test_a_graph_of_memories_is_the_model(prefill: bool, tmp_path: Path) -> None:
    """Product keys behind one layer, and a persistent memory in the other; also in the prefill graph."""
    layers = (small.LINEAR, dataclasses.replace(small.LINEAR, memory=3))
    config = dataclasses.replace(GPT2, layers=layers, feed_forwards=(MEMORY, NO_FFN))
    made, report = small.graph(tmp_path / "g.onnx", config, prefill=prefill)
    assert ("prefill" in report.signature.graphs) is prefill
    assert small.proof(made, tmp_path / "g.onnx", 20).passed


def test_no_feed_forward_has_no_weights() -> None:
    made = small.model(dataclasses.replace(GPT2, feed_forwards=(Dense(), NO_FFN)))
    names = {name for name, _ in made.named_parameters()}
    assert any(name.startswith("blocks.0.parts.1") for name in names)
    assert not any(name.startswith("blocks.1.parts.1") for name in names)


@torch.no_grad()
@torch.no_grad()
@pytest.mark.parametrize("rank", [0, 3])
def test_a_token_gate_weighs_the_result(rank: int) -> None:
    """sigmoid(w x) times the ungated result; the gate keeps its matrix, which is not factorable."""
    config = DenseConfig(size=FFN, activation="silu", gated=True, rank=rank, token_gate=True)
    made, x = DensePart(Site(WIDTH), config), torch.randn(T, WIDTH, generator=torch.Generator().manual_seed(1))
    plain = DensePart(Site(WIDTH), dataclasses.replace(config, token_gate=False))
    plain.load_state_dict({k: weight for k, weight in made.state_dict().items() if not k.startswith("token_gate")})
    step, scores = Step(TorchOps(None, x), None, []), x.numpy() @ made.token_gate.weight.numpy().T
    expected = plain(x, {}, step)[0].numpy() / (1 + np.exp(-scores))
    np.testing.assert_allclose(made(x, {}, step)[0].numpy(), expected, rtol=1e-5, atol=1e-6)
    assert "token_gate" not in made.factorable()
    units = made.units("ffn")
    assert isinstance(units, Units) and "token_gate.weight" not in units.rows


def test_a_plain_lstm_is_torchs() -> None:
    """Without norm, residual and feed-forward the model is an embedding, torch's own stack of layers, and a head."""
    made = small.model("lstm")
    whole = torch.nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
    whole.load_state_dict(
        {name.replace("l0", f"l{layer}"): weight for layer in (0, 1) for name, weight in _rnn(made, layer).items()}
    )
    ids = small.ids()
    torch.testing.assert_close(made(ids), made.head(whole(made.embedding(ids))[0]), rtol=1e-5, atol=1e-5)


def _rnn(made: Any, layer: int) -> dict[str, torch.Tensor]:
    return dict(made.blocks[layer].parts[0].rnn.state_dict())


def test_inspect_names_what_is_not_dense(tmp_path: Path) -> None:
    made, _ = small.graph(tmp_path / "g.onnx", "mixed")
    checkpoint.save(tmp_path / "m.pt", made.model, None, {})
    for path in (tmp_path / "g.onnx", tmp_path / "m.pt"):
        shown = [feed_forward for (_, _, feed_forward, _), _ in describe(path).rows]
        assert shown == ["dense", "product_key, keys=5,query_size=6,heads=2,top=3", "none"]


@pytest.mark.parametrize("name", ["lstm", "gru", "mixed"])
def test_saved_and_loaded(name: str, tmp_path: Path) -> None:
    made = small.model(name)
    checkpoint.save(tmp_path / "m.pt", made, None, {})
    loaded = checkpoint.load(tmp_path / "m.pt")
    assert loaded.config == made.config
    assert torch.equal(loaded.model(small.ids()), made(small.ids()))


def test_a_layer_has_its_feed_forward_as_a_part() -> None:
    named = dataclasses.replace(GPT2, feed_forwards=(NO_FFN, MEMORY)).build()
    assert [[part.kind for part in layer.parts] for layer in named.layers] == [
        ["attention"],
        ["attention", "product_key"],
    ]
    data = json.loads(json.dumps(named.to_dict()))["layers"][1]["parts"][1]
    assert {name: data[name] for name in ("keys", "query_size", "heads", "top")} == {
        "keys": 5, "query_size": 6, "heads": 2, "top": 3
    }  # fmt: skip


BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"feed_forwards": [{"kind": "dense"}]},
        "2 feed_forwards for 2 layers; received 1; correct feed_forwards",
    ),
    (
        {"feed_forwards": {"kind": "dense"}},
        "model.feed_forwards to be a list of at most 1024; received dict; correct the co",
    ),
    (
        {"feed_forwards": [{}, {}]},
        "model.feed_forwards.kind to be one of dense, none, channel_mix, moe, product_key; received None; choo",
    ),
    (
        {"feed_forwards": ["dense", "dense"]},
        "model.feed_forwards to be a JSON object; received str; correct the config",
    ),
    ({"residual": 1}, "residual to be true or false; received 1; correct residual"),
]
BAD_KEYS: list[tuple[dict[str, Any], str]] = [
    ({"keys": 1025}, "keys to be an integer from 1 to 1024; received 1025; correct keys"),
    ({"top": 6}, "top to be an integer from 1 to 5; received 6; correct top"),
    ({"query_size": 7}, "an even query_size; received 7; correct it"),
    ({"heads": 0}, "heads to be an integer from 1 to 1048576; received 0; correct heads"),
    (
        {"wide": 1},
        "model.feed_forwards (product_key) to have the keys aside, beside, heads, keys, multiplier, norm, nor",
    ),
]


@pytest.mark.parametrize("changes, message", BAD)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        from_plain(UniformConfig, to_plain(GPT2) | changes, "model")
    assert str(caught.value).startswith(f"expected {message}")


@pytest.mark.parametrize("changes, message", BAD_KEYS)
def test_refused_product_keys(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        from_plain(
            UniformConfig,
            to_plain(GPT2) | {"feed_forwards": [to_plain(Dense()), to_plain(MEMORY) | changes]},
            "model",
        )
    assert str(caught.value).startswith(f"expected {message}")
