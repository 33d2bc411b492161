"""RWKV-7 folders, against a definition in NumPy: logits and every state after each text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

import folders
import small
from checkpoints.importers.peers import TOLERANCE, error
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.checkpoints.importers.rwkv7 import KEYS
from t2r_export.config.export import ExportConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.export import export
from t2r_export.quantize import export_quantized
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError

Array = NDArray[Any]
V, D, LAYERS, HEADS, SIZE, HIDDEN = 31, 12, 3, 3, 4, 17
RANKS = {"w": 5, "a": 6, "v": 7, "g": 8}
CONFIG = {
    "model_type": "rwkv7",
    "vocab_size": V,
    "hidden_size": D,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "head_dim": SIZE,
    **{f"{key}_low_rank_dim": RANKS[name] for name, key in zip("wavg", ("decay", "a", "v", "gate"), strict=True)},
    "norm_eps": 1e-3,
}
LENGTHS = (1, 2, 63, 64, 65, 193, 300)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def normed(x: Array, w: dict[str, Array], name: str, eps: float) -> Array:
    return (x - x.mean()) / np.sqrt(x.var() + eps) * w[f"{name}.weight"] + w[f"{name}.bias"]


def definition(w: dict[str, Array], ids: Array, eps: float = 1e-3) -> tuple[Array, dict[str, Array]]:
    """Logits (T, V) of one text, from tensors named as in a folder, and the states after it, S as (V, K)."""
    states: dict[str, Array] = {}
    for n in range(LAYERS):
        states |= {f"last.{n}": np.zeros(D), f"S.{n}": np.zeros((HEADS, SIZE, SIZE)), f"last_1.{n}": np.zeros(D)}
    logits = []
    for token in ids:
        x, first = normed(w["model.embeddings.weight"][token], w, "model.layers.0.pre_norm", eps), None
        for n in range(LAYERS):
            layer = f"model.layers.{n}"
            y, first = mixed(w, f"{layer}.attn", n, normed(x, w, f"{layer}.attn_norm", eps), first, states, eps)
            x = x + y
            row = normed(x, w, f"{layer}.ffn_norm", eps)
            shifted = row + (states[f"last_1.{n}"] - row) * w[f"{layer}.ffn.x_k"]
            states[f"last_1.{n}"] = row
            x = x + w[f"{layer}.ffn.value.weight"] @ np.maximum(w[f"{layer}.ffn.key.weight"] @ shifted, 0) ** 2
        logits.append(w["lm_head.weight"] @ normed(x, w, "model.norm", eps))
    return np.array(logits), states


def mixed(
    w: dict[str, Array], name: str, n: int, row: Array, first: Array | None, states: dict[str, Array], eps: float
) -> tuple[Array, Array]:
    """Output of time mixing, and the first layer's value; updates `states` in place."""

    def low_rank(part: str, activation: Any = lambda x: x) -> Array:
        lora = f"{name}.{part}_lora.lora"
        inner = activation(w[f"{lora}.0.weight"] @ of[part])
        return w[f"{lora}.2.weight"] @ inner + w.get(f"{lora}.2.bias", 0.0)

    last, S = states[f"last.{n}"], states[f"S.{n}"].copy()
    of = {part: row + (last - row) * w[f"{name}.x_{part}"][0, 0] for part in "rwkvag"}
    r, k, v = (w[f"{name}.{part}_proj.weight"] @ of[part] for part in "rkv")
    decay = np.exp(-np.exp(-0.5) * sigmoid(low_rank("w", np.tanh)))
    a, g = sigmoid(low_rank("a")), low_rank("g", sigmoid)
    first = v if first is None else first
    v = v if n == 0 else v + (first - v) * sigmoid(low_rank("v"))
    keys, k = k * w[f"{name}.k_k"], k * (1 + (a - 1) * w[f"{name}.k_a"])
    o = np.zeros(D)
    for h in range(HEADS):
        at = slice(SIZE * h, SIZE * (h + 1))
        unit = keys[at] / np.linalg.norm(keys[at])
        S[h] = S[h] * decay[at] - np.outer(S[h] @ unit, unit * a[at]) + np.outer(v[at], k[at])
        y = S[h] @ r[at]
        y = (y - y.mean()) / np.sqrt(y.var() + SIZE * eps)
        y = y * w[f"{name}.g_norm.weight"][at] + w[f"{name}.g_norm.bias"][at]
        o[at] = y + (r[at] * k[at] * w[f"{name}.r_k"][h]).sum() * v[at]
    states[f"last.{n}"], states[f"S.{n}"] = row, S
    return w[f"{name}.o_proj.weight"] @ (o * g), first


def shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"model.embeddings.weight": (V, D), "lm_head.weight": (V, D)}
    norms = ["model.norm", "model.layers.0.pre_norm"]
    for n in range(LAYERS):
        layer, attn = f"model.layers.{n}", f"model.layers.{n}.attn"
        norms += [f"{layer}.attn_norm", f"{layer}.ffn_norm", f"{attn}.g_norm"]
        found |= {f"{attn}.{part}_proj.weight": (D, D) for part in "rkvo"}
        found |= {f"{attn}.x_{part}": (1, 1, D) for part in "rwkvag"}
        found |= {f"{attn}.k_k": (D,), f"{attn}.k_a": (D,), f"{attn}.r_k": (HEADS, SIZE)}
        for part, rank in RANKS.items():
            if part == "v" and n == 0:
                continue
            lora = f"{attn}.{part}_lora.lora"
            found |= {f"{lora}.0.weight": (rank, D), f"{lora}.2.weight": (D, rank)}
            found |= {} if part == "g" else {f"{lora}.2.bias": (D,)}
        found |= {f"{layer}.ffn.x_k": (D,), f"{layer}.ffn.key.weight": (HIDDEN, D)}
        found[f"{layer}.ffn.value.weight"] = (D, HIDDEN)
    return found | {f"{norm}.{kind}": (D,) for norm in norms for kind in ("weight", "bias")}


def tensors() -> dict[str, Array]:
    random = np.random.default_rng(0)
    return {
        name: (0.3 * random.standard_normal(shape) + 0.3 * name.endswith("norm.weight")).astype(np.float32)
        for name, shape in shapes().items()
    }


def write(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Checkpoint, Path]:
    folder = write(tmp_path_factory.mktemp("rwkv7"))
    ours = checkpoint.load(folder)
    assert ours.notes == ()
    for target in ("portable", "fused"):
        export(ours, folder / f"{target}.onnx", ExportConfig(prefill=True, target=target))
    return ours, folder


@pytest.fixture(scope="module")
def expected() -> dict[int, tuple[torch.Tensor, Array, dict[str, torch.Tensor]]]:
    """Per length: two texts, their logits, and the states after them under our names and in our layout."""
    w, found = {name: tensor.astype(np.float64) for name, tensor in tensors().items()}, {}
    for length in LENGTHS:
        ids = torch.randint(0, V, (2, length), generator=torch.Generator().manual_seed(length))
        logits, states = zip(*(definition(w, row) for row in ids.numpy()), strict=True)
        ours = {}
        for name in states[0]:
            value = torch.from_numpy(np.stack([of[name] for of in states])).float()
            ours[name] = value.mT if name.startswith("S") else value[:, None, None]
        found[length] = ids, np.stack(logits), ours
    return found


@torch.no_grad()
@pytest.mark.parametrize("length", LENGTHS)
def test_a_text_in_torch_is_the_definition(length: int, made: Any, expected: Any) -> None:
    model, (ids, logits, states) = made[0].model, expected[length]
    assert logits.std() > 0.1
    for read in (model.prefill, lambda *given: small.by_steps(model, *given)) if length < 66 else (model.prefill,):
        found, after = read(ids, model.init_state(2))
        assert error(found, logits) < TOLERANCE
        small.assert_states(after, states, TOLERANCE)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("target", ["portable", "fused"])
def test_prompts_and_steps_of_the_graphs_are_the_definition(target: str, length: int, made: Any, expected: Any) -> None:
    ids, logits, states = expected[length]
    decoder = Decoder(made[1] / f"{target}.onnx", threads=1)
    for prompt in (True, False)[: 1 + (length < 66)]:
        decoder.reset(2)
        read = decoder.prefill(ids.numpy()) if prompt else [decoder.step(column) for column in ids.T.numpy()][-1]
        assert error(read, logits[:, -1]) < TOLERANCE
        small.assert_states(decoder.state(), states, TOLERANCE)


@pytest.mark.parametrize("scheme", ["w8", "w4"])
def test_quantized_graphs_are_within_their_tolerances(scheme: str, made: Any, tmp_path: Path) -> None:
    export_quantized(made[0], tmp_path / "q.onnx", ExportConfig(prefill=True), QuantizeConfig(scheme=scheme))
    assert small.proof(made[0], tmp_path / "q.onnx", steps=40).passed


def test_graphs_for_an_npu_have_no_scatter_and_no_scan(made: Any, tmp_path: Path) -> None:
    export(made[0], tmp_path / "g.onnx", ExportConfig(target="npu"))
    kinds = {node.op_type for node in onnx.load(tmp_path / "g.onnx", load_external_data=False).graph.node}
    assert not [kind for kind in kinds if kind.startswith("Scatter") or kind in ("Scan", "Loop", "If")]
    assert small.proof(made[0], tmp_path / "g.onnx", steps=40).passed


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"head_dim": 5}, "head_dim in config.json to be a divisor of hidden_size=12"),
        ({"head_dim": 6}, "r_k 3×4 instead of 2×6"),
        ({"value_dim": [12, 24, 12]}, "value_dim in config.json to be absent or hidden_size=12"),
        ({"attn": {"layers": [1]}}, "attn in config.json to be absent or null"),
        ({"hidden_act": "relu"}, 'hidden_act in config.json to be absent or "sqrelu"'),
        ({"norm_bias": False}, "norm_bias in config.json to be absent or true"),
        ({"norm_first": False}, "unexpected model.layers.0.pre_norm.bias"),
        ({"decay_low_rank_dim": None}, "decay_low_rank_dim in config.json to be an integer"),
        ({"tie_word_embeddings": True}, "lm_head.weight equal to model.embeddings.weight"),
    ],
)
def test_what_it_cannot_be_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        checkpoint.load(write(tmp_path, **changes))
    assert message in str(caught.value)


def test_absent_keys_and_other_spellings(made: Any, tmp_path: Path) -> None:
    ours = made[0].config
    assert checkpoint.load(write(tmp_path, head_dim=None, num_heads=HEADS, value_dim=[D] * LAYERS)).config == ours
    write(tmp_path, intermediate_size=None, hidden_ratio=3)
    with pytest.raises(UserError, match="ffn.key.weight 17×12 instead of 64×12"):  # rounded up to a multiple of 32
        checkpoint.load(tmp_path)
    assert not {*KEYS.read} & {*KEYS.refused} and not {*KEYS.read} & KEYS.harmless


def test_the_comparison_sees_a_wrong_weight(made: Any, expected: Any, tmp_path: Path) -> None:
    folder, (ids, logits, _) = write(tmp_path), expected[65]
    for name in ("attn.x_g", "attn.k_a", "attn.r_k", "attn.v_lora.lora.2.bias", "ffn.x_k"):
        full = f"model.layers.1.{name}"
        folders.change_tensors(write(folder), **{full: torch.from_numpy(tensors()[full]) + 0.1})
        with torch.no_grad():
            assert np.abs(checkpoint.load(folder).model(ids).numpy() - logits).max() > 1e-3
