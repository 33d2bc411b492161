"""Models of families in transformers are saved for its own classes and load unchanged."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import small
import texts
from checkpoints.importers.peers import logit_error
from checkpoints.importers.softmax_models import FAMILIES as SOFTMAX
from checkpoints.importers.softmax_models import GQA, YARN
from families import Family
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.hub import save_transformers
from t2r_export.checkpoints.hub.native import CLASSES
from t2r_export.checkpoints.importers import IMPORTERS
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.scalings import NtkScaling
from t2r_export.convert import convert

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SAME = ("gpt-neox", "gpt-neox one by one", "smollm3", "smollm3 windows", "olmo2 biases", "arcee", "phi3", "phi3 window")
SAME += ("stablelm", "stablelm beside", "starcoder2", "starcoder2 window")
FAMILIES = {
    **{name: SOFTMAX[name] for name in SAME},
    "llama": Family("Llama", {**GQA, "head_dim": 10, "attention_bias": True, "rope_parameters": YARN}),
    "llama3": Family(
        "Llama",
        {**GQA, "rope_parameters": {**LLAMA3, "original_max_position_embeddings": 20}, "tie_word_embeddings": True},
    ),
    "qwen2": Family("Qwen2", {**GQA, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": Family("Qwen3", {**GQA, "head_dim": 10}),
    "mistral": Family("Mistral", {**GQA, "sliding_window": 5}),
    "gpt2": Family("GPT2", {"vocab_size": 29, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_inner": 17}),
    "lfm2": Family(
        "Lfm2",
        {
            **GQA,
            "layer_types": ["conv", "full_attention", "conv"],
            "conv_bias": True,
            "block_auto_adjust_ff_dim": False,
        },
    ),
}


def test_every_class_is_tried() -> None:
    assert {name.split()[0].replace("-", "_") for name in FAMILIES} == {*CLASSES, "llama3"}


def test_the_page_lists_the_families() -> None:
    page = (Path(__file__).parents[3] / "docs" / "transformers.md").read_text(encoding="utf-8")
    assert f"one of {', '.join(f'`{family}`' for family in sorted(CLASSES))} |" in page


def test_no_family_multiplies_stored_weights() -> None:
    """Saving would have to divide them."""
    from t2r_export.checkpoints.importers.base import Importer

    default = Importer.__dataclass_fields__["factors"].default
    assert all(IMPORTERS[family].factors is default for family in CLASSES)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", FAMILIES)
def test_the_class_of_the_family_computes_it(name: str, tmp_path: Path) -> None:
    theirs, ours = FAMILIES[name].imported(tmp_path / "theirs")
    saved = save_transformers(ours, tmp_path / "ours")
    assert (saved.architecture, saved.code) == (type(theirs).__name__, False)
    assert not (tmp_path / "ours" / "modeling_t2r.py").exists()
    back, report = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    assert logit_error(ours.model, back.eval(), 40) < 1e-5
    again = checkpoint.load(tmp_path / "ours")
    assert (again.config, again.notes) == (ours.config, ())
    torch.testing.assert_close(again.model.state_dict(), ours.model.state_dict(), rtol=0, atol=0)


def test_a_model_of_no_origin_is_of_the_first_family_that_it_fits(tmp_path: Path) -> None:
    config = small.with_layers(small.LLAMA, SoftmaxConfig(), SoftmaxConfig(), width=12)
    made = small.checkpoint(config)
    assert save_transformers(made, tmp_path / "f").architecture == "LlamaForCausalLM"
    assert checkpoint.load(tmp_path / "f").config == made.config
    made = small.checkpoint(dataclasses.replace(config, width=10))  # not a multiple of the 6 heads
    assert save_transformers(made, tmp_path / "g").architecture == "T2RForCausalLM"


@pytest.mark.parametrize("change", ["scaling", "softcap", "mixer"])
def test_what_no_family_is_has_our_file(change: str, tmp_path: Path) -> None:
    heads: dict[str, Any] = {
        "scaling": {"positions": RotaryConfig(500.0, NtkScaling(4.0))},
        "softcap": {"softcap": 3.0},
        "mixer": {},
    }[change]
    config = small.with_layers(small.LLAMA.with_attention(**heads), SoftmaxConfig(), width=12)
    model = small.model(config)
    model = convert(model, small.linear(6)) if change == "mixer" else model
    saved = save_transformers(checkpoint.made(model, None, {}), tmp_path / "f")
    assert (saved.architecture, saved.code) == ("T2RForCausalLM", True)


def test_a_chat_template_comes_back(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.role }}{{ eos_token }}{% endfor %}"
    chat = {"template": template, "tokens": {"eos_token": texts.LETTERS[2]}}
    config = small.with_layers(small.LLAMA, SoftmaxConfig(), width=12, vocab_size=len(texts.LETTERS))
    made = checkpoint.made(small.model(config), texts.tokenizer(), {"origin": {"chat_template": chat}})
    save_transformers(made, tmp_path / "f")
    assert checkpoint.load(tmp_path / "f").chat_template == chat
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "f")
    shown = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    assert shown == f"user{texts.LETTERS[2]}"
    assert json.loads((tmp_path / "f" / "tokenizer_config.json").read_text())["eos_token"] == texts.LETTERS[2]
