"""Saved translators give the same logits and translations in transformers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import small
import texts
from checkpoints.importers.peers import TOLERANCE, logit_error
from checkpoints.importers.test_translators import reference
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.hub import save_translator
from t2r_export.cli import main
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.model import ModelConfig
from t2r_export.convert import convert
from t2r_export.model.transformer import Transformer
from t2r_export.quality.translations import translate
from t2r_runtime.errors import UserError

HEADS = HeadsConfig(heads=3, kv_heads=3, head_size=4)
SOURCES = [[3, 1, 4, 1], [5, 2], [6, 1, 2, 2, 8, 7, 1]]


def ours(family: str, **changes: Any) -> ModelConfig:
    """A config of ours that the family can represent."""
    base = small.translator(base="softmax", source_vocabulary=None)
    assert base.encoder is not None
    shape = {"norm_position": "pre"} if family == "pegasus" else {"norm_position": "post", "last_norm": False}
    changed: dict[str, Any] = {
        "width": 12,
        "attention": HEADS,
        "encoder": dataclasses.replace(base.encoder, attention=HEADS, max_positions=None),
        "position": "sinusoidal",
        "max_positions": None,
        "start_tokens": (3, 4),
        "banned_tokens": (0, 5),
        **shape,
        **changes,
    }
    return dataclasses.replace(base, **changed)


def same(model: Transformer, theirs: Any) -> None:
    """Asserts equal logits, and equal greedy translations at batch size 1."""
    assert logit_error(model, theirs, 19) < TOLERANCE
    theirs.generation_config.forced_eos_token_id = None  # our eager model does not force tokens
    found, steps = translate(model, SOURCES, 13), 11 + len(model.config.start_tokens)  # including a forced token
    for source, tokens in zip(SOURCES, found, strict=True):
        given = theirs.generate(torch.tensor([source]), num_beams=1, do_sample=False, max_new_tokens=steps)[0].tolist()
        start, ends = model.config.start_tokens, set(model.config.eos_tokens)
        assert [token for token in given if token not in ends] == [
            *(token for token in start if token not in ends),
            *tokens,
        ]


@pytest.mark.parametrize("family", ["marian", "pegasus"])
def test_transformers_loads_saved_folder(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoModelForSeq2SeqLM

    model = small.model(ours(family, embedding_scale=12**0.5, eos_tokens=(2, 6)))
    checkpoint.save(tmp_path / "model.pt", model, texts.tokenizer(), {"origin": "random"})
    assert main(["save", str(tmp_path / "model.pt"), str(tmp_path / "folder"), "--as", family]) == 0
    assert "tokenizer_config.json" in capsys.readouterr().out
    same(model, AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "folder").eval())
    again = checkpoint.load(tmp_path / "folder")
    ours_again, before = (json.loads(text or "") for text in (again.tokenizer, texts.tokenizer()))
    special = {
        token["content"] for token in ours_again.pop("added_tokens")
    }  # letters here; AutoTokenizer adds them too
    assert special == {texts.LETTERS[token] for token in (2, 3)} and before.pop("added_tokens") == []
    assert ours_again == before
    assert again.config == dataclasses.replace(model.config, head_bias=True, generation=again.config.generation)


@pytest.mark.parametrize("name", ["marian", "marian, two vocabularies", "marian, three tables", "pegasus"])
def test_import_save_round_trip(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForSeq2SeqLM

    theirs = reference(name)
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = checkpoint.load(tmp_path / "theirs")
    checkpoint.save(tmp_path / "model.pt", loaded.model, None, {})
    family = theirs.config.model_type
    assert main(["save", str(tmp_path / "model.pt"), str(tmp_path / "ours"), "--as", family]) == 0
    assert logit_error(loaded.model, AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours").eval(), 19) < TOLERANCE
    again = checkpoint.load(tmp_path / "ours")
    assert again.config == loaded.config
    torch.testing.assert_close(again.model.state_dict(), loaded.model.state_dict(), rtol=0, atol=0)
    stored = json.loads((tmp_path / "ours" / "config.json").read_text())
    others = {"activation_function", "max_position_embeddings", "pad_token_id", "bos_token_id"}
    others |= {"normalize_before", "normalize_embedding"}  # no longer written by transformers
    expected = theirs.config.to_dict()
    assert {key: value for key, value in stored.items() if key not in others} == {
        key: expected[key] for key in stored if key not in others
    }


@pytest.mark.parametrize("family, before", [("marian", False), ("pegasus", True)])
def test_ctranslate2_converts_saved_folder(family: str, before: bool, tmp_path: Path) -> None:
    """Checks norm placement, and the texts of the end, start and unknown tokens."""
    from transformers import AutoConfig, AutoTokenizer

    model = small.model(ours(family, start_tokens=(3,), eos_tokens=(2, 6)))
    save_translator(checkpoint.made(model, texts.tokenizer(), {}), tmp_path, family)
    config, tokenizer = AutoConfig.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert (config.normalize_before, config.normalize_embedding) == (before, False)
    special = (tokenizer.eos_token, tokenizer.pad_token, tokenizer.unk_token)
    assert special == tuple(texts.LETTERS[token] for token in (2, 3, 2))
    assert len(tokenizer.get_vocab()) == len(texts.LETTERS)  # one embedding row each, none new


REFUSED = {
    "a decoder alone": (texts.TEACHER, "marian", "a translator, for marian; received a decoder alone"),
    "the other family": (ours("pegasus"), "marian", "received norm; last_norm.kind 'layer'"),
    "learned positions": (
        small.TRANSLATORS["marian"],
        "marian",
        "received 6 (decoder_attention_heads in config.json",
    ),
    "another scale": (ours("marian", embedding_scale=3.0), "marian", "received embedding_scale 3.0; "),
    "heads in groups": (
        ours("marian", attention=dataclasses.replace(HEADS, kv_heads=1)),
        "marian",
        "received kv_heads; save",
    ),
    "many starts": (ours("marian", start_tokens=(1, 2, 3)), "marian", "start tokens that the family does not support"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_options_are_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, family, message = REFUSED[name]
    checkpoint.save(tmp_path / "model.pt", small.model(config), None, {})
    assert main(["save", str(tmp_path / "model.pt"), str(tmp_path / "folder"), "--as", family]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "folder").exists()


def test_recurrent_translator_is_refused(tmp_path: Path) -> None:
    student = convert(small.model(ours("marian")), LinearConfig(4), cross=LinearConfig(5))
    with pytest.raises(
        UserError, match="softmax layers and options that marian supports; received inside; save the teacher"
    ):
        save_translator(checkpoint.made(student, None, {}), tmp_path / "folder", "marian")
