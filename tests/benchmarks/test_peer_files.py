"""Hugging Face folders and GGUF files for other engines."""

from __future__ import annotations

import dataclasses
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import small
from comparison.peer_files import write_folder, write_gguf
from comparison.sizes import softmax_model
from t2r_export.checkpoints import checkpoint
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.model import ModelConfig
from t2r_export.model.transformer import Transformer
from t2r_runtime.errors import UserError

GPT2 = dataclasses.replace(small.GPT2.with_attention(kv_heads=small.H), layers=(SoftmaxConfig(),) * 2)
LLAMA = dataclasses.replace(small.LLAMA, layers=(SoftmaxConfig(),) * 2)


def test_folder_equals_model(tiny: ModelConfig, tmp_path: Path) -> None:
    model = softmax_model("tiny")
    loaded = checkpoint.load(write_folder(model, tmp_path / "folder"))
    ids = small.ids(vocabulary=tiny.vocab_size)
    with torch.no_grad():
        assert torch.equal(loaded.model(ids), model(ids))


def test_folder_needs_llama_family(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="of the Llama family for a Hugging Face folder; received learned"):
        write_folder(small.model(GPT2), tmp_path / "folder")


class Writer:
    """Stands for gguf.GGUFWriter: records its inputs."""

    made: Writer

    def __init__(self, path: Path, architecture: str) -> None:
        self.path, self.architecture = path, architecture
        self.values: dict[str, Any] = {}
        self.tensors: dict[str, tuple[tuple[int, ...], object]] = {}
        Writer.made = self

    def add_tensor(self, name: str, array: np.ndarray, raw_dtype: object = None) -> None:
        self.tensors[name] = array, raw_dtype

    def __getattr__(self, name: str) -> Any:
        return lambda *value: self.values.__setitem__(name, value)


@pytest.fixture
def gguf(monkeypatch: pytest.MonkeyPatch) -> type[Writer]:
    module: Any = types.ModuleType("gguf")
    module.GGUFWriter = Writer
    module.GGMLQuantizationType = {"Q4_0": "four bits"}
    module.TokenType = types.SimpleNamespace(NORMAL=1)
    module.quants = types.SimpleNamespace(quantize=lambda array, kind: array)
    monkeypatch.setitem(sys.modules, "gguf", module)
    return Writer


def elements(model: Transformer) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("config, architecture", [(GPT2, "gpt2"), (LLAMA, "llama")])
def test_gguf_has_every_weight(config: ModelConfig, architecture: str, gguf: type[Writer], tmp_path: Path) -> None:
    model = small.model(config)
    write_gguf(model, tmp_path / "model.gguf", "Q4_0")
    made = gguf.made
    assert made.architecture == architecture
    assert sum(array.size for array, _ in made.tensors.values()) == elements(model)
    kinds = {array.ndim: set() for array, _ in made.tensors.values()}
    for name, (array, kind) in made.tensors.items():
        kinds[array.ndim] |= {kind} if name != "position_embd.weight" else set()
    assert kinds == {1: {None}, 2: {"four bits"}}
    assert made.values["write_tensors_to_file"] == ()


def test_gguf_with_words(gguf: type[Writer], tmp_path: Path) -> None:
    write_gguf(small.model(LLAMA), tmp_path / "model.gguf", "Q4_0", words=True)
    [words], [kinds] = (gguf.made.values[f"add_token_{name}"] for name in ("list", "types"))
    assert (words[:2], len(set(words)), kinds) == (["<0>", "<1>"], small.VOCABULARY, [1] * small.VOCABULARY)


def test_gguf_rotary_row_order(gguf: type[Writer], tmp_path: Path) -> None:
    model = small.model(LLAMA)
    write_gguf(model, tmp_path / "model.gguf", "Q4_0")
    ours = model.blocks[1].mixers[0].q.weight.detach().numpy().reshape(small.H, small.V, small.WIDTH)
    theirs = gguf.made.tensors["blk.1.attn_q.weight"][0].reshape(small.H, small.V, small.WIDTH)
    assert np.array_equal(theirs[:, ::2], ours[:, : small.V // 2])
    assert np.array_equal(theirs[:, 1::2], ours[:, small.V // 2 :])


def test_gguf_of_other_family_is_refused(gguf: type[Writer], tmp_path: Path) -> None:
    config = dataclasses.replace(GPT2, position="none", max_positions=None)
    with pytest.raises(UserError, match="of the Llama or GPT-2 family for GGUF; received none"):
        write_gguf(small.model(config), tmp_path / "model.gguf", "Q4_0")
