"""Hugging Face folders of any family: valid and invalid files, names, shapes and values."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Library

import folders
from cli_models import letter_tokenizer
from t2r_export.checkpoints import checkpoint, importers
from t2r_export.checkpoints.importers import IMPORTERS
from t2r_export.checkpoints.importers.unread import REASONS, UNREAD
from t2r_export.files import sha256
from t2r_runtime import Tokenizer
from t2r_runtime.errors import UserError
from t2r_runtime.text.tokenizer_parts import MAX_BYTES, require_size


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return folders.write_llama(tmp_path / "llama")


FAMILIES = ", ".join(sorted([*IMPORTERS, "t2r"]))


def refused(folder: Path, message: str) -> None:
    """Loading fails with one line that matches `message`."""
    with pytest.raises(UserError, match=message) as caught:
        checkpoint.load(folder)
    assert str(caught.value).isprintable()


def test_a_folder_becomes_a_checkpoint(llama: Path) -> None:
    (llama / "tokenizer.json").write_text(letter_tokenizer())
    found = checkpoint.load(llama)
    assert found.tokenizer == letter_tokenizer()
    assert not found.model.training
    assert not any(tensor.is_meta for tensor in (*found.model.parameters(), *found.model.buffers()))
    origin = found.provenance["origin"]
    assert origin["model_type"] == "llama"
    assert origin["trained_positions"] == 40
    assert sorted(origin["files"]) == ["config.json", "model.safetensors", "tokenizer.json"]
    json.dumps(found.provenance)


def test_inspect_imports_the_modules_of_one_family(llama: Path) -> None:
    program = f"""
from t2r_export.cli import main
assert main(["inspect", {str(llama)!r}]) == 0
import sys
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ)
    package = importers.__name__
    known = {f"{package}.{place.partition(':')[0]}" for place in importers.MODULES.values()}
    assert set(done.stdout.splitlines()[-1].split()) & known == {f"{package}.llama"}


def test_the_hash_is_of_every_file(llama: Path) -> None:
    before = checkpoint.load(llama).sha256
    assert checkpoint.load(llama).sha256 == before
    folders.change_config(llama, eos_token_id=3)
    assert checkpoint.load(llama).sha256 != before


def test_keys_that_nobody_read_are_on_record(llama: Path) -> None:
    folders.change_config(llama, favourite_colour="blue")
    found = checkpoint.load(llama)
    assert found.provenance["origin"]["config_keys_not_used"] == ["favourite_colour"]
    assert found.notes == ("keys of config.json that are not used: favourite_colour",)


def test_shards_are_one_model(llama: Path) -> None:
    expected = checkpoint.load(llama).model.state_dict()
    folders.shard(llama)
    torch.testing.assert_close(checkpoint.load(llama).model.state_dict(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("value, expected", [(3, (3,)), ([3, 5], (3, 5)), ([], ()), (None, ())])
def test_generation_config_says_where_a_text_ends(llama: Path, value: Any, expected: tuple[int, ...]) -> None:
    (llama / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    config = checkpoint.load(llama).config
    assert config.eos_tokens == expected
    assert config.bos_token == 1


@pytest.mark.parametrize("value, kept", [([2, 31], (2,)), (-1, ()), (50256, ())])
def test_a_special_token_outside_the_vocabulary_is_passed_over_with_a_note(
    llama: Path, value: Any, kept: tuple[int, ...]
) -> None:
    folders.change_config(llama, eos_token_id=value, bos_token_id=-1)
    found = checkpoint.load(llama)
    assert (found.config.bos_token, found.config.eos_tokens) == (None, kept)
    assert found.notes == (
        "bos_token_id in config.json is not among the 31 tokens and is passed over",
        "eos_token_id in config.json is not among the 31 tokens and is passed over",
    )


@pytest.mark.parametrize("value", ["2", [2, None], 2.0, [True], {}])
def test_a_special_token_that_is_no_token_is_refused(llama: Path, value: Any) -> None:
    folders.change_config(llama, eos_token_id=value)
    refused(llama, "eos_token_id in config.json to be a token or a list of tokens; received")


def test_a_tied_head_that_is_stored_all_the_same_is_accepted_if_equal(tmp_path: Path) -> None:
    folder = folders.write_gpt2(tmp_path)
    table = folders.random_tensors(folders.gpt2_shapes())["transformer.wte.weight"]
    folders.change_tensors(folder, lm_head__weight=table.clone())
    checkpoint.load(folder)
    folders.change_tensors(folder, lm_head__weight=table + 1)
    refused(folder, "lm_head.weight equal to .*wte.weight, since tie_word_embeddings is true")


def test_an_unknown_family_lists_the_known_ones(llama: Path) -> None:
    folders.change_config(llama, model_type="xlstm")
    refused(llama, f'model_type in config.json to be one of {FAMILIES}; received "xlstm"')
    folders.change_config(llama, model_type=None)
    refused(llama, f"model_type in config.json to be one of {FAMILIES}; received no value")
    folders.change_config(llama, model_type="Llama")
    refused(llama, 'received "Llama"; did you mean llama?')


def test_a_family_that_is_not_read_is_refused_with_the_reason(llama: Path) -> None:
    for reason, families in REASONS.items():
        names = sorted(families.split())
        folders.change_config(llama, model_type=names[0])
        with pytest.raises(UserError) as caught:
            checkpoint.load(llama)
        assert f'received "{names[0]}"; it has {reason}: use a model of those' in str(caught.value)


def test_every_family_is_in_the_docs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "families.md").read_text(encoding="utf-8")
    table = page.partition("| family | `model_type` | layers |\n")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"`(\w+)`", "".join(row.split("|")[2] for row in table.splitlines()))) == [*IMPORTERS]


def test_every_decoder_of_transformers_is_read_or_refused_with_a_reason() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as DECODERS

    assert not DECODERS.keys() - IMPORTERS.keys() - UNREAD.keys()
    assert not IMPORTERS.keys() & UNREAD.keys()
    assert sum(len(families.split()) for families in REASONS.values()) == len(UNREAD)


def test_quantized_weights_are_refused(llama: Path) -> None:
    folders.change_config(llama, quantization_config={"bits": 4})
    refused(llama, "weights in floating point in .*; received another quantization_config; use the model from before")


def test_names_are_reported_in_both_directions(llama: Path) -> None:
    folders.change_tensors(
        llama, model__norm__weight=None, lm_head__weight=None, extra__weight=torch.ones(2), score__weight=torch.ones(1)
    )
    refused(
        llama,
        "the 21 tensors that its config describes; received missing lm_head.weight, model.norm.weight, "
        "unexpected model.extra.weight, model.score.weight; ",
    )


def test_many_names_are_counted(llama: Path) -> None:
    folders.change_config(llama, num_hidden_layers=4)
    refused(llama, r"missing model.layers.2.input_layernorm.weight, .* and 13 more, unexpected none")


def test_a_name_that_would_break_the_line_is_spelt_in_ascii(llama: Path) -> None:
    folders.change_tensors(llama, **{"a\n\x1b[2Jb": torch.ones(1)})
    refused(llama, r"unexpected model.a \\x1b\[2Jb")


def test_wrong_sizes_in_the_config_show_as_shapes(llama: Path) -> None:
    folders.change_config(llama, intermediate_size=12, vocab_size=32)
    refused(
        llama, "the shapes that its config describes; received lm_head.weight 31×18 instead of 32×18, .* and 3 more"
    )


def test_a_config_cannot_make_us_allocate(llama: Path) -> None:
    folders.change_config(llama, intermediate_size=1 << 20, vocab_size=1 << 22, num_attention_heads=3 << 18)
    refused(llama, "the shapes that its config describes")


@pytest.mark.parametrize("value, kind", [(float("nan"), "NaN"), (float("inf"), "an inf"), (float("-inf"), "an inf")])
def test_a_weight_that_is_not_finite_is_named(llama: Path, value: float, kind: str) -> None:
    weight = torch.ones(18)
    weight[7] = value
    folders.change_tensors(llama, model__norm__weight=weight)
    refused(llama, f"finite numbers in 'model.norm.weight'; received {kind}")


def test_a_value_past_the_range_of_float32_is_not_finite(llama: Path) -> None:
    folders.change_tensors(llama, model__norm__weight=torch.full((18,), 1e300, dtype=torch.float64))
    refused(llama, "finite numbers in 'model.norm.weight'; received an infinity")


def test_whole_numbers_are_no_weights(llama: Path) -> None:
    folders.change_tensors(llama, model__norm__weight=torch.ones(18, dtype=torch.int8))
    refused(llama, "dense floating-point numbers in 'model.norm.weight'; received strided of int8")


@pytest.mark.parametrize("size", [0, 3, 100, 2000, -1])
def test_truncated_safetensors_are_refused(llama: Path, size: int) -> None:
    file = llama / "model.safetensors"
    file.write_bytes(file.read_bytes()[:size])
    refused(llama, "whole safetensors in .*model.safetensors; received .*; download or save the folder again")


@pytest.mark.parametrize(
    ("merges", "compact"),
    [([["a", "b"], ["ab", "b"]], ["a b", "ab b"]), ([["a", "b"], ["b", " "]], [["a", "b"], ["b", " "]])],
)
def test_large_tokenizers_are_compact(llama: Path, merges: list[list[str]], compact: list[object]) -> None:
    """Blanks count for the bound of runtimes, and pairs are larger than texts, of which a blank divides the pieces."""
    written = json.loads(letter_tokenizer("ab "))
    vocab = {piece: n for n, piece in enumerate(["a", "b", " ", *map("".join, merges)])}
    written["model"] |= {"vocab": vocab, "merges": merges}
    (llama / "tokenizer.json").write_text(json.dumps(written) + " " * MAX_BYTES)
    found = checkpoint.load(llama).tokenizer
    written["model"]["merges"] = compact
    assert found == json.dumps(written, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.slow
def test_262144_pieces_are_imported_and_opened(llama: Path) -> None:
    """As many as Gemma's, of a file that is above the bound of runtimes as it is written."""
    letters = [chr(0x4E00 + n) for n in range(364)]
    pairs = [[one, two] for one in letters for two in letters]
    fours = [["".join(one), "".join(two)] for one, two in itertools.pairwise(pairs)]
    merges = [*pairs, *fours][: 262_144 - len(letters)]
    written = json.loads(letter_tokenizer("".join(letters)))
    pieces = [*letters, *map("".join, merges)]
    written["pre_tokenizer"] = None
    written["model"] |= {"vocab": {piece: n for n, piece in enumerate(pieces)}, "merges": merges}
    (llama / "tokenizer.json").write_text(text := json.dumps(written, indent=8))
    assert len(written["model"]["vocab"]) == 262_144
    assert len(text) > MAX_BYTES
    found = checkpoint.load(llama).tokenizer
    assert found is not None
    require_size(found)
    opened, library = Tokenizer(found, any_parts=False), Library.from_str(text)
    for sample in ("".join(pieces[10_000::9_999]), pieces[-1], "".join(letters)):
        assert opened.encode(sample) == library.encode(sample).ids
        assert opened.decode(opened.encode(sample)) == sample


def test_a_file_of_another_kind_is_no_safetensors(llama: Path) -> None:
    (llama / "model.safetensors").write_text("version 1\nsize 12345\n")
    refused(llama, "whole safetensors in .*model.safetensors")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_pointer_of_git_lfs_is_named(name: str, llama: Path) -> None:
    (llama / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12345\n")
    refused(llama, f"the file {name} in .*; received a pointer of Git LFS to it; run git lfs pull there")


def test_an_adapter_is_no_model(llama: Path) -> None:
    (llama / "config.json").rename(llama / "adapter_config.json")
    refused(llama, "a whole model in .*; received an adapter of peft; save what its merge_and_unload")


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_of_a_folder_is_not_the_folder(name: str, llama: Path) -> None:
    refused(llama / name, f"{name}, a file of a Hugging Face folder; pass the folder, .*llama$")


def test_a_tokenizer_in_other_files_is_noted(llama: Path) -> None:
    (llama / "tokenizer.model").write_bytes(b"pieces")
    [note] = checkpoint.load(llama).notes
    assert note.startswith("tokenizer.model is not read, and there is no tokenizer.json: AutoTokenizer")
    (llama / "tokenizer.json").write_text(letter_tokenizer("abc"))
    assert checkpoint.load(llama).notes == ()


def test_a_tokenizer_that_is_larger_than_the_model_is_noted(llama: Path) -> None:
    size = checkpoint.load(llama).config.vocab_size
    (llama / "tokenizer.json").write_text(letter_tokenizer("".join(map(chr, range(97, 97 + size)))))
    assert checkpoint.load(llama).notes == ()
    (llama / "tokenizer.json").write_text(letter_tokenizer("".join(map(chr, range(97, 98 + size)))))
    [note] = checkpoint.load(llama).notes
    assert note.startswith(f"tokenizer.json has tokens past the model's {size}, such as ")


def test_a_folder_without_weights_says_what_is_needed(llama: Path) -> None:
    (llama / "model.safetensors").rename(llama / "pytorch_model.bin")
    refused(llama, "model.safetensors, or model.safetensors.index.json with its shards, in .*; received neither; save")


def test_shards_without_their_index_are_named(llama: Path) -> None:
    (llama / "model.safetensors").rename(llama / "model-00001-of-00001.safetensors")
    refused(llama, "received neither, but model-00001-of-00001.safetensors; download or save the folder again")


def test_a_folder_without_a_config_is_no_checkpoint(tmp_path: Path) -> None:
    refused(tmp_path, "the file config.json in .*; received no such file")


@pytest.mark.parametrize(
    "text, message",
    [
        (b"{", r"JSON in .*config.json; received a text that is no JSON \(.* at character 2\)"),
        (b"[" * 100_000, "JSON in .*config.json; received a text with arrays or objects nested too deeply"),
        (b"[1]", "a JSON object in .*config.json; received a list"),
        (b'{"a": "\xff"}', "a text in UTF-8 in .*config.json"),
        (b" " * (1 << 20) + b"{}", "at most 1048576 bytes in .*config.json; received more"),
    ],
)
def test_a_config_that_is_no_object_is_refused(llama: Path, text: bytes, message: str) -> None:
    (llama / "config.json").write_bytes(text)
    refused(llama, message)


def test_a_tokenizer_that_is_no_json_is_refused(llama: Path) -> None:
    (llama / "tokenizer.json").write_text("hello")
    refused(llama, "JSON in .*tokenizer.json")
    (llama / "tokenizer.json").write_text("{}")
    refused(llama, "the text of a tokenizer.json; received None as its model")


@pytest.mark.parametrize(
    "name", ["../other.safetensors", "/etc/passwd", "..", "a/b.safetensors", "a\\b", "", "c:x", "a\0b", "a\nb"]
)
def test_a_shard_outside_the_folder_is_refused(llama: Path, name: str) -> None:
    weight_map = folders.shard(llama)
    weight_map["model.norm.weight"] = name
    folders.write_index(llama, weight_map)
    refused(llama, "plain names of files in .*; received '.*'; download or save the folder again")


def test_a_shard_that_is_no_name_is_refused(llama: Path) -> None:
    folders.shard(llama)
    folders.write_index(llama, {"model.norm.weight": 7})
    refused(llama, "file names in the weight_map of model.safetensors.index.json; received 7")


def test_a_weight_map_that_is_no_object_is_refused(llama: Path) -> None:
    folders.shard(llama)
    folders.write_index(llama, [1])
    refused(llama, r"weight_map in model.safetensors.index.json to be an object; received \[1\]")


def test_a_missing_shard_is_named(llama: Path) -> None:
    folders.shard(llama)
    (llama / "model-00002-of-00002.safetensors").unlink()
    refused(llama, "the file model-00002-of-00002.safetensors in .*; received no such file")


def test_a_shard_that_differs_from_the_index_is_named(llama: Path) -> None:
    weight_map = folders.shard(llama)
    weight_map["model.more.weight"] = weight_map.pop("model.norm.weight")
    folders.write_index(llama, weight_map)
    refused(
        llama,
        "in model-.*.safetensors the tensors that .* lists; received missing model.more.weight, unexpected model.",
    )


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_link_that_leads_out_of_the_folder_is_refused(llama: Path, name: str) -> None:
    outside = llama.parent / "outside"
    (llama / "tokenizer.json").write_text("{}")
    (llama / name).rename(outside)
    (llama / name).symlink_to(outside)
    refused(llama, f"{name} to be inside .*; received a link that leads out of it; copy the file into the folder")


def test_a_link_that_leads_nowhere_is_no_file(llama: Path) -> None:
    (llama / "model.safetensors").unlink()
    (llama / "model.safetensors").symlink_to(llama / "gone")
    refused(llama, "the file model.safetensors in .*; received no such file")


def test_the_links_of_the_hugging_face_cache_are_followed(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.parent.mkdir()
    folders.write_llama(snapshot)
    for file in list(snapshot.iterdir()):
        file.rename(blobs / file.stem)
        file.symlink_to(Path("../../blobs") / file.stem)
    checkpoint.load(snapshot)


def test_a_flipped_bit_is_found_where_the_cache_knows_the_hash(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    blobs.mkdir()
    snapshot.parent.mkdir()
    folders.write_llama(snapshot)
    weights = snapshot / "model.safetensors"
    blob = blobs / sha256(weights)
    weights.rename(blob)
    weights.symlink_to(blob)
    checkpoint.load(snapshot)
    content = bytearray(blob.read_bytes())
    content[-6] ^= 1
    blob.write_bytes(content)
    refused(
        snapshot, "model.safetensors in .* to have the SHA-256 that it is stored under; received [0-9a-f]{64}; down"
    )


def test_a_pipe_is_no_file(llama: Path) -> None:
    (llama / "config.json").unlink()
    os.mkfifo(llama / "config.json")
    refused(llama, "the file config.json in .*; received no such file")


def test_the_same_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    folder = folders.write_gpt2(tmp_path)
    folders.change_tensors(folder, wte__weight=torch.ones(29, 12))
    refused(folder, "transformer.wte.weight once in .*; received also wte.weight")


def test_a_trained_length_that_is_no_length_is_refused(llama: Path) -> None:
    folders.change_config(llama, max_position_embeddings="long")
    refused(llama, 'max_position_embeddings in config.json to be an integer of at least 1; received "long"')


def test_a_value_nested_deep_does_not_break_its_own_message(llama: Path) -> None:
    deep = b"[" * 900 + b"]" * 900
    (llama / "config.json").write_bytes(b'{"model_type": ' + deep + b"}")
    refused(llama, rf"model_type in config.json to be one of {FAMILIES}; received (\[\[|a value nested)")
