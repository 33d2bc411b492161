"""Every config.json key of every family changes our model as it does transformers', or is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from checkpoints.importers.key_values import (
    BOUND,
    BY_LAYER,
    FULL,
    GROWING,
    IMPORTERS,
    LENGTH,
    LINEAR,
    LLAMA3,
    NOT_CHANGED,
    PROPORTIONAL,
    SIZES,
    SLIDING,
    TRANSLATORS,
    classes,
    config_class,
    values,
    write,
)
from checkpoints.importers.peers import TOLERANCE, logit_error
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.importers.base import ACTIVATIONS, Fields
from t2r_export.checkpoints.importers.generation_keys import GENERATION
from t2r_export.checkpoints.importers.keys import Keys
from t2r_runtime.errors import UserError


@pytest.mark.parametrize("family", IMPORTERS)
def test_every_key_of_transformers_is_read_refused_or_harmless(family: str) -> None:
    keys = IMPORTERS[family].keys
    tables = (keys.read.keys(), keys.refused.keys(), keys.harmless, keys.aliases.keys())
    for key in classes(family):
        assert sum(key in table for table in tables) == 1, key
    assert keys.aliases.items() >= config_class(family).attribute_map.items()


@pytest.mark.parametrize("family", IMPORTERS)
def test_a_key_that_is_called_read_is_read(family: str) -> None:
    keys = IMPORTERS[family].keys
    fields = Fields(SIZES[family], "config.json", keys)
    IMPORTERS[family].config(fields)
    for further in (IMPORTERS[family].factors, IMPORTERS[family].repeated, IMPORTERS[family].sums):
        further(fields)
    elsewhere = {"model_type", "quantization_config", "bos_token_id", "eos_token_id"}
    if family in TRANSLATORS:
        elsewhere |= {"decoder_start_token_id"}
    conditional = {"sliding_window"} if "use_sliding_window" in keys.read else set()
    assert fields.read | elsewhere | conditional == keys.read.keys()


@pytest.mark.parametrize("family", IMPORTERS)
def test_an_absent_key_means_what_it_means_to_transformers(family: str) -> None:
    config = config_class(family)
    fields = {name: field.default for name, field in config.__dataclass_fields__.items()}
    fields = {config.attribute_map.get(name, name): default for name, default in fields.items()}
    thetas = dict.fromkeys(("rope_theta", "rotary_emb_base"), getattr(config, "default_theta", None))
    if isinstance(config.default_theta, dict):
        thetas = {"rope_theta": config.default_theta["global"], "rope_local_base_freq": config.default_theta["local"]}
    for key, value in IMPORTERS[family].keys.read.items():
        if key in thetas:
            assert value == thetas[key]
        elif key not in ("model_type", "quantization_config"):
            assert value == fields.get(key), key


def cases(kinds: Callable[[Keys], Iterable[str]]) -> list[tuple[str, str]]:
    return [(family, key) for family, one in IMPORTERS.items() for key in sorted(kinds(one.keys))]


def refuses(family: str, key: str, value: Any) -> bool:
    """Whether the importer refuses a config with this value, before it reads weights."""
    importer = IMPORTERS[family]
    try:
        importer.config(Fields({**SIZES[family], key: value}, "config.json", importer.keys))
    except UserError:
        return True
    return False


def obeyed(folder: Path, family: str, changes: dict[str, Any]) -> set[str]:
    """Keys of `changes` whose values transformers accepts, after a comparison with ours.

    All keys change at once; where a model cannot be had, or differs, each half is tried alone.
    """

    def halves() -> set[str]:
        keys = list(changes)
        middle = len(keys) // 2
        parts = ({key: changes[key] for key in some} for some in (keys[:middle], keys[middle:]))
        return set().union(*(obeyed(folder, family, part) for part in parts)) if middle else set()

    try:
        theirs = write(folder, family, **changes)
    except Exception:  # transformers has no such model: nothing to compare with
        return halves()
    try:
        ours = checkpoint.load(folder).model
    except UserError:
        return halves() or set(changes)
    if logit_error(ours, theirs, LENGTH) >= TOLERANCE:
        halves()
        raise AssertionError(changes)
    return set(changes)


@pytest.mark.parametrize("family", IMPORTERS)
def test_keys_that_are_read_are_obeyed_or_refused(family: str, tmp_path: Path) -> None:
    """Whole numbers, mostly sizes, are tried together, since they do not hide each other; all else is tried alone."""
    keys = IMPORTERS[family].keys
    defaults = {**keys.read, **classes(family)}
    read = keys.read.keys() - NOT_CHANGED | keys.aliases.keys()
    attempts: list[dict[str, Any]] = []
    last: list[tuple[str, Any]] = []
    sizes: dict[str, list[int]] = {}
    for key in sorted(read):
        for value in values(key, defaults.get(key)):
            if refuses(family, key, value):
                last.append((key, value))
            elif type(value) is int and key not in keys.aliases:
                sizes.setdefault(key, []).append(value)
            else:
                attempts.append({key: value})
    for place in range(max(map(len, sizes.values()))):
        attempts.append({key: some[place] for key, some in sizes.items() if place < len(some)})
    tried = set().union(*(obeyed(tmp_path, family, changes) for changes in attempts))
    for key, value in last:  # one value that is refused suffices
        if key not in tried:
            tried |= obeyed(tmp_path, family, {key: value})
    assert {(family, key) for key in read - tried} <= BOUND


@pytest.mark.parametrize("family", IMPORTERS)
def test_keys_that_are_harmless_are(family: str, tmp_path: Path) -> None:
    keys, defaults = IMPORTERS[family].keys, classes(family)
    changed = {key: values(key, defaults.get(key))[0] for key in keys.harmless - GENERATION - keys.noted}
    theirs = write(tmp_path, family, **changed)
    found = checkpoint.load(tmp_path)
    assert logit_error(found.model, theirs, LENGTH) < TOLERANCE
    assert not any("not used" in note for note in found.notes)


@pytest.mark.parametrize("family, key", cases(lambda keys: keys.noted))
def test_a_key_by_which_transformers_changes_stored_weights_is_noted(family: str, key: str, tmp_path: Path) -> None:
    """The weights are as stored. If the last line fails, transformers takes them so too, and the key is harmless."""
    as_stored = write(tmp_path, family)
    config = json.loads((tmp_path / "config.json").read_text())
    for value, noted in ((False, False), (True, True)):
        (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
        found = checkpoint.load(tmp_path)
        assert logit_error(found.model, as_stored, LENGTH) < TOLERANCE
        assert any(note.startswith(f"{key} in config.json is true: transformers") for note in found.notes) == noted
    assert logit_error(found.model, type(as_stored).from_pretrained(tmp_path).eval(), LENGTH) > TOLERANCE


@pytest.mark.parametrize("family", IMPORTERS)
def test_a_neighbours_key_is_refused_unless_it_changes_nothing(family: str, tmp_path: Path) -> None:
    write(tmp_path, family)
    data = json.loads((tmp_path / "config.json").read_text())
    refused = IMPORTERS[family].keys.refused

    def load(**changes: Any) -> checkpoint.Checkpoint:
        (tmp_path / "config.json").write_text(json.dumps({**data, **changes}))
        return checkpoint.load(tmp_path)

    for place in range(max(map(len, refused.values()), default=0)):  # all of them at once
        assert load(**{key: neutral[place] for key, neutral in refused.items() if place < len(neutral)}).notes == ()
    for key, neutral in refused.items():
        _, read = IMPORTERS[family].keys.elsewhere(key, data) or ("", None)
        neutral = neutral if read is None else (*neutral, read)  # the value that is read under another name
        for value in [*values(key, None), {"0": [1]}, 0.5]:
            if not any(type(value) is type(one) and value == one for one in neutral):
                with pytest.raises(UserError, match=f"expected {key} in config.json to be absent"):
                    load(**{key: value})


WITH_WINDOWS = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
PAIRS: list[tuple[str, dict[str, Any]]] = [
    ("gpt_neo", {"num_layers": 2, "attention_types": [[["local"], 2]]}),
    ("helium", {"hidden_size": 36, "num_attention_heads": 9}),
    ("internlm3", {"qkv_bias": True, "bias": True}),
    ("llama", {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 20}}),
    (
        "llama",
        {
            "rope_parameters": {**LLAMA3, "original_max_position_embeddings": 20},
            "original_max_position_embeddings": 6,
        },
    ),
    ("qwen3", {"rope_scaling": LLAMA3, "original_max_position_embeddings": 6}),
    ("llama", {"rope_scaling": LINEAR, "original_max_position_embeddings": 6, "rope_theta": 70}),
    ("qwen2", WITH_WINDOWS),
    ("qwen3", {**WITH_WINDOWS, "layer_types": [SLIDING, FULL, SLIDING]}),
    ("qwen2", {**WITH_WINDOWS, "max_window_layers": 0}),
    ("mistral", {"sliding_window": 4, "layer_types": [SLIDING] * 3}),
    ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    ("mamba2", {"num_heads": 12, "head_dim": 2}),
    ("falcon_h1", {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_d_head": 4}),
    ("granitemoehybrid", {"mamba_n_heads": 8, "mamba_d_head": 3, "mamba_n_groups": 1, "head_dim": 6}),
    ("granitemoehybrid", {"residual_multiplier": 0.22, "tie_word_embeddings": True, "logits_scaling": 0.5}),
    ("granitemoehybrid", {"layer_types": [FULL] * 3, "hidden_act": "relu", "attention_bias": True}),
    ("mamba2", {"num_heads": 12, "expand": 4, "n_groups": 4}),
    ("mamba2", {"hidden_size": 24, "expand": 1}),
    ("lfm2", {"block_ff_dim": 11, "tie_embedding": False, "layer_types": [FULL, "conv", "conv"], "conv_bias": True}),
    ("qwen3_5_text", {"rope_parameters": {**LINEAR, "rope_theta": 50.0}, "tie_word_embeddings": True}),
    ("qwen3_5_text", {"rope_parameters": {**LLAMA3, "partial_rotary_factor": 0.5}, "attention_bias": True}),
    ("qwen3_5_text", {"layer_types": [FULL, "linear_attention", FULL], "linear_num_key_heads": 6, "head_dim": 16}),
    ("olmo_hybrid", {"rope_parameters": {"rope_type": "default", "rope_theta": None}, "rope_theta": 9.0}),
    ("olmo_hybrid", {"linear_key_head_dim": None, "linear_value_head_dim": None, "linear_num_value_heads": 12}),
    ("lfm2", {"block_ffn_dim_multiplier": 1.7, "block_multiple_of": 3, "head_dim": 6, "conv_L_cache": 5}),
    ("granite_swa", {"layer_rope_theta": [0, 50.0, 9], "rope_scaling": LINEAR, "residual_multiplier": 0.4}),
    ("lfm3", {"num_hidden_layers": 5, "rope_parameters": BY_LAYER, "use_attention_gate": False}),
    ("lfm3", {"layer_types": [SLIDING, "conv", FULL], "rope_parameters": PROPORTIONAL, "attention_bias": True}),
    ("gpt_neox", {"rope_parameters": {**LINEAR, "rope_theta": 50.0}, "rotary_pct": 0.5, "rotary_emb_base": 9.0}),
    ("gpt_neox", {"rope_scaling": LLAMA3, "original_max_position_embeddings": 6, "use_parallel_residual": False}),
    ("opt", {"do_layer_norm_before": False, "enable_bias": False, "word_embed_proj_dim": 24}),
    ("opt", {"_remove_final_layer_norm": True, "activation_function": "gelu", "tie_word_embeddings": False}),
    ("smollm3", {"no_rope_layers": [0, 1, 0], "use_sliding_window": True, "sliding_window": 4}),
    ("smollm3", {"use_sliding_window": True, "sliding_window": 4, "layer_types": [SLIDING, FULL, SLIDING]}),
    ("granite", {"residual_multiplier": 0.22, "tie_word_embeddings": True, "logits_scaling": 0.5, "mlp_bias": True}),
    ("olmo2", {"attention_bias": True, "head_dim": 4}),
    ("exaone4", {"sliding_window": None, "layer_types": [FULL] * 3}),
    ("ministral3", {"rope_parameters": {**GROWING, "llama_4_scaling_beta": 0.0, "mscale": 1.0, "mscale_all_dim": 0.0}}),
    ("ministral3", {"rope_parameters": None, "rope_theta": 70.0}),
    ("phi3", {"sliding_window": 4, "partial_rotary_factor": 0.4, "rope_theta": 70.0}),
    (
        "gemma3_text",
        {"rope_parameters": BY_LAYER, "layer_types": [FULL, SLIDING, FULL], "final_logit_softcapping": 3.0},
    ),
    ("gemma3_text", {"rope_scaling": LINEAR, "rope_theta": 70.0, "rope_local_base_freq": 9.0}),
    ("gemma3_text", {"rope_parameters": {FULL: {**LLAMA3, "rope_theta": 70.0}}, "attention_bias": True}),
    ("stablelm", {"use_parallel_residual": True, "use_qkv_bias": True, "partial_rotary_factor": 0.5}),
    ("starcoder2", {"sliding_window": 4, "use_bias": False, "hidden_act": "relu"}),
    ("gpt2", {"reorder_and_upcast_attn": True, "activation_function": "gelu_python"}),
]


@pytest.mark.parametrize("family, changes", PAIRS)
def test_keys_together_are_obeyed(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = write(tmp_path, family, **changes)
    assert logit_error(checkpoint.load(tmp_path).model, theirs, LENGTH) < TOLERANCE


@pytest.mark.parametrize(
    "family, key, value",
    [
        *((family, "is_causal", value) for family in IMPORTERS for value in (False, None)),
        ("llama", "sliding_window", 5),
        ("llama", "logits_scaling", 2.0),
        ("llama", "no_rope_layers", [1, 0, 1]),
        ("qwen2", "embedding_multiplier", 12),
        ("qwen3", "final_logit_softcapping", 30.0),
        ("llama", "softcap", 1),
        ("gpt2", "lm_head_multiplier", 2),
        ("mistral", "layer_types", [FULL, SLIDING, FULL]),
        ("mistral", "attention_chunk_size", 8),
        ("gpt2", "scale_attn_weights", False),
        ("gpt2", "scale_attn_by_inverse_layer_idx", True),
        ("gpt2", "add_cross_attention", True),
        ("llama", "partial_rotary_factor", 0.5),
        ("stablelm", "qk_layernorm", True),
        ("opt", "layer_norm_elementwise_affine", False),
        ("gemma3_text", "attn_logit_softcapping", 50.0),
        ("gpt_neox", "rope_theta", 500.0),
        ("llama", "per_layer_config", {"1": {"rms_norm_eps": 0.5}}),
        ("llama", "transformers_weights", "other.safetensors"),
    ],
)
def test_a_key_that_changes_the_function_is_refused_by_name(family: str, key: str, value: Any, tmp_path: Path) -> None:
    write(tmp_path, family)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
    with pytest.raises(UserError, match=f"expected {key} in config.json to be absent"):
        checkpoint.load(tmp_path)


NEOX = {"rotary_pct": 0.5, "rotary_emb_base": 50}
NEW = {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5}}
REDUNDANT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("gpt_neox", NEOX, {"partial_rotary_factor": 0.5, "rope_theta": 50.0, "head_dim": 8, "num_key_value_heads": 3}),
    ("gpt_neox", NEW, {"partial_rotary_factor": 0.5, "rope_theta": 50}),
    ("gpt_neox", {}, {"partial_rotary_factor": 0.25, "rope_theta": 10000}),
    ("stablelm", {"partial_rotary_factor": 0.5}, {"rotary_pct": 0.5, "rope_pct": 0.5, "head_dim": 8}),
    ("phi", {"partial_rotary_factor": 0.5}, {"rotary_pct": 0.5}),
    ("olmo", {}, {"head_dim": 4}),
    ("dots1", {}, {"num_experts": 9}),
    ("gpt_neo", {}, {"sliding_window": 5}),
    ("granite", {"embedding_multiplier": 12.0, "residual_multiplier": 0.5}, {"scale_emb": 12, "residual_scale": 0.5}),
]


@pytest.mark.parametrize("family, read, further", REDUNDANT)
def test_a_key_that_says_what_is_read_elsewhere_is_redundant(
    family: str, read: dict[str, Any], further: dict[str, Any], tmp_path: Path
) -> None:
    theirs = write(tmp_path, family, **read, **further)
    assert logit_error(checkpoint.load(tmp_path).model, theirs, LENGTH) < TOLERANCE
    data = json.loads((tmp_path / "config.json").read_text())
    for key, value in further.items():
        (tmp_path / "config.json").write_text(json.dumps({**data, key: value + 1}))
        with pytest.raises(UserError) as caught:
            checkpoint.load(tmp_path)
        message = f"expected {key} in config.json to be absent or {json.dumps(data.get(key))}"
        assert str(caught.value).startswith(message.removesuffix(".0")) and f"take {key} out, or " in str(caught.value)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_every_activation_of_transformers_is_obeyed_or_refused(family: str, tmp_path: Path) -> None:
    from transformers.activations import ACT2CLS

    key = "activation_function" if family == "gpt2" else "hidden_act"
    for name in ACT2CLS:
        try:
            theirs = write(tmp_path, family, **{key: name})
        except Exception:  # needs a missing package, or has its own weights
            assert name not in ACTIVATIONS
            continue
        if name in ACTIVATIONS:
            assert logit_error(checkpoint.load(tmp_path).model, theirs, LENGTH) < TOLERANCE, name
        else:
            with pytest.raises(UserError, match=f"{key} in config.json to be one of|tensors that its config"):
                checkpoint.load(tmp_path)
