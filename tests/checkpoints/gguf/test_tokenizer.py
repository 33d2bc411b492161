"""Tokenizers of GGUF files: the ids of the tokenizers that they were written from."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from checkpoints.gguf.writer import Arrays, Values, adjacent, random_model, rms, tensors_of, write
from golden.families import FAMILIES, LETTERS
from golden.parts import split
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.gguf.cuts import CUTS
from t2r_export.checkpoints.piece_file import read_pieces
from t2r_runtime import Tokenizer as Ours
from t2r_runtime.errors import UserError
from t2r_runtime.text.tokenizer_parts import unknown_parts

LEARNT = [
    "The quick brown fox doesn't jump over 1234567 lazy dogs, and the dogs don't care.",
    "In 2024 there were 365 days;  some    of them were rainy.\n\nThe others were not!",
    "Größe, Straße, naïve café: the letters of the words are UNUSUAL Words.",
] * 4
TEXTS = [
    "the fox doesn't care",
    "The days of 2024:\n\n  12345 dogs!",
    " naïve Straße CamelCase",
    "日本語 \U0001f98a",
    "some    spaces",
    "<|im_start|>the fox<|im_end|>\n",
]
MODEL = {"vocab_size": 31, "hidden_size": 24, "intermediate_size": 11, "num_hidden_layers": 1, "num_attention_heads": 6}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
NUMBERED = {"bos": 1, "eos": 2, "unknown": 0}


def keys(**changes: Any) -> Values:
    found = {f"tokenizer.ggml.{name}_token_id": number for name, number in NUMBERED.items()}
    return {**found, **{f"tokenizer.ggml.{name}": value for name, value in changes.items()}}


def with_tokenizer(path: Path, values: Values, size: int) -> Path:
    """A small Llama with these keys."""
    model = random_model("Llama", {**MODEL, "vocab_size": size, "num_key_value_heads": 3})
    tensors: Arrays = adjacent(tensors_of(model, "llama"), 6, 3)
    return write(path, "llama", {"general.name": "x", **rms(model.config), **values}, tensors)


# the splits as in the tokenizer.json of models with these names
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
SPLITS = {
    "llama-bpe": CONTRACTIONS + "|" + WORD + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + REST,
    "qwen2": CONTRACTIONS + "|" + WORD + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + REST,
}
PARTS = {
    "smollm": FAMILIES["smollm"],
    "falcon": FAMILIES["falcon"],
    "bloom": FAMILIES["bloom"],
    "hunyuan-dense": FAMILIES["hunyuan"],
    "seed-coder": FAMILIES["seed-oss"],
    "deepseek-coder": [
        *map(split, ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+")),
        FAMILIES["deepseek-llm"][-2],  # single digits
        LETTERS,
    ],
}


def trained(pre: str) -> Tokenizer:
    """A byte-level BPE of 300 tokens, with the parts of the tokenizer.json of a model with this `pre`."""
    learnt = Tokenizer(models.BPE())
    if pre in PARTS:
        whole = {**json.loads(learnt.to_str()), "pre_tokenizer": {"type": "Sequence", "pretokenizers": PARTS[pre]}}
        learnt = Tokenizer.from_str(json.dumps(whole))
    else:
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre not in SPLITS)
        first = [pre_tokenizers.Split(Regex(SPLITS[pre]), "isolated")] if pre in SPLITS else []
        learnt.pre_tokenizer = pre_tokenizers.Sequence([*first, level])
    learnt.normalizer = normalizers.NFC() if pre == "qwen2" else None
    learnt.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    learnt.train_from_iterator(LEARNT, trainer)
    return learnt


def byte_level(pre: str, /, **changes: Any) -> tuple[Tokenizer, Values]:
    learnt = trained(pre)
    data = json.loads(learnt.to_str())["model"]
    tokens = sorted(data["vocab"], key=data["vocab"].__getitem__)
    merges = [" ".join(merge) for merge in data["merges"]]
    kinds = [3 if token in SPECIAL else 1 for token in tokens]
    found = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": kinds, "merges": merges}
    return learnt, keys(**{**found, "add_bos_token": False, **changes})


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", *PARTS])
def test_byte_level_ids_are_those_of_the_tokenizer(pre: str, tmp_path: Path) -> None:
    learnt, values = byte_level(pre)
    loaded = checkpoint.load(with_tokenizer(tmp_path / "x.gguf", values, 300))
    assert not loaded.notes
    assert loaded.tokenizer is not None
    ours = Ours(loaded.tokenizer)
    for text in TEXTS:
        assert ours.encode(text) == learnt.encode(text).ids
        assert ours.decode(ours.encode(text)) == learnt.decode(learnt.encode(text).ids)
    assert (loaded.config.bos_token, loaded.config.eos_tokens) == (1, (2,))


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2"])
def test_byte_level_ids_are_those_of_transformers_reading(pre: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    path = with_tokenizer(tmp_path / "x.gguf", byte_level(pre)[1], 300)
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    ours = Ours(checkpoint.load(path).tokenizer or "")
    assert [ours.encode(text) for text in TEXTS] == [theirs(text).input_ids for text in TEXTS]


@pytest.mark.parametrize("pre", CUTS)
def test_every_runtime_has_the_parts_of_every_cut(pre: str, tmp_path: Path) -> None:
    data = {"model": {"type": "BPE"}, "pre_tokenizer": CUTS[pre].pre_tokenizer, "normalizer": CUTS[pre].normalizer}
    assert unknown_parts(data) == []


BPE: Values = {
    "model_type": "bpe",
    "vocab_size": 340,
    "byte_fallback": True,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
}


def pieces(
    kind: str = "llama", options: Values = BPE, **changes: Any
) -> tuple[sentencepiece.SentencePieceProcessor, Values]:
    """sentencepiece's BPE with bytes, as Llama's, or other `options` of its trainer."""
    stored = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LEARNT),
        model_writer=stored,
        **options,
        user_defined_symbols=["<|im_start|>", "<|im_end|>"],
        minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=stored.getvalue())
    numbers = range(model.get_piece_size())
    types = [(model.is_unknown, 2), (model.is_control, 3), (model.is_byte, 6)]
    kinds = [next((kind for test, kind in types if test(number)), 1) for number in numbers]
    tokens = [model.id_to_piece(number) for number in numbers]
    kinds = [4 if token.startswith("<|im") else kind for token, kind in zip(tokens, kinds, strict=True)]
    scores = [float(model.get_score(number)) for number in numbers]
    return model, keys(**{"model": kind, "tokens": tokens, "scores": scores, "token_type": kinds, **changes})


def test_piece_ids_are_those_of_sentencepiece(tmp_path: Path) -> None:
    model, values = pieces()
    loaded = checkpoint.load(with_tokenizer(tmp_path / "x.gguf", values, 340))
    ours = Ours(loaded.tokenizer or "")
    for text in TEXTS[:-1]:
        assert ours.encode(text) == [1, *model.encode(text)]
        assert ours.decode(model.encode(text)) == model.decode(model.encode(text))
    assert ours.encode("the <|im_end|>") == [1, *model.encode("the "), model.piece_to_id("<|im_end|>")]


def test_piece_ids_are_those_of_transformers_reading(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    path = with_tokenizer(tmp_path / "x.gguf", pieces()[1], 340)
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name)
    ours = Ours(checkpoint.load(path).tokenizer or "")
    texts = [text for text in TEXTS if text[0].isalnum()]  # others begin without a space there
    assert len(texts) == 4
    assert [ours.encode(text) for text in texts] == [theirs(text).input_ids for text in texts]


@pytest.mark.parametrize("byte_fallback", [True, False])
@pytest.mark.parametrize("strip", [True, False])
def test_unigram_ids_are_those_of_sentencepiece(strip: bool, byte_fallback: bool, tmp_path: Path) -> None:
    size = 336 if byte_fallback else 80
    options = {"model_type": "unigram", "vocab_size": size, "byte_fallback": byte_fallback}
    options |= {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": strip, "hard_vocab_limit": False}
    model, values = pieces("t5", options, add_space_prefix=True, remove_extra_whitespaces=strip)
    size = len(values["tokenizer.ggml.tokens"])
    values["tokenizer.ggml.precompiled_charsmap"] = list(read_pieces(model.serialized_model_proto(), "x").charsmap)
    ours = Ours(checkpoint.load(with_tokenizer(tmp_path / "x.gguf", values, size)).tokenizer or "")
    for text in [*TEXTS[:-1], "ﬁne Ｗｉｄｅ  ①"]:
        ids = model.encode(text)
        assert ours.encode(text) == [*ids, 2]
        if 0 not in ids:  # sentencepiece writes a sign for an unknown one
            assert ours.decode(ids) == model.decode(ids)
    assert ours.encode("the <|im_end|>")[-2:] == [model.piece_to_id("<|im_end|>"), 2]


def test_flags_decide_on_bos_eos_and_the_first_space(tmp_path: Path) -> None:
    model, values = pieces(add_bos_token=False, add_eos_token=True, add_space_prefix=False)
    ours = Ours(checkpoint.load(with_tokenizer(tmp_path / "x.gguf", values, 340)).tokenizer or "")
    found = ours.encode("the fox")
    assert found[-1] == 2
    assert found[0] != 1
    assert model.id_to_piece(found[0])[0] == "t"


def test_a_chat_template_and_the_ends_of_turns_are_read(tmp_path: Path) -> None:
    _, values = byte_level("smollm", eos_token_id=0)
    values |= {
        "tokenizer.chat_template": "{{ messages[0]['content'] }}{{ eos_token }}",
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.chat_template.tool_use": "{{ tools }}",
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 7,
    }
    loaded = checkpoint.load(with_tokenizer(tmp_path / "x.gguf", values, 300))
    assert loaded.config.eos_tokens == (0, 2)
    assert loaded.chat_template is not None
    assert loaded.chat_template["template"] == values["tokenizer.chat_template"]
    assert loaded.chat_template["tokens"]["eos_token"] == "<|endoftext|>"
    assert loaded.config.generation is not None
    assert (loaded.config.generation.temperature, loaded.config.generation.top_k) == (0.5, 7)
    assert loaded.notes == ("chat templates beside the default one are not read: tool_use",)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model": "bert"}, "tokenizer.ggml.model in .* to be one of gpt2, llama, t5; received 'bert'"),
        ({"pre": "xyz"}, "tokenizer.ggml.pre in .* to be one of .*smollm.*; received 'xyz'"),
        ({"eos_token_id": 300}, "tokenizer.ggml.eos_token_id in .* to be a token below 300; received 300"),
        (
            {"token_type": [1, 2]},
            "tokenizer.ggml.token_type in .* to be a list of 300 of type int; received '2 values'",
        ),
        ({"merges": ["a b c"]}, "tokenizer.ggml.merges in .* to be two tokens with a space"),
        ({"merges": ["no-token e"]}, "a tokenizer.json"),
        ({"tokens": ["a"] * 300}, "tokenizer.ggml.tokens in .* to be different tokens; received '1 of 300'"),
        ({"tokens": ["a" * 2000], "token_type": [1]}, "tokens of at most 1024 characters"),
    ],
)
def test_other_tokenizers_are_refused(changes: Values, message: str, tmp_path: Path) -> None:
    path = with_tokenizer(tmp_path / "x.gguf", byte_level("smollm", **changes)[1], 300)
    with pytest.raises(UserError) as caught:
        checkpoint.load(path)
    assert re.search(message, str(caught.value))
    assert str(caught.value).isprintable()


def test_merges_are_bounded_before_they_are_made(tmp_path: Path) -> None:
    """Each piece divides into two others at every place."""
    tokens = ["a" * (length + 1) for length in range(500)]
    values = keys(model="llama", tokens=tokens, scores=[-float(len(token)) for token in tokens], token_type=[1] * 500)
    with pytest.raises(UserError, match="x.gguf whose divisions into others have at most 33,554,432 characters"):
        checkpoint.load(with_tokenizer(tmp_path / "x.gguf", values, 500))


def test_a_model_without_a_tokenizer_has_none(tmp_path: Path) -> None:
    path = with_tokenizer(tmp_path / "x.gguf", {"tokenizer.ggml.model": "none"}, 300)
    assert checkpoint.load(path).tokenizer is None
