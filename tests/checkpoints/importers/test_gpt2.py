"""GPT-2 folders: the arithmetic of a trained model and of transformers, and what is refused."""

from __future__ import annotations

import base64
import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import folders
from checkpoints.importers.peers import TOLERANCE, logit_error
from t2r_export.checkpoints import checkpoint
from t2r_export.model.torch_ops import TorchOps
from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError

SORT = "checkpoints/gpt-nano-sort"


@pytest.fixture(scope="module")
def sorter(data: Path) -> Transformer:
    return checkpoint.load(data / SORT).model


@pytest.fixture(scope="module")
def activations(data: Path) -> dict[str, Tensor]:
    stored = json.loads((data / SORT / "activations.json").read_text())
    del stored["config"]
    return {
        name: torch.frombuffer(bytearray(base64.b64decode(t["data"])), dtype=torch.float32).view(t["shape"])
        for name, t in stored.items()
    }


class Recorder(TorchOps):
    """Records input ("<name") and output of operators by the name of their weight, and activations and attention."""

    def __init__(self, model: Transformer, tokens: int | None) -> None:
        super().__init__(tokens, model.embedding.weight)
        self.names = {id(weight): name.removesuffix(".weight") for name, weight in model.named_parameters()}
        self.values: dict[str, Tensor] = {}
        self.activations: list[Tensor] = []
        self.attention: list[tuple[Tensor, Tensor]] = []  # scores and weights; -inf and 0 at future positions

    def kept(self, weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
        name = self.names[id(weight)]
        self.values["<" + name], self.values[name] = x, y
        return y

    def embedding(self, ids: Tensor, table: Tensor) -> Tensor:
        return self.kept(table, ids, super().embedding(ids, table))

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.kept(weight, x, super().linear(x, weight, bias))

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return self.kept(weight, x, super().layer_norm(x, weight, bias, eps))

    def gelu(self, x: Tensor, tanh: bool) -> Tensor:
        self.activations.append(super().gelu(x, tanh))
        return self.activations[-1]

    def causal_attention(self, q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float | None = None) -> Tensor:
        T, total = q.shape[2], k.shape[2]
        assert (q.shape[1], softcap) == (k.shape[1], None)
        future = torch.ones(T, total, dtype=torch.bool).triu(total - T + 1)
        scores = (q @ k.mT * scale).masked_fill(future, -torch.inf)
        self.attention.append((scores, scores.softmax(-1)))
        o = super().causal_attention(q, k, v, scale, softcap)
        torch.testing.assert_close(o, scores.softmax(-1) @ v, rtol=0, atol=TOLERANCE)
        return o


@torch.no_grad()
def sequence_values(model: Transformer, ids: Tensor, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """Intermediate values of a sequence (B, T), (B, T, ·) each, by name in the other implementation."""
    B, T = ids.shape
    ops = Recorder(model, T)
    monkeypatch.setattr(model, "ops", lambda tokens: ops)
    traces = model.traces(ids)
    logits = model.logits_of(traces[-1].output).view(B, T, -1)
    m = {name: x.reshape(B, T, -1) for name, x in ops.values.items()}
    blocks = [trace.output.view(B, T, -1) for trace in traces]
    q, k, v = (m[f"blocks.0.parts.0.{part}"] for part in "qkv")

    def heads(x: Tensor) -> Tensor:
        return x.view(B, T, 3, 16).transpose(1, 2)

    return {
        "tok_emb": m["embedding"],
        "pos_emb": model.positions.table.weight[:T].unsqueeze(0),
        "x": traces[0].input.view(B, T, -1),
        "ln1": m["blocks.0.norms.0"],
        "qkv": torch.cat([q, k, v], dim=-1),
        "q": heads(q),
        "k": heads(k),
        "v": heads(v),
        "att": ops.attention[0][0],
        "attSm": ops.attention[0][1],
        "y": m["<blocks.0.parts.0.o"],
        "yProj": m["blocks.0.parts.0.o"],
        "attnResid": m["<blocks.0.norms.1"],
        "ln2": m["blocks.0.norms.1"],
        "fc": m["blocks.0.parts.1.up"],
        "gelu": ops.activations[0].view(B, T, -1),
        "mlp": m["blocks.0.parts.1.down"],
        "mlpResid": blocks[0],
        **{f"block{n}": x for n, x in enumerate(blocks)},
        "ln_f": m["norm"],
        "lm_head": logits,
        "probs": logits.softmax(-1),
    }


@torch.no_grad()
def step_values(model: Transformer, ids: Tensor) -> dict[str, Tensor]:
    """The first block's scores, attention weights and activations, by steps; -inf and 0 at future positions."""
    B, T = ids.shape
    attention, dense = model.config.layers[0].parts
    H, ffn = attention.heads, dense.size  # type: ignore[attr-defined]
    values = {"att": torch.full((B, H, T, T), -torch.inf), "attSm": torch.zeros(B, H, T, T)}
    values |= {"fc": torch.zeros(B, T, ffn), "gelu": torch.zeros(B, T, ffn)}
    states = model.init_state(B)
    for t in range(T):
        ops = Recorder(model, None)
        _, states = model.run(ids[:, t], states, ops)
        for name, part in zip(("att", "attSm"), ops.attention[0], strict=True):  # (B, H, 1, t + 1)
            values[name][:, :, t, : t + 1] = part.squeeze(2)
        values["fc"][:, t], values["gelu"][:, t] = ops.values["blocks.0.parts.1.up"], ops.activations[0]
    return values


def test_every_intermediate_of_the_trained_model_agrees(
    sorter: Transformer, activations: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = activations.pop("idx").long()
    by_steps = step_values(sorter, ids)
    ours = sequence_values(sorter, ids, monkeypatch)
    assert set(by_steps) < set(ours) == set(activations)
    for found in (ours, by_steps):
        for name, value in found.items():
            torch.testing.assert_close(
                value, activations[name], rtol=0, atol=TOLERANCE, msg=lambda text, n=name: f"{n}: {text}"
            )


@torch.no_grad()
def test_the_trained_model_sorts_all_729_inputs(sorter: Transformer) -> None:
    inputs = torch.tensor(list(product(range(3), repeat=6)))
    states = sorter.init_state(len(inputs))
    logits, states = sorter.prefill(inputs, states)
    tokens = [logits[:, -1].argmax(-1)]
    for _ in range(5):
        logits, states = sorter.step(tokens[-1], states)
        tokens.append(logits.argmax(-1))
    assert torch.equal(torch.stack(tokens, dim=1), inputs.sort(dim=1).values)


LENGTH = 23
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "inner size and relu": {"n_inner": 17, "activation_function": "relu"},
    "exact gelu": {"activation_function": "gelu"},
    "exact gelu in Python": {"activation_function": "gelu_python"},
    "attention in another order": {"reorder_and_upcast_attn": True},
    "gelu_pytorch_tanh": {"activation_function": "gelu_pytorch_tanh"},
    "silu": {"activation_function": "silu"},
    "untied head": {"tie_word_embeddings": False},
    "another epsilon": {"layer_norm_epsilon": 0.1},
}


def reference(**changes: Any) -> Any:
    """A GPT-2 of transformers with weights large enough that each of them matters."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 29, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 23}
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**(sizes | {"bos_token_id": 1, "eos_token_id": 2} | changes))).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, mean=0.1, std=0.3)
    return model


@pytest.mark.parametrize("name", CONFIGS)
def test_random_models_agree_with_transformers(name: str, tmp_path: Path) -> None:
    theirs = reference(**CONFIGS[name])
    theirs.save_pretrained(tmp_path)
    assert logit_error(checkpoint.load(tmp_path).model, theirs, LENGTH) < TOLERANCE


def test_the_comparison_with_transformers_sees_a_wrong_activation(tmp_path: Path) -> None:
    theirs = reference()
    theirs.save_pretrained(tmp_path)
    folders.change_config(tmp_path, activation_function="silu")
    assert logit_error(checkpoint.load(tmp_path).model, theirs, LENGTH) > 1e-3


def test_a_bare_backbone_has_names_without_prefix(tmp_path: Path) -> None:
    theirs = reference()
    theirs.transformer.save_pretrained(tmp_path)
    assert logit_error(checkpoint.load(tmp_path).model, theirs, LENGTH) < TOLERANCE


def test_masks_that_old_versions_stored_are_passed_over(tmp_path: Path) -> None:
    folder = folders.write_gpt2(tmp_path)
    expected = checkpoint.load(folder).model.state_dict()
    mask = torch.ones(1, 1, 23, 23)
    folders.change_tensors(folder, transformer__h__0__attn__bias=mask, transformer__h__1__attn__masked_bias=-mask)
    torch.testing.assert_close(checkpoint.load(folder).model.state_dict(), expected, rtol=0, atol=0)


def test_the_head_is_tied_unless_the_config_says_otherwise(tmp_path: Path) -> None:
    model = checkpoint.load(folders.write_gpt2(tmp_path, tie_word_embeddings=None)).model
    assert model.head.weight is model.embedding.weight


def test_an_unknown_activation_lists_the_known_ones(tmp_path: Path) -> None:
    folder = folders.write_gpt2(tmp_path, activation_function="laplace")
    with pytest.raises(
        UserError, match='activation_function in config.json to be one of relu, gelu.*; received "laplace"'
    ):
        checkpoint.load(folder)


def test_heads_that_do_not_divide_the_width_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="n_head in config.json to be a divisor of n_embd=12; received 5"):
        checkpoint.load(folders.write_gpt2(tmp_path, n_head=5))


@pytest.mark.parametrize("value", [0, -3, 2.5, True, "12"])
@pytest.mark.parametrize("key", ["n_embd", "n_head", "n_layer", "n_positions", "vocab_size"])
def test_a_size_that_is_no_size_is_refused_by_name(key: str, value: Any, tmp_path: Path) -> None:
    folder = folders.write_gpt2(tmp_path, **{key: value})
    with pytest.raises(UserError, match=f"expected {key} in config.json to be an integer of at least 1; received"):
        checkpoint.load(folder)


ALIASES = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
ALIASES["n_positions"] = "max_position_embeddings"


def test_the_other_spelling_of_a_key_is_read(tmp_path: Path) -> None:
    expected = checkpoint.load(folders.write_gpt2(tmp_path))
    for key, alias in ALIASES.items():
        folders.change_config(tmp_path, **{alias: folders.GPT2[key]})
        assert checkpoint.load(tmp_path).config == expected.config
        folders.change_config(tmp_path, **{key: None})
        found = checkpoint.load(tmp_path)
        assert (found.config, found.notes) == (expected.config, ())


@pytest.mark.parametrize("key", ALIASES)
def test_two_spellings_that_contradict_each_other_are_refused(key: str, tmp_path: Path) -> None:
    folder = folders.write_gpt2(tmp_path, **{ALIASES[key]: 6})
    message = f"expected {key} and {ALIASES[key]} in config.json to be equal, .*; received {folders.GPT2[key]} and 6"
    with pytest.raises(UserError, match=message):
        checkpoint.load(folder)


def test_the_tokens_that_transformers_gives_a_small_model_are_passed_over(tmp_path: Path) -> None:
    theirs = reference(bos_token_id=50256, eos_token_id=50256)
    theirs.save_pretrained(tmp_path)
    found = checkpoint.load(tmp_path)
    assert (found.config.bos_token, found.config.eos_tokens) == (None, ())
    assert "eos_token_id in generation_config.json is not among the 29 tokens and is passed over" in found.notes
    assert logit_error(found.model, theirs, LENGTH) < TOLERANCE
