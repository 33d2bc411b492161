"""Rotary positions of config.json files, compared with the frequencies of transformers."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor

from t2r_export.checkpoints.importers import IMPORTERS
from t2r_export.checkpoints.importers.base import Fields
from t2r_export.checkpoints.importers.keys import keys
from t2r_export.checkpoints.importers.rotary import PARTIAL, ROTARY, rotary
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.scalings import NtkScaling, ProportionalScaling
from t2r_export.model.positions.base import build_positions
from t2r_export.model.positions.rotary import Rotary, rotary_frequencies
from t2r_export.model.torch_ops import TorchOps
from t2r_runtime.errors import UserError

HEAD = 12


def read(config: dict[str, Any], partial: float | None = None) -> RotaryConfig:
    """Reads a config of a family with partial rotation (`partial`: its default share), or without (None)."""
    table = ROTARY if partial is None else PARTIAL
    aliases = {"rotary_pct": "partial_rotary_factor"} if partial is not None else {}
    return rotary(Fields(config, "config.json", keys(read=table, aliases=aliases)), HEAD, partial)


@pytest.mark.parametrize(
    "config, size",
    [
        ({"rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 0.5}}, 6),
        ({"rope_parameters": {"rope_theta": 50.0}, "partial_rotary_factor": 0.4}, 4),  # int(4.8)
        ({"rope_theta": 50.0, "rotary_pct": 0.5}, 6),
        ({"rope_theta": 50.0}, 3 * 4 // 6),  # the family's default share
        ({"rope_theta": 50.0, "partial_rotary_factor": 1}, None),
        ({"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 50.0}, "partial_rotary_factor": 0.4}, 6),
    ],
)
def test_a_part_of_each_head(config: dict[str, Any], size: int | None) -> None:
    assert read(config, partial=0.2) == RotaryConfig(theta=50.0, size=size)


def test_frequencies_of_a_part_are_those_of_transformers() -> None:
    from transformers import GPTNeoXConfig
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding

    theirs = GPTNeoXConfig(hidden_size=4 * HEAD, num_attention_heads=4, rotary_pct=0.5, rotary_emb_base=70.0)
    ours = read({"rope_parameters": theirs.rope_parameters}, partial=0.25)
    assert ours.size == 6
    assert torch.equal(rotary_frequencies(ours, 6), GPTNeoXRotaryEmbedding(theirs).inv_freq)


@pytest.mark.parametrize("family, name", [("cwm", "Cwm"), ("ministral3", "Ministral3")])
@pytest.mark.parametrize(
    "said",
    [{}, {"rope_theta": 50.0}, {"rope_scaling": {}}, {"rope_scaling": {"rope_type": "linear", "factor": 3.0}}]
    + [{"rope_parameters": {}}, {"rope_parameters": {"rope_theta": 50.0}}],
)
def test_parameters_that_a_class_assumes_are_those_of_transformers(
    family: str, name: str, said: dict[str, Any]
) -> None:
    import transformers

    importer = IMPORTERS[family]
    sizes = {"hidden_size": 4 * HEAD, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": HEAD}
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    theirs = getattr(transformers, f"{name}Config")(**sizes, **said)
    frequencies = getattr(module, f"{name}RotaryEmbedding")(theirs).inv_freq
    if family == "ministral3" and "llama_4_scaling_beta" not in theirs.rope_parameters:
        with pytest.raises(UserError, match="llama_4_scaling_beta|original_max_position_embeddings"):
            importer.config(importer.fields({**sizes, **said}, "config.json"))
        return
    ours = importer.config(importer.fields({**sizes, **said}, "config.json")).heads[0].rotary
    assert ours is not None
    torch.testing.assert_close(rotary_frequencies(ours, HEAD), frequencies, rtol=1e-6, atol=0)


YARN = {"rope_type": "yarn", "rope_theta": 700.0, "factor": 3.0, "original_max_position_embeddings": 20}
LONG = {"rope_type": "longrope", "rope_theta": 700.0, "original_max_position_embeddings": 20}
TYPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "rope_theta": 700.0, "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 5e3,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 24,
    },
    "longrope": LONG,
    "longrope, a factor": {**LONG, "factor": 9.0},
    "longrope, a factor of its own": {**LONG, "attention_factor": 0.7},
    "longrope, of the trained length": {"rope_type": "longrope", "rope_theta": 700.0},
    "yarn": YARN,
    "yarn, not truncated": {**YARN, "truncate": False},
    "yarn, other turns": {**YARN, "beta_fast": 9.0, "beta_slow": 2.0},
    "yarn, null turns": {**YARN, "beta_fast": None, "beta_slow": None},
    "yarn, a factor of its own": {**YARN, "attention_factor": 0.7},
    "yarn, mscale": {**YARN, "mscale": 0.707, "mscale_all_dim": 1.3},
    "yarn, mscale alone": {**YARN, "mscale": 0.707},
    "yarn, no factor": {**YARN, "factor": None},
    "yarn, of the trained length": {name: value for name, value in YARN.items() if not name.startswith("original")},
    "yarn, a long text": {**YARN, "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32768},
}


def of_size(rope: dict[str, Any], head: int) -> dict[str, Any]:
    """Adds longrope's factors for this head size."""
    factors = [1 + 0.1 * pair for pair in range(head // 2)]
    return {**rope, "short_factor": factors, "long_factor": factors} if rope["rope_type"] == "longrope" else rope


def of_transformers(rope: dict[str, Any], head: int) -> tuple[Tensor, float]:
    """transformers' frequencies, and its factor on cosines and sines."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    sizes = {"hidden_size": 2 * head, "num_attention_heads": 2, "head_dim": head, "max_position_embeddings": 50}
    config = LlamaConfig(**sizes, rope_parameters=dict(rope))
    found: tuple[Tensor, float] = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config)
    return found


@pytest.mark.parametrize("head", [HEAD, 2, 128])
@pytest.mark.parametrize("name", TYPES)
def test_scaled_frequencies_are_those_of_transformers(name: str, head: int) -> None:
    rope = of_size(TYPES[name], head)
    config = {"rope_parameters": rope, "max_position_embeddings": 50}
    ours = build_positions(rotary(Fields(config, "config.json", keys(read=ROTARY)), head), head)
    assert isinstance(ours, Rotary)
    frequencies, factor = of_transformers(rope, head)
    torch.testing.assert_close(
        ours.frequencies, frequencies, rtol=1e-6 if name in ("linear", "llama3") else 2e-7, atol=0
    )
    assert ours.magnitude == pytest.approx(factor, rel=1e-12)


def test_a_fixed_stretch_of_theta_is_hunyuans() -> None:
    from transformers import HunYuanDenseV1Config
    from transformers.models.hunyuan_v1_dense.modeling_hunyuan_v1_dense import HunYuanDenseV1RotaryEmbedding

    rope = {"rope_type": "dynamic", "rope_theta": 700.0, "alpha": 50.0, "factor": 1.0}
    theirs = HunYuanDenseV1Config(head_dim=HEAD, rope_parameters=rope)
    ours = rotary_frequencies(RotaryConfig(700.0, NtkScaling(50.0)), HEAD)
    assert torch.equal(ours, HunYuanDenseV1RotaryEmbedding(theirs).inv_freq)


@pytest.mark.parametrize("share", [0.5, 0.7, 1.0])
def test_frequencies_of_which_the_last_are_none_are_lfm3s(share: float) -> None:
    from transformers import Lfm3Config
    from transformers.models.lfm3.modeling_lfm3 import Lfm3RotaryEmbedding

    full = {"rope_type": "proportional", "rope_theta": 700.0, "partial_rotary_factor": share, "factor": 2.0}
    sizes = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "head_dim": HEAD}
    theirs = Lfm3Config(
        **sizes, rope_parameters={"full_attention": full, "sliding_attention": {"rope_type": "default"}}
    )
    ours = rotary_frequencies(RotaryConfig(700.0, ProportionalScaling(share, 2.0)), HEAD)
    torch.testing.assert_close(ours, Lfm3RotaryEmbedding(theirs).full_attention_inv_freq, rtol=1e-6, atol=0)


def test_a_theta_that_depends_on_the_length_of_the_text_is_refused_with_the_reason() -> None:
    with pytest.raises(UserError, match="whose frequencies do not depend on the length .* make it default, which is"):
        read({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}})


BOTH = {**of_size(LONG, HEAD), "long_factor": [2.0] * (HEAD // 2)}


@pytest.mark.parametrize(
    "rope, instead, length",
    [
        ({"rope_type": "dynamic", "factor": 2.0}, read({"rope_parameters": {"rope_theta": 700.0}}), 50),
        (BOTH, read({"rope_parameters": BOTH, "max_position_embeddings": 50}), 20),
    ],
)
def test_up_to_a_length_a_text_has_these_frequencies(rope: dict[str, Any], instead: RotaryConfig, length: int) -> None:
    """The replacement that a refusal suggests, and longrope's short factors, hold up to this length only."""
    for tokens in (length, length + 1):
        assert same_turns(rope, instead, tokens) == (tokens == length)


@pytest.mark.parametrize("length, tokens", [(None, 20), (20, 20), (21, 21), (50, 50)])
def test_longrope_of_a_length_has_the_factors_of_such_texts(length: int | None, tokens: int) -> None:
    both = read({"rope_parameters": BOTH, "max_position_embeddings": 50})
    assert (both.end, both.for_length(length).end) == (20, None)
    assert same_turns(BOTH, both.for_length(length), tokens)
    assert not same_turns(BOTH, both.for_length(length), 41 - tokens if tokens < 22 else 20)
    assert RotaryConfig().for_length(length) == RotaryConfig()


def same_turns(rope: dict[str, Any], ours: RotaryConfig, tokens: int) -> bool:
    """Whether a text of `tokens` tokens rotates as in transformers' Llama."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    sizes = {"hidden_size": 2 * HEAD, "num_attention_heads": 2, "head_dim": HEAD, "max_position_embeddings": 50}
    theirs = LlamaRotaryEmbedding(LlamaConfig(**sizes, rope_parameters={**rope, "rope_theta": 700.0}))
    cos, _ = theirs(torch.zeros(1), torch.arange(tokens)[None])
    found = build_positions(ours, HEAD).rotate(torch.arange(tokens)[None].int(), TorchOps(tokens))
    return bool((cos[0, :, : HEAD // 2] - found.cos[0, 0]).abs().max() < 1e-5)


@pytest.mark.parametrize("share", [0, 1.5, 0.01, True, "half"])
def test_an_impossible_share_is_refused(share: Any) -> None:
    with pytest.raises(UserError, match="partial_rotary_factor in .* to be "):
        read({"rope_parameters": {"partial_rotary_factor": share}}, partial=0.5)


def test_a_family_that_rotates_whole_heads_refuses_a_share() -> None:
    with pytest.raises(UserError, match="partial_rotary_factor in the rotary parameters of config.json to be absent"):
        read({"rope_parameters": {"partial_rotary_factor": 0.5}})
