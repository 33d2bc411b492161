"""BART, Marian and Pegasus folders: encoder outputs and logits of transformers, and what its generation goes by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig

import folders
from checkpoints.importers.peers import BART, TOLERANCE, logit_error
from runtime.transformers_twin import until_the_end
from t2r_export.checkpoints import checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.positions import LearnedConfig, SinusoidalConfig
from t2r_export.export import export
from t2r_runtime import Beam, Translator
from t2r_runtime.errors import UserError

SIZES = {**BART, "eos_token_id": 1, "forced_eos_token_id": 1}
OWN = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 31}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("Bart", {}),
    "bart, scaled": ("Bart", {"scale_embedding": True, "activation_function": "relu"}),
    "marian": ("Marian", {"scale_embedding": True, "activation_function": "swish"}),
    "marian, two vocabularies": ("Marian", OWN),
    "marian, three tables": ("Marian", {**OWN, "tie_word_embeddings": False}),
    "pegasus": ("Pegasus", {"scale_embedding": True}),
}
MODELS = {
    "Bart": "BartForConditionalGeneration",
    "Marian": "MarianMTModel",
    "Pegasus": "PegasusForConditionalGeneration",
}


def reference(name: str, **changes: Any) -> Any:
    """A model of transformers with weights large enough that each of them matters."""
    import transformers

    family, options = CONFIGS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **options, **changes})
    model = getattr(transformers, MODELS[family])(config).eval()
    for parameter in model.parameters():
        if parameter.requires_grad:  # sinusoidal tables are frozen
            torch.nn.init.normal_(parameter, mean=0.1 if parameter.ndim == 1 else 0.0, std=0.3)
    model.final_logits_bias.normal_()
    model.tie_weights()
    return model


@pytest.mark.parametrize("name", CONFIGS)
def test_random_models_agree_with_transformers(name: str, tmp_path: Path) -> None:
    theirs = reference(name)
    theirs.save_pretrained(tmp_path)
    found = checkpoint.load(tmp_path)
    assert logit_error(found.model, theirs, 19) < TOLERANCE
    assert found.notes == ()
    assert (found.config.start_tokens, found.config.eos_tokens) == ((3,), (1,))


def test_the_comparison_sees_a_wrong_scale(tmp_path: Path) -> None:
    theirs = reference("marian")
    theirs.save_pretrained(tmp_path)
    folders.change_config(tmp_path, scale_embedding=False)
    assert logit_error(checkpoint.load(tmp_path).model, theirs, 19) > 1e-3


def test_a_model_without_a_bias_of_the_head_has_zeros(tmp_path: Path) -> None:
    theirs = reference("marian")
    theirs.save_pretrained(tmp_path)
    folders.change_tensors(tmp_path, final_logits_bias=None)
    theirs.final_logits_bias.zero_()
    assert logit_error(checkpoint.load(tmp_path).model, theirs, 19) < TOLERANCE


def test_a_bare_backbone_and_stored_sines_are_read(tmp_path: Path) -> None:
    theirs = reference("pegasus")
    theirs.final_logits_bias.zero_()
    theirs.model.save_pretrained(tmp_path)
    table: Tensor = theirs.model.encoder.embed_positions.weight.clone()
    folders.change_tensors(tmp_path, encoder__embed_positions__weight=table)
    assert logit_error(checkpoint.load(tmp_path).model, theirs, 19) < TOLERANCE


@pytest.mark.parametrize("family", ["marian", "pegasus"])
@pytest.mark.parametrize("sides", [("encoder",), ("decoder",), ("encoder", "decoder")])
def test_stored_positions_that_are_no_sines_are_read(family: str, sides: tuple[str, ...], tmp_path: Path) -> None:
    """transformers loads them instead of computed ones; a side without stored positions keeps its sines."""
    theirs = reference(family)
    theirs.save_pretrained(tmp_path)
    for side in sides:
        table: Tensor = getattr(theirs.model, side).embed_positions.weight
        table += torch.randn(table.shape, generator=torch.Generator().manual_seed(len(side) + 3))
        folders.change_tensors(tmp_path, **{f"model__{side}__embed_positions__weight": table.clone()})
    found = checkpoint.load(tmp_path)
    assert found.config.positions == LearnedConfig(SIZES["max_position_embeddings"])
    assert logit_error(found.model, theirs, 19) < TOLERANCE
    short = table[:-1].clone()
    folders.change_tensors(tmp_path, **{f"model__{sides[0]}__embed_positions__weight": short})
    with pytest.raises(UserError, match=f"{sides[0]}.embed_positions.weight"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_stored_sines_in_half_precision_are_sines(dtype: torch.dtype, tmp_path: Path) -> None:
    theirs = reference("marian")
    theirs.save_pretrained(tmp_path)
    table: Tensor = theirs.model.encoder.embed_positions.weight.to(dtype)
    folders.change_tensors(tmp_path, model__encoder__embed_positions__weight=table.clone())
    assert checkpoint.load(tmp_path).config.positions == SinusoidalConfig()


def test_an_embedding_scale_of_null_is_none(tmp_path: Path) -> None:
    reference("bart").save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "scale_embedding": None}))
    assert checkpoint.load(tmp_path).config.embedding_scale == 1


def test_copies_of_the_shared_table_are_accepted_if_equal(tmp_path: Path) -> None:
    theirs = reference("bart")
    theirs.save_pretrained(tmp_path)
    shared: Tensor = theirs.model.shared.weight.detach().clone()
    folders.change_tensors(tmp_path, model__encoder__embed_tokens__weight=shared, lm_head__weight=shared.clone())
    assert logit_error(checkpoint.load(tmp_path).model, theirs, 19) < TOLERANCE
    folders.change_tensors(tmp_path, model__encoder__embed_tokens__weight=shared + 1)
    with pytest.raises(UserError, match="model.encoder.embed_tokens.weight equal to model.shared.weight"):
        checkpoint.load(tmp_path)


def generation(folder: Path, **settings: Any) -> None:
    (folder / "generation_config.json").write_text(json.dumps(settings))


def test_generation_goes_by_its_own_config(tmp_path: Path) -> None:
    reference("marian").save_pretrained(tmp_path)
    generation(tmp_path, decoder_start_token_id=7, forced_bos_token_id=9, bad_words_ids=[[5], [4]], eos_token_id=[1, 2])
    found = checkpoint.load(tmp_path).config
    assert (found.start_tokens, found.banned_tokens, found.eos_tokens) == ((7, 9), (4, 5), (1, 2))
    (tmp_path / "generation_config.json").unlink()
    folders.change_config(tmp_path, bad_words_ids=[[28], [3, 4], [99], [1]], suppress_tokens=[2])
    loaded = checkpoint.load(tmp_path)
    assert (loaded.config.start_tokens, loaded.config.banned_tokens) == ((3,), (2, 28))
    assert loaded.notes == ("2 of bad_words_ids in config.json are not one token of the model and are passed over",)
    folders.change_config(tmp_path, bad_words_ids=[3])
    with pytest.raises(UserError, match="bad_words_ids in config.json to be a list of lists of tokens"):
        checkpoint.load(tmp_path)


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("penalty", [0.0, 2.0])
def test_a_forced_first_token_is_generated(width: int, penalty: float, tmp_path: Path) -> None:
    """As in transformers, it counts in the text, its length and max_new_tokens, but not in the score."""
    theirs = reference("bart")
    theirs.final_logits_bias.zero_()  # it outweighs the prefix: texts of the same tokens would score alike
    options = {"decoder_start_token_id": 3, "forced_bos_token_id": 6, "forced_eos_token_id": 1, "eos_token_id": 1}
    options |= {"pad_token_id": 0, "max_new_tokens": 6, "min_new_tokens": 3, "do_sample": False}
    if width > 1:
        options |= {"num_beams": width, "length_penalty": penalty, "num_return_sequences": width}
    theirs.generation_config = GenerationConfig(**options, return_dict_in_generate=True, output_scores=True)
    theirs.save_pretrained(tmp_path / "bart")
    made = export(checkpoint.load(tmp_path / "bart"), tmp_path / "bart.onnx", ExportConfig())
    assert made.signature.source is not None and made.signature.source.start_tokens == (3, 6)
    translator, source = Translator(tmp_path / "bart.onnx", threads=1), [4, 9, 20, 5, 1]
    beam = Beam(width, penalty, max_tokens=6, min_tokens=3, n_best=width)
    (best,) = translator.translate([source], beam)
    with torch.no_grad():
        found = theirs.generate(torch.tensor([source]))
    assert [one.tokens for one in best] == [until_the_end(row.tolist()[1:], (1,)) for row in found.sequences]
    assert all(one.tokens[0] == 6 for one in best)
    if width > 1:
        np.testing.assert_allclose([one.score for one in best], found.sequences_scores, atol=1e-4)
    with pytest.raises(UserError, match="max_tokens above 1, the number of forced tokens; received 1"):
        translator.translate([source], Beam(width, max_tokens=1))


REFUSED = [
    ("bart", "tie_word_embeddings", False, "tie_word_embeddings in config.json to be true"),
    ("marian", "decoder_vocab_size", 31, "decoder_vocab_size in config.json to be vocab_size"),
    ("marian", "normalize_before", True, "normalize_before in config.json to be absent or false"),
    ("pegasus", "normalize_before", False, "normalize_before in config.json to be absent or true"),
    ("marian", "is_encoder_decoder", False, "is_encoder_decoder in config.json to be absent or true"),
    ("bart", "decoder_attention_heads", 5, "decoder_attention_heads in config.json to be a divisor of d_model=12"),
]


@pytest.mark.parametrize("name, key, value, message", REFUSED)
def test_what_we_lack_is_refused_by_name(name: str, key: str, value: Any, message: str, tmp_path: Path) -> None:
    reference(name).save_pretrained(tmp_path)
    folders.change_config(tmp_path, **{key: value})
    with pytest.raises(UserError, match=message):
        checkpoint.load(tmp_path)
