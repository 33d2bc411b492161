"""Draft heads of Qwen3.5 and Qwen3-Next, `mtp.*` in their folders, against their formula in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import linear, silu

import folders
import small
from checkpoints.importers.recurrent_models import FAMILIES
from cli_models import Output, run
from families import reference
from t2r_export.checkpoints import checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.export import export
from t2r_runtime import Decoder
from t2r_runtime.errors import UserError

NAMES = {"qwen3.5": {}, "qwen3.5 biases, tied": {}, "qwen3-next": {"mlp_only_layers": []}, "qwen3.5-moe": {}}
WIDTH, HEADS, KEY_HEADS, HEAD, CHOSEN = 24, 6, 3, 8, 3
TOLERANCE = 1e-5


def write(folder: Path, name: str = "qwen3.5") -> dict[str, Tensor]:
    """A random model's folder with a draft head: a full-attention layer and four more tensors. Returns its tensors."""
    family = FAMILIES[name].changed(**NAMES[name])
    reference(family).save_pretrained(folder)
    trunk, random = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(4)
    layer = f"model.layers.{family.sizes['layer_types'].index('full_attention')}."
    shapes = {key.replace(layer, "mtp.layers.0."): x.shape for key, x in trunk.items() if key.startswith(layer)}
    norms = ("mtp.norm.weight", "mtp.pre_fc_norm_embedding.weight", "mtp.pre_fc_norm_hidden.weight")
    shapes |= {"mtp.fc.weight": torch.Size((WIDTH, 2 * WIDTH)), **dict.fromkeys(norms, torch.Size((WIDTH,)))}
    head = {key: 0.3 * torch.randn(shape, generator=random) for key, shape in shapes.items()}
    folders.change_tensors(folder, **head)
    return {**trunk, **head}


class Formula:
    """Multi-token prediction with a full-attention layer, over whole texts, in float64."""

    def __init__(self, tensors: dict[str, Tensor], sizes: dict[str, Any]) -> None:
        self.tensors = {key: value.double() for key, value in tensors.items()}
        self.eps, rope = sizes["rms_norm_eps"], sizes["rope_parameters"]
        turned = int(HEAD * rope["partial_rotary_factor"])
        self.frequencies = rope["rope_theta"] ** (-torch.arange(0, turned, 2, dtype=torch.float64) / turned)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[f"mtp.{name}.weight"]

    def norm(self, x: Tensor, name: str) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * (1 + self[name])

    def turn(self, x: Tensor) -> Tensor:
        """x (T, heads, HEAD): the first dimensions are rotated in halves."""
        angles = torch.arange(len(x), dtype=torch.float64)[:, None, None] * self.frequencies
        size = len(self.frequencies)
        a, b, rest = x.split([size, size, HEAD - 2 * size], -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin(), rest], -1)

    def project(self, x: Tensor, name: str) -> Tensor:
        return linear(x, self[name], self.tensors.get(f"mtp.{name}.bias"))

    def attention(self, x: Tensor) -> Tensor:
        q, gate = self.project(x, "layers.0.self_attn.q_proj").unflatten(-1, (HEADS, 2, HEAD)).unbind(-2)
        k, v = (self.project(x, f"layers.0.self_attn.{n}_proj").unflatten(-1, (KEY_HEADS, HEAD)) for n in "kv")
        q = self.turn(self.norm(q, "layers.0.self_attn.q_norm"))
        k = self.turn(self.norm(k, "layers.0.self_attn.k_norm"))
        k, v = (each.repeat_interleave(HEADS // KEY_HEADS, 1) for each in (k, v))
        scores = torch.einsum("thd,shd->hts", q, k) / HEAD**0.5
        later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        mixed = torch.einsum("hts,shd->thd", scores.masked_fill(later, -torch.inf).softmax(-1), v)
        return self.project((mixed * gate.sigmoid()).flatten(1), "layers.0.self_attn.o_proj")

    def gated(self, x: Tensor, name: str) -> Tensor:
        up = silu(linear(x, self[f"{name}.gate_proj"])) * linear(x, self[f"{name}.up_proj"])
        return linear(up, self[f"{name}.down_proj"])

    def feed_forward(self, x: Tensor) -> Tensor:
        mlp = "layers.0.mlp"
        if f"mtp.{mlp}.gate.weight" not in self.tensors:
            return self.gated(x, mlp)
        found = linear(x, self[f"{mlp}.shared_expert_gate"]).sigmoid() * self.gated(x, f"{mlp}.shared_expert")
        odds, chosen = linear(x, self[f"{mlp}.gate"]).softmax(-1).topk(CHOSEN)
        odds = odds / odds.sum(-1, keepdim=True)
        for row, (weights, numbers) in enumerate(zip(odds, chosen.tolist(), strict=True)):
            for weight, number in zip(weights, numbers, strict=True):
                found[row] += weight * self.gated(x[row], f"{mlp}.experts.{number}")
        return found

    def __call__(self, tokens: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens (T,), and what the trunk's head read before each (T, D) -> logits (T, V), and what this head reads."""
        embedding = self.tensors["model.embed_tokens.weight"]
        each = [self.norm(embedding[tokens], "pre_fc_norm_embedding"), self.norm(hidden, "pre_fc_norm_hidden")]
        x = linear(torch.cat(each, -1), self["fc"])
        x = x + self.attention(self.norm(x, "layers.0.input_layernorm"))
        x = x + self.feed_forward(self.norm(x, "layers.0.post_attention_layernorm"))
        x = self.norm(x, "norm")
        return linear(x, self.tensors.get("lm_head.weight", embedding)), x


@pytest.mark.parametrize("name", NAMES)
def test_a_head_is_its_formula(name: str, tmp_path: Path) -> None:
    """With vectors from outside, then with its own; a text that began with other vectors."""
    tensors = write(tmp_path, name)
    loaded = checkpoint.load(tmp_path, draft_head=True)
    assert loaded.sha256 == checkpoint.load(tmp_path).sha256
    export(loaded, tmp_path / "head.onnx", ExportConfig(top_k=2))
    decoder, formula = Decoder(tmp_path / "head.onnx", threads=1), Formula(tensors, FAMILIES[name].sizes)
    generator = torch.Generator().manual_seed(9)
    tokens = torch.randint(0, 31, (17,), generator=generator)
    hidden = list(torch.randn(13, WIDTH, generator=generator).unbind())
    for n, token in enumerate(tokens.tolist()):
        if n < len(hidden):
            decoder.set_state({**decoder.state(), "hidden": hidden[n][None].numpy()})
        else:
            hidden.append(torch.from_numpy(decoder.state()["hidden"][0]))
        logits = decoder.step(token)
        expected, own = (x[-1].numpy() for x in formula(tokens[: n + 1], torch.stack(hidden[: n + 1]).double()))
        np.testing.assert_allclose(logits[0], expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())
        np.testing.assert_allclose(decoder.state()["hidden"][0], own, rtol=0, atol=TOLERANCE * np.abs(own).max())
    assert np.std(logits) > 0.1


def test_a_head_of_another_form(tmp_path: Path) -> None:
    write(tmp_path)
    loaded = checkpoint.load(tmp_path, draft_head=True)
    export(loaded, tmp_path / "head.onnx", ExportConfig(context="9:slide", batch=1, state_layout="packed"))
    assert small.proof(loaded, tmp_path / "head.onnx", steps=40).passed


def test_the_command_line(capsys: Output, tmp_path: Path) -> None:
    write(tmp_path)
    graph = tmp_path / "head.onnx"
    run(capsys, "export", tmp_path, graph, "--draft-head")
    out, _ = run(capsys, "verify", tmp_path, graph, "--steps", 20)
    assert "chained steps" in out
    for given in (["--prefill"], ["--output-hidden"], ["--format", "genai"]):
        _, err = run(capsys, "export", tmp_path, graph, "--draft-head", *given, code=2)
        assert "expected the step graph alone of a draft head" in err and f"one of {' '.join(given)}" in err


def test_models_without_one(capsys: Output, tmp_path: Path) -> None:
    head = write(tmp_path)
    folders.change_tensors(tmp_path, **{name: None for name in head if name.startswith("mtp.")})
    _, err = run(capsys, "export", tmp_path, tmp_path / "head.onnx", "--draft-head", code=2)
    assert f"expected a draft head (tensors mtp.*) in {tmp_path}; received none" in err
    folders.change_config(tmp_path, model_type="qwen3")
    _, err = run(capsys, "export", tmp_path, tmp_path / "head.onnx", "--draft-head", code=2)
    assert "expected a family with draft heads that can be read (Qwen3.5, Qwen3-Next); received qwen3" in err
    checkpoint.save(tmp_path / "model.pt", small.model(), None, {})
    with pytest.raises(UserError, match="a Hugging Face folder, to read its draft head; received .*model.pt"):
        checkpoint.load(tmp_path / "model.pt", draft_head=True)
