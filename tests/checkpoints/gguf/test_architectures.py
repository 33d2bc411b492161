"""Models in GGUF files have the logits of the models of transformers that they were written from."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from checkpoints.gguf.expert_files import EXPERTS
from checkpoints.gguf.hybrid_files import HYBRIDS
from checkpoints.gguf.llama_files import LLAMAS, by_neighbours, by_parts, layer_norms, more_one, same
from checkpoints.gguf.writer import (
    Arrays,
    Values,
    adjacent,
    changed,
    llama3_factors,
    random_model,
    rms,
    tensors_of,
    write,
)
from checkpoints.importers.peers import TOLERANCE, error, logit_error
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.gguf.architectures import ARCHITECTURES
from t2r_export.checkpoints.gguf.cuts import CUTS
from t2r_export.checkpoints.gguf.header import TYPES
from t2r_export.checkpoints.importers import IMPORTERS
from t2r_export.cli import export_main, main
from t2r_runtime.errors import UserError
from t2r_runtime.session.refusals import existing_graph

SIZES = {
    "vocab_size": 31,
    "hidden_size": 24,
    "intermediate_size": 11,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "max_position_embeddings": 50,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 24,
}
YARN = {"rope_type": "yarn", "rope_theta": 300.0, "factor": 5.0, "original_max_position_embeddings": 10}
LINEAR = {"rope_type": "linear", "rope_theta": 700.0, "factor": 3.0}


def with_factors(tensors: Arrays, config: Any) -> Arrays:
    factors = llama3_factors(config.rope_parameters, config.head_dim)
    return by_neighbours(tensors, config) | {"rope_freqs.weight": factors}


@dataclass(frozen=True)
class Case:
    """A file of an architecture.

    Attributes:
        theirs: the family's name in transformers. config: what differs from SIZES.
        values: the config -> keys. convert: tensors by the file's names -> those that converters write.
        read: transformers reads the file too; in others it leaves out a key that matters here, such as the head size.
    """

    architecture: str
    theirs: str
    config: dict[str, Any] = field(default_factory=dict)
    values: Callable[[Any], Values] = rms
    convert: Callable[[Arrays, Any], Arrays] = same
    read: bool = True
    spread: float = 0.3  # of weights

    def contents(self) -> tuple[Any, Values, Arrays]:
        """The model of transformers, and the keys and tensors of its file."""
        model = random_model(self.theirs, SIZES | self.config, self.spread)
        # transformers needs a name, and for some architectures the number of tokens
        needed = {"general.name": "x", "tokenizer.ggml.tokens": [f"t{n}" for n in range(SIZES["vocab_size"])]}
        tensors = self.convert(tensors_of(model, self.architecture), model.config)
        return model, {**needed, **self.values(model.config)}, tensors

    def written(self, path: Path) -> Any:
        """Write the file. Returns: the model of transformers."""
        model, values, tensors = self.contents()
        write(path, self.architecture, values, tensors)
        return model


def scaled(kind: str) -> Callable[[Any], Values]:
    def values(config: Any) -> Values:
        rope = config.rope_parameters
        found = rms(config, **{"rope.scaling.type": kind, "rope.scaling.factor": rope["factor"]})
        if kind == "yarn":
            found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        return found

    return values


WINDOWS = {"head_dim": 10, "sliding_window": 5, "num_hidden_layers": 7}
PHI3 = {"sliding_window": 5, "pad_token_id": 0, "original_max_position_embeddings": 20}
LONG = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 500.0,
        "short_factor": [1.7, 2.0],
        "long_factor": [1.7, 2.0],
        "original_max_position_embeddings": 20,
    }
}
PARTIAL = {"rope_type": "default", "rope_theta": 300.0, "partial_rotary_factor": 0.25}
GRANITE = {"embedding_multiplier": 3.0, "residual_multiplier": 0.6, "logits_scaling": 2.0, "attention_multiplier": 0.4}


def gemma(config: Any) -> Values:
    ropes = config.rope_parameters
    theta = ropes.get("full_attention", ropes)["rope_theta"]
    return rms(config, theta) | {
        "attention.sliding_window": config.sliding_window,
        "attn_logit_softcapping": float(getattr(config, "attn_logit_softcapping", None) or 0),
        "final_logit_softcapping": float(config.final_logit_softcapping or 0),
    }


def phi3(config: Any) -> Values:
    original = config.original_max_position_embeddings
    found = {"attention.sliding_window": config.sliding_window, "rope.scaling.original_context_length": original}
    return rms(config) | found


def longrope(config: Any) -> Values:
    original = config.original_max_position_embeddings
    scale = math.sqrt(1 + math.log(config.max_position_embeddings / original) / math.log(original))
    return phi3(config) | {"rope.scaling.attn_factor": scale}


def with_long_factors(tensors: Arrays, config: Any) -> Arrays:
    rope = config.rope_parameters
    return tensors | {
        f"rope_factors_{name}.weight": np.array(rope[f"{name}_factor"], np.float32) for name in ("short", "long")
    }


def transposed(tensors: Arrays, config: Any) -> Arrays:
    names = ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight")
    return {name: tensor.T if name.endswith(names) else tensor for name, tensor in tensors.items()}


def granite(config: Any) -> Values:
    return rms(config) | {
        "embedding_scale": config.embedding_multiplier,
        "residual_scale": config.residual_multiplier,
        "attention.scale": config.attention_multiplier,
        "logit_scale": config.logits_scaling,
    }


def ssm(config: Any) -> Values:
    second = config.model_type == "mamba2"
    inner = int(config.expand * config.hidden_size) if second else config.intermediate_size
    return {
        "context_length": 50,
        "vocab_size": config.vocab_size,
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon,
        "ssm.conv_kernel": config.conv_kernel,
        "ssm.state_size": config.state_size,
        "ssm.inner_size": inner,
        "ssm.time_step_rank": config.num_heads if second else config.time_step_rank,
        **({"ssm.group_count": config.n_groups} if second else {"ssm.dt_b_c_rms": config.model_type == "falcon_mamba"}),
    }


def states(tensors: Arrays, config: Any) -> Arrays:
    found = changed(tensors, "ssm_a", lambda a: -np.exp(a))
    found = changed(found, "ssm_conv1d.weight", lambda weight: weight[:, 0])
    if config.model_type != "mamba2":
        return found
    found = changed(found, "ssm_norm.weight", lambda weight: weight.reshape(config.n_groups, -1))
    return {name: a[:, None] if name.endswith(("ssm_a", "ssm_d")) else a for name, a in found.items()}


MAMBA2 = {"num_heads": 6, "head_dim": 8, "n_groups": 2, "state_size": 5, "chunk_size": 8}
CASES = {
    "llama": Case("llama", "Llama", {"rms_norm_eps": 0.01}, convert=by_neighbours),
    "llama tied, with biases": Case(
        "llama",
        "Llama",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "head_dim": 10},
        convert=by_neighbours,
        read=False,  # transformers reads no biases of Llama
    ),
    "llama 3": Case("llama", "Llama", {"rope_parameters": LLAMA3, "head_dim": 16}, convert=with_factors, read=False),
    "llama yarn": Case(
        "llama",
        "Llama",
        {"rope_parameters": YARN, "head_dim": 16},
        values=scaled("yarn"),
        convert=by_neighbours,
        read=False,
    ),
    "llama linear": Case(
        "llama", "Llama", {"rope_parameters": LINEAR}, values=scaled("linear"), convert=by_neighbours, read=False
    ),
    "mamba": Case("mamba", "Mamba", {"state_size": 5, "time_step_rank": 3}, ssm, states),
    "falcon-mamba": Case("mamba", "FalconMamba", {"state_size": 5, "time_step_rank": 3}, ssm, states, read=False),
    "mamba2": Case("mamba2", "Mamba2", MAMBA2, ssm, states, read=False),
    "qwen2": Case("qwen2", "Qwen2", {"tie_word_embeddings": True}),
    "qwen3": Case("qwen3", "Qwen3", {"head_dim": 10}, read=False),  # transformers ignores head_dim
    "gemma": Case("gemma", "Gemma", {"head_dim": 10}, convert=more_one, read=False),
    "gemma2": Case("gemma2", "Gemma2", WINDOWS | {"query_pre_attn_scalar": 10}, gemma, more_one, read=False),
    "gemma3": Case("gemma3", "Gemma3", WINDOWS | {"query_pre_attn_scalar": 10}, gemma, more_one, read=False),
    "phi3": Case("phi3", "Phi3", PHI3, phi3, read=False),
    "phi3 longrope": Case("phi3", "Phi3", PHI3 | LONG, longrope, with_long_factors, read=False),
    "gpt2": Case("gpt2", "GPT2", {"n_inner": 17}, layer_norms, transposed, read=False),
    "gptneox": Case(
        "gptneox",
        "GPTNeoX",
        {"num_attention_heads": 3, "rope_parameters": PARTIAL, "rotary_pct": 0.25},
        layer_norms,
        by_parts,
        read=False,
    ),
    "starcoder2": Case("starcoder2", "Starcoder2", {}, layer_norms),
    "stablelm": Case(
        "stablelm", "StableLm", {"num_attention_heads": 3, "rope_parameters": PARTIAL}, layer_norms, read=False
    ),
    "stablelm parallel": Case(
        "stablelm",
        "StableLm",
        {"use_parallel_residual": True, "use_qkv_bias": True, "num_attention_heads": 3, "rope_parameters": PARTIAL},
        layer_norms,
        read=False,
    ),
    "granite": Case("granite", "Granite", GRANITE, granite, by_neighbours, read=False),
    "smollm3": Case(
        "smollm3", "SmolLM3", {"num_hidden_layers": 5, "pad_token_id": 0}, convert=by_neighbours, read=False
    ),
}
CASES |= {
    name: Case(architecture, theirs, config, keys, convert, read=False, spread=0.15 if "qwen3" in name else 0.3)
    for name, (architecture, theirs, config, keys, convert) in {**LLAMAS, **HYBRIDS, **EXPERTS}.items()
}


def section() -> str:
    page = (Path(__file__).parents[3] / "docs" / "families.md").read_text("utf-8")
    return page[page.index("## GGUF files") :]


def rows() -> dict[str, list[str]]:
    """Values of general.architecture in the docs -> families they are read as."""
    found = re.findall(r"^\| `([\w-]+)` \| (.+) \|$", section(), re.MULTILINE)
    return {name: re.findall(r"`(\w+)`", families) for name, families in found}


def test_every_architecture_has_a_case_and_a_row_of_the_docs() -> None:
    assert {case.architecture for case in CASES.values()} | {"rwkv7"} == set(ARCHITECTURES)  # test_rwkv7_files.py
    assert list(rows()) == sorted(ARCHITECTURES)
    assert {family for families in rows().values() for family in families} <= IMPORTERS.keys()
    text = " ".join(section().split())
    assert ", ".join(TYPES) + "." in text
    assert ", ".join(sorted(CUTS)) + "." in text


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_model_that_was_written(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    theirs = CASES[name].written(path)
    loaded = checkpoint.load(path)
    assert logit_error(loaded.model, theirs, 47) < TOLERANCE
    assert not loaded.notes
    assert loaded.provenance["origin"]["format"] == "gguf"
    assert loaded.provenance["origin"]["model_type"] in rows()[CASES[name].architecture]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.read])
@torch.no_grad()
def test_logits_are_those_of_transformers_reading(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    CASES[name].written(tmp_path / "model.gguf")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32).eval()
    ids = torch.randint(0, SIZES["vocab_size"], (2, 19), generator=torch.Generator().manual_seed(1))
    assert error(checkpoint.load(tmp_path / "model.gguf").model(ids), theirs(ids).logits) < 1e-4


@torch.no_grad()
def test_weights_are_the_dequantized_blocks_to_the_bit(tmp_path: Path) -> None:
    kinds = gguf.GGMLQuantizationType
    model = random_model("Llama", SIZES | {"hidden_size": 96, "intermediate_size": 64, "tie_word_embeddings": True})
    tensors = adjacent(tensors_of(model, "llama"), 6, 3)
    stored = {"blk.0.ffn_up.weight": kinds.Q4_1, "blk.1.ffn_down.weight": kinds.Q8_0, "token_embd.weight": kinds.Q5_0}
    path = write(tmp_path / "model.gguf", "llama", rms(model.config), tensors, stored)
    loaded = checkpoint.load(path)
    assert loaded.provenance["origin"]["dtypes"] == ["F32", "Q4_1", "Q5_0", "Q8_0"]
    found = loaded.model.state_dict()
    ours = ("blocks.0.parts.1.up.weight", "blocks.1.parts.1.down.weight", "embedding.weight")
    for (name, kind), weight in zip(stored.items(), ours, strict=True):
        expected = gguf.quants.dequantize(gguf.quants.quantize(tensors[name], kind), kind)
        assert found[weight].numpy().tobytes() == expected.astype("f4").tobytes()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"attention.clamp_kqv": 8.0}, "keys that are read for llama .*; received llama.attention.clamp_kqv=8.0; use"),
        ({"attention.head_count_kv": [3, 2]}, "llama.attention.head_count_kv in .* to be one integer for all layers"),
        ({"rope.scaling.attn_factor": 1.5}, "rope.scaling.attn_factor in .* to be 1 with the type none; received 1.5"),
        ({"rope.scaling.type": "dynamic"}, "llama.rope.scaling.type in .* to be none, linear or yarn"),
        ({"rope.dimension_count": 2}, "partial_rotary_factor in .* to be absent or 1"),
        ({"embedding_length": "wide"}, "llama.embedding_length in .* to be int; received 'wide'"),
        ({"attention.key_length": 0}, "head_dim in model.gguf to be"),
        ({"attention.head_count": 5}, "num_key_value_heads in model.gguf to be a divisor"),
        ({"attention.key_length": 1 << 31}, "partial_rotary_factor in .* to be absent or 1"),
        ({"nextn_predict_layers": 2}, "block_count in .* to be at most 1024, and more than nextn_predict_layers=2"),
        ({"block_count": 3}, "in .*model.gguf the 30 tensors .* missing model.layers.2"),
        ({"general.type": "adapter"}, "general.type in .* to be model; received 'adapter'"),
    ],
)
def test_other_keys_are_refused(changes: Values, message: str, tmp_path: Path) -> None:
    model = random_model("Llama", SIZES)
    tensors = by_neighbours(tensors_of(model, "llama"), model.config)
    path = write(tmp_path / "model.gguf", "llama", {**rms(model.config), **changes}, tensors)
    with pytest.raises(UserError, match=message) as caught:
        checkpoint.load(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"block_count": 1 << 31}, "granitehybrid.block_count in .* to be at most 1024, .*; received 2147483648"),
        (
            {"attention.head_count_kv": [3, 0]},
            r"head_count_kv in .* to be a value of type int for each of 3 layers; received \[3, 0",
        ),
    ],
)
def test_layers_are_bounded_before_they_are_counted(changes: Values, message: str, tmp_path: Path) -> None:
    case = CASES["granitehybrid"]
    broken = replace(case, values=lambda config: {**case.values(config), **changes})
    broken.written(tmp_path / "model.gguf")
    with pytest.raises(UserError, match=message):
        checkpoint.load(tmp_path / "model.gguf")


def test_layers_of_jamba_are_periodic(tmp_path: Path) -> None:
    case = CASES["jamba"]
    replace(case, values=lambda config: {**case.values(config), "attention.head_count_kv": [0, 3, 0, 3, 3]}).written(
        tmp_path / "model.gguf"
    )
    with pytest.raises(UserError, match=r"a model with attention in every nth layer; received \[1, 3, 4\]"):
        checkpoint.load(tmp_path / "model.gguf")


def test_pieces_of_other_widths_are_refused(tmp_path: Path) -> None:
    case = CASES["granitehybrid"]

    def narrow(tensors: Arrays, config: Any) -> Arrays:
        return changed(case.convert(tensors, config), "blk.1.ffn_up.weight", lambda up: up[:, :8])

    replace(case, convert=narrow).written(tmp_path / "model.gguf")
    with pytest.raises(UserError, match="rows of one length in all pieces of model.layers.1.shared_mlp.input_linear"):
        checkpoint.load(tmp_path / "model.gguf")


def test_an_unread_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", "llamma", {}, {})
    with pytest.raises(
        UserError, match=r"general.architecture in .* to be one of .*llama.*; received 'llamma'; did you"
    ):
        checkpoint.load(path)


def test_parts_of_a_file_are_one_model(tmp_path: Path) -> None:
    model = random_model("Llama", SIZES)
    tensors = by_neighbours(tensors_of(model, "llama"), model.config)
    write(tmp_path / "m.gguf", "llama", rms(model.config), tensors, split_max_tensors=8)
    first = tmp_path / "m-00001-of-00003.gguf"
    assert len(list(tmp_path.iterdir())) == 3
    loaded = checkpoint.load(first)
    assert logit_error(loaded.model, model, 47) < TOLERANCE
    assert sorted(loaded.provenance["origin"]["files"]) == [f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    with pytest.raises(UserError, match="the first of the 3 parts, by its name NAME-00001-of-00003.gguf"):
        checkpoint.load(tmp_path / "m-00002-of-00003.gguf")
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    with pytest.raises(UserError, match="m-00003-of-00003.gguf"):
        checkpoint.load(first)


def test_the_command_line_exports_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.gguf"
    CASES["llama"].written(path)
    assert main(["inspect", str(path)]) == 0
    assert "softmax" in capsys.readouterr().out
    assert export_main([str(path), str(tmp_path / "out.onnx"), "--context", "20"]) == 0
    assert (tmp_path / "out.onnx").is_file()
    path.write_bytes(path.read_bytes()[:-1])
    capsys.readouterr()
    assert export_main([str(path), str(tmp_path / "other.onnx"), "--context", "20"]) == 2
    error = capsys.readouterr().err
    assert "within the" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "other.onnx").exists()
    with pytest.raises(UserError, match="an exported graph; received the checkpoint"):
        existing_graph(path)
