"""Folders of flash-linear-attention's families, and NumPy definitions of their models from the papers.

A definition reads one text token by token, in float64, with tensors named as in the folder. It returns logits, and the
states after the text under our names and in our layout.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from torch import Tensor

from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.checkpoint import Checkpoint

Array = NDArray[Any]
NORMS = tuple(f"attn.{name}.weight" for name in ("g_norm_swish_gate", "g_norm", "o_norm"))
Weights = dict[str, Array]
V, D, LAYERS = 31, 48, 2
SIZES = {"vocab_size": V, "hidden_size": D, "num_hidden_layers": LAYERS, "intermediate_size": 19, "norm_eps": 1e-3}
HEADS = {**SIZES, "head_dim": 16, "num_heads": 3, "num_v_heads": 6, "expand_v": 1.25, "conv_size": 3}
CONFIGS: dict[str, dict[str, Any]] = {
    "gla": {**SIZES, "model_type": "gla", "num_heads": 3},
    "gla convolved": {**SIZES, "model_type": "gla", "num_heads": 3, "use_short_conv": True, "use_output_gate": False},
    "retnet": {**SIZES, "model_type": "retnet", "num_heads": 3, "expand_k": 0.375, "expand_v": 1.25},
    "delta-net": {**SIZES, "model_type": "delta_net", "num_heads": 3, "expand_v": 1.25, "conv_size": 3},
    "delta-net gated": {**SIZES, "model_type": "delta_net", "num_heads": 2, "use_gate": True, "allow_neg_eigval": True},
    "gated-deltanet": {**HEADS, "model_type": "gated_deltanet"},
    "gated-deltanet plain": {
        **{**HEADS, "model_type": "gated_deltanet", "num_v_heads": None},
        **{"use_short_conv": False, "use_gate": False, "tie_word_embeddings": True},
    },
    "kda": {**HEADS, "model_type": "kda", "allow_neg_eigval": True},
}


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def unit(x: Array) -> Array:
    """Rows scaled to length 1."""
    return x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-6)


def softplus_decay(logits: Array, A_log: Array, bias: Array) -> Array:
    """exp(-exp(A) softplus(logits + b)), per head (H) or per channel (H, K)."""
    rates = np.exp(A_log).reshape(-1, *[1] * (logits.ndim - 1))
    return np.exp(-rates * np.log1p(np.exp(logits + bias.reshape(logits.shape))))


@dataclass(frozen=True)
class Model:
    """A model of one family with random weights. Args: config: its config.json."""

    config: dict[str, Any]

    name: ClassVar[str] = "NumPy"

    def imported(self, folder: Path) -> tuple[Model, Checkpoint]:
        """This model, and our checkpoint of its saved folder."""
        return self, checkpoint.load(self.save(folder))

    def of(self, key: str, default: Any = None) -> Any:
        return self.config.get(key, default)

    @cached_property
    def sizes(self) -> tuple[int, int, int, int]:
        """Value heads, key heads, K and V."""
        heads, kind = self.config["num_heads"], self.config["model_type"]
        if kind in ("gated_deltanet", "kda"):
            size = self.config["head_dim"]
            return self.of("num_v_heads") or heads, heads, size, int(size * self.config["expand_v"])
        expand = {"gla": (0.5, 1.0), "retnet": (1.0, 2.0), "delta_net": (1.0, 1.0)}[kind]
        return (
            heads,
            heads,
            *(  # type: ignore[return-value]
                int(D * self.of(f"expand_{name}", usual)) // heads for name, usual in zip("kv", expand, strict=True)
            ),
        )

    @property
    def taps(self) -> int:
        convolves = self.of("use_short_conv", self.config["model_type"] not in ("gla", "retnet"))
        return self.of("conv_size", 4) if convolves else 0

    @property
    def gated(self) -> bool:
        kind = self.config["model_type"]
        return bool(self.of("use_output_gate", kind in ("gla", "retnet")) or self.of("use_gate", "gated" in kind))

    @cached_property
    def weights(self) -> Weights:
        random = np.random.default_rng(0)
        return {
            name: (0.15 * random.standard_normal(shape) + 0.5 * ("norm" in name)).astype(np.float32)
            for name, shape in self.shapes().items()
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        H, G, K, V_ = self.sizes
        kind, F = self.config["model_type"], self.config["intermediate_size"]
        found: dict[str, tuple[int, ...]] = {"model.embeddings.weight": (V, D), "model.norm.weight": (D,)}
        if not self.of("tie_word_embeddings"):
            found["lm_head.weight"] = (V, D)
        channels = {"q": G * K, "k": G * K, "v": H * V_}
        own = {f"{name}_proj.weight": (size, D) for name, size in channels.items()}
        own |= {f"{name}_conv1d.weight": (size, 1, self.taps) for name, size in channels.items() if self.taps}
        own |= {"o_proj.weight": (D, H * V_)} | ({"g_proj.weight": (H * V_, D)} if self.gated else {})
        own |= OWN[kind](H, K, V_, self.gated)
        for layer in range(LAYERS):
            start = f"model.layers.{layer}."
            found |= {f"{start}attn.{name}": shape for name, shape in own.items()}
            found |= {f"{start}{norm}_norm.weight": (D,) for norm in ("attn", "mlp")}
            found |= {f"{start}mlp.{name}_proj.weight": (F, D) for name in ("gate", "up")}
            found[f"{start}mlp.down_proj.weight"] = (D, F)
        return found

    def save(self, folder: Path, **changes: Any) -> Path:
        """Saves the model to a folder. Args: changes: config.json keys."""
        folder.mkdir(exist_ok=True)
        save_file(self.weights, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({**self.config, **changes}))
        return folder

    def read(self, ids: Array) -> tuple[Array, dict[str, Array]]:
        """Logits (T, V) of one text, and the states after it."""
        w = {name: tensor.astype(np.float64) for name, tensor in self.weights.items()}
        x, states = w["model.embeddings.weight"][ids], dict[str, Array]()
        for layer in range(LAYERS):
            own = {name.split(f"layers.{layer}.")[-1]: tensor for name, tensor in w.items() if f".{layer}." in name}
            y, after = self.mixed(own, self.normed(x, own["attn_norm.weight"]))
            states |= {f"{name}.{layer}": value for name, value in after.items()}
            x = x + y
            row = self.normed(x, own["mlp_norm.weight"])
            inner = silu(row @ own["mlp.gate_proj.weight"].T) * (row @ own["mlp.up_proj.weight"].T)
            x = x + inner @ own["mlp.down_proj.weight"].T
        head = w.get("lm_head.weight", w["model.embeddings.weight"])
        return self.normed(x, w["model.norm.weight"]) @ head.T, states

    def normed(self, x: Array, weight: Array) -> Array:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + self.config["norm_eps"]) * weight

    def mixed(self, w: Weights, x: Array) -> tuple[Array, dict[str, Array]]:
        """Output and states of a layer's linear attention, from its normed rows (T, D)."""
        H, G, K, V_ = self.sizes
        T = len(x)
        parts, states = [x @ w[f"attn.{name}_proj.weight"].T for name in "qkv"], dict[str, Array]()
        if self.taps:
            padded = [np.concatenate([np.zeros((self.taps - 1, part.shape[1])), part]) for part in parts]
            kernels = [w[f"attn.{name}_conv1d.weight"][:, 0] for name in "qkv"]
            parts = [
                sum(kernel[:, tap] * rows[tap : tap + T] for tap in range(self.taps))
                for rows, kernel in zip(padded, kernels, strict=True)
            ]
            states["conv"] = np.concatenate(padded, axis=1)[None, T:]
        if self.taps or self.config["model_type"] not in ("gla", "retnet"):
            parts = [silu(part) for part in parts]
        q, k = (part.reshape(T, G, K).repeat(H // G, axis=1) for part in parts[:2])
        S, o = np.zeros((H, K, V_)), np.zeros((T, H, V_))
        update = RULES[self.config["model_type"]]
        for t in range(T):
            S, seen = update(self, w, t, x[t], (q[t], k[t], parts[2][t].reshape(H, V_)), S)
            o[t] = np.einsum("hk,hkv->hv", seen / np.sqrt(K), S)
        y = self.normed(o, next(w[name] for name in NORMS if name in w)).reshape(T, -1)
        return self.opened(w, x, y) @ w["attn.o_proj.weight"].T, {"S": S, **states}

    def opened(self, w: Weights, x: Array, y: Array) -> Array:
        """Rows y after the output gate."""
        if "attn.g_proj.1.bias" in w:  # KDA
            return y * sigmoid(x @ w["attn.g_proj.0.weight"].T @ w["attn.g_proj.1.weight"].T + w["attn.g_proj.1.bias"])
        act = sigmoid if self.of("output_gate_activation") == "sigmoid" else silu
        return y * act(x @ w["attn.g_proj.weight"].T) if self.gated else y

    @torch.no_grad()
    def __call__(self, ids: Tensor, **_: Any) -> SimpleNamespace:
        """Logits (B, T, V) as transformers' models give them."""
        logits = np.stack([self.read(row)[0] for row in ids.numpy()])
        return SimpleNamespace(logits=torch.from_numpy(logits).float())


Parts = tuple[Array, Array, Array]  # q, k (H, K) and v (H, V) of a token
Rule = Callable[[Model, Weights, int, Array, Parts, Array], tuple[Array, Array]]


def gla(model: Model, w: Weights, t: int, x: Array, parts: Parts, S: Array) -> tuple[Array, Array]:
    """S after token t and the vector that reads S, from the token's normed row."""
    q, k, v = parts
    logits = w["attn.gk_proj.1.weight"] @ (w["attn.gk_proj.0.weight"] @ x) + w["attn.gk_proj.1.bias"]
    return (sigmoid(logits) ** (1 / 16)).reshape(k.shape)[..., None] * S + k[..., None] * v[:, None], q


def retention(model: Model, w: Weights, t: int, x: Array, parts: Parts, S: Array) -> tuple[Array, Array]:
    q, k, v = parts
    half = k.shape[1] // 2
    turn = np.exp(1j * t * 10000.0 ** (-np.arange(half) / half))
    q, k = (((y[:, :half] + 1j * y[:, half:]) * turn) for y in (q, k))
    q, k = (np.concatenate([y.real, y.imag], axis=1) for y in (q, k))
    kept = 1 - 2.0 ** (-5 - np.arange(len(S)))
    return kept[:, None, None] * S + k[..., None] * v[:, None], q


def delta(
    model: Model, w: Weights, t: int, x: Array, parts: Parts, S: Array, kept: Array | float = 1.0
) -> tuple[Array, Array]:
    q, k, v = unit(parts[0]), unit(parts[1]), parts[2]
    beta = sigmoid(w["attn.b_proj.weight"] @ x) * (2 if model.of("allow_neg_eigval") else 1)
    S = kept * S
    written = beta[:, None] * (v - np.einsum("hk,hkv->hv", k, S))
    return S + k[..., None] * written[:, None], q


def gated_delta(model: Model, w: Weights, t: int, x: Array, parts: Parts, S: Array) -> tuple[Array, Array]:
    kept = softplus_decay(w["attn.a_proj.weight"] @ x, w["attn.A_log"], w["attn.dt_bias"])
    return delta(model, w, t, x, parts, S, kept[:, None, None])


def kda(model: Model, w: Weights, t: int, x: Array, parts: Parts, S: Array) -> tuple[Array, Array]:
    logits = w["attn.f_proj.1.weight"] @ (w["attn.f_proj.0.weight"] @ x)
    kept = softplus_decay(logits.reshape(S.shape[:2]), w["attn.A_log"], w["attn.dt_bias"])
    return delta(model, w, t, x, parts, S, kept[..., None])


RULES: dict[str, Rule] = {
    "gla": gla,
    "retnet": retention,
    "delta_net": delta,
    "gated_deltanet": gated_delta,
    "kda": kda,
}


def _norm(size: int, gated: bool) -> dict[str, tuple[int, ...]]:
    return {f"{'g_norm_swish_gate' if gated else 'g_norm'}.weight": (size,)}


# shapes of the weights that only this family has, from H, K, V and whether there is an output gate
OWN: dict[str, Callable[[int, int, int, bool], dict[str, tuple[int, ...]]]] = {
    "gla": lambda H, K, V, gated: {
        "gk_proj.0.weight": (16, D),
        "gk_proj.1.weight": (H * K, 16),
        "gk_proj.1.bias": (H * K,),
        **_norm(V, gated),
    },
    "retnet": lambda H, K, V, gated: _norm(V, gated),
    "delta_net": lambda H, K, V, gated: {"b_proj.weight": (H, D), "o_norm.weight": (V,)},
    "gated_deltanet": lambda H, K, V, gated: {
        **{f"{name}_proj.weight": (H, D) for name in "ab"},
        **{"A_log": (H,), "dt_bias": (H,), "o_norm.weight": (V,)},
    },
    "kda": lambda H, K, V, gated: {
        **{"f_proj.0.weight": (V, D), "f_proj.1.weight": (H * K, V), "b_proj.weight": (H, D)},
        **{"g_proj.0.weight": (V, D), "g_proj.1.weight": (H * V, V), "g_proj.1.bias": (H * V,)},
        **{"A_log": (H,), "dt_bias": (H * K,), "o_norm.weight": (V,)},
    },
}
MODELS = {name: Model(config) for name, config in CONFIGS.items()}
