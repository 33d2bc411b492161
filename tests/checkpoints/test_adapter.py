"""Adapters: the student of adapter and base is the saved one, and nothing else is."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import folders
from checkpoint_files import CONFIG, PROVENANCE, random_model, refused
from checkpoints.gguf.writer import write
from cli_models import letter_tokenizer
from disk import full_disk
from fuzz import gguf_files
from t2r_export.checkpoints import checkpoint
from t2r_export.checkpoints.adapter import KEY, low_rank
from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.checkpoints.weights import HEAD
from t2r_export.config.mixers import HybridConfig
from t2r_export.convert import convert
from t2r_export.model.transformer import Transformer
from t2r_export.training import lora
from t2r_runtime.errors import UserError

HALF = 2.0**-11  # relative error of float16, twice that of a rounding


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base, as a Hugging Face folder; the tests change only what is beside it."""
    folder = tmp_path_factory.mktemp("models") / "llama"
    folders.write_llama(folder)
    (folder / "tokenizer.json").write_text(letter_tokenizer())
    return folder


def trained(base: Transformer) -> Transformer:
    """A student with new maps, gates and γ, merged LoRA of all products, a trained norm, and nothing else."""
    student = convert(base, HybridConfig(window=5, sinks=1, feature_size=3, update_rule="gated", gate="data"), seed=7)
    lora.attach(student, rank=1, alpha=2.0, seed=5, targets="all")
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for name, p in student.named_parameters():
            if name.endswith(".B") or ".inner." in name or "norm" in name:
                p.normal_(std=0.1, generator=generator)
    lora.merge(student)
    return student


@pytest.fixture(scope="module")
def written(folder: Path) -> Path:
    path = folder.parent / "student.adapter"
    base = checkpoint.load(folder)
    found = checkpoint.save_adapter(path, student_of(base), base)
    assert (found.low_rank, found.full_rank, found.largest_rank) == (14, 0, 1)
    return path


def student_of(base: Checkpoint, **changes: Any) -> Checkpoint:
    student = trained(base.model)
    return dataclasses.replace(base, config=student.config, model=student, provenance=PROVENANCE, **changes)


def weights(model: Transformer) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


def test_the_student_is_the_saved_one_within_16_bits_of_its_changes(written: Path, folder: Path) -> None:
    base, found = checkpoint.load(folder), checkpoint.load(written, base=folder)
    student = student_of(base)
    assert (found.config, found.tokenizer, found.provenance) == (student.config, base.tokenizer, PROVENANCE)
    assert found.sha256 != base.sha256
    before, after = weights(base.model), weights(found.model)
    for name, expected in weights(student.model).items():
        change = expected - before[name] if name in before and before[name].shape == expected.shape else expected
        if expected.ndim < 2 or not change.any():
            assert torch.equal(after[name], expected), name
        else:
            assert (after[name] - expected).abs().max() <= 2 * HALF * change.abs().max(), name
            assert name not in before or not torch.equal(after[name], before[name])


def test_it_is_small_and_has_equal_bytes(written: Path, folder: Path, tmp_path: Path) -> None:
    base = checkpoint.load(folder)
    checkpoint.save_adapter(tmp_path / "again.adapter", student_of(base), base)
    assert (tmp_path / "again.adapter").read_bytes() == written.read_bytes()
    tensors = load_file(written)
    sizes = {name: p.numel() for name, p in student_of(base).model.named_parameters()}
    assert sum(tensor.numel() for tensor in tensors.values()) < sum(sizes.values()) / 2
    assert not {"embedding.weight", "head.weight"} & tensors.keys()


@pytest.mark.parametrize("kind", ["model.pt", "model.gguf"])
def test_bases_of_other_forms(kind: str, tmp_path: Path) -> None:
    path = tmp_path / kind
    whole = gguf_base(tmp_path)
    if kind == "model.gguf":
        whole.rename(path)
    else:
        checkpoint.save(path, checkpoint.load(whole).model, None, {})
    base = checkpoint.load(path)
    student = student_of(base, tokenizer="its own")
    checkpoint.save_adapter(tmp_path / "x.adapter", student, base)
    path.rename(tmp_path / f"renamed-{kind}")
    found = checkpoint.load(tmp_path / "x.adapter", base=tmp_path / f"renamed-{kind}")
    assert found.tokenizer == "its own"
    ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5]])
    torch.testing.assert_close(found.model(ids), student.model(ids), rtol=0, atol=2e-3)


def gguf_base(folder: Path) -> Path:
    return write(folder / "base.gguf", *gguf_files.contents()["llama"])


def test_changes_of_full_rank_and_of_tied_heads(tmp_path: Path) -> None:
    base = random_model(dataclasses.replace(CONFIG, tied_head=True))
    checkpoint.save(tmp_path / "base.pt", base, None, {})
    student = checkpoint.load(tmp_path / "base.pt")
    with torch.no_grad():
        student.model.embedding.weight.add_(torch.randn(23, 12), alpha=1e-6)
    found = checkpoint.save_adapter(tmp_path / "x.adapter", student, checkpoint.load(tmp_path / "base.pt"))
    assert (found.whole, found.low_rank, found.full_rank) == (0, 0, 1)
    model = checkpoint.load(tmp_path / "x.adapter", base=tmp_path / "base.pt").model
    assert model.head.weight is model.embedding.weight
    change = student.model.embedding.weight - base.embedding.weight
    error = model.embedding.weight - student.model.embedding.weight
    assert error.abs().max() <= change.abs().max() / 128  # not float16, in which 1e-6 has 5 bits
    assert HEAD not in load_file(tmp_path / "x.adapter")


@pytest.mark.parametrize("rank", [0, 1, 5, 40])
def test_the_rank_is_found(rank: int) -> None:
    generator = torch.Generator().manual_seed(rank)
    weight = torch.randn(70, 90, generator=generator)
    change = 1e-3 * torch.randn(70, rank, generator=generator) @ torch.randn(rank, 90, generator=generator)
    factors = low_rank((weight + change).double() - weight.double(), weight)
    if rank == 40:  # larger than 70 × 90 / (70 + 90)
        assert factors is None
        return
    assert factors is not None and factors[1].shape == (max(1, rank), 90)
    torch.testing.assert_close(factors[0] @ factors[1], change, rtol=0, atol=2e-6)


def test_no_base_and_another_base(written: Path, folder: Path, tmp_path: Path) -> None:
    refused(written, "expected the base of .*: model.safetensors of SHA-256 [0-9a-f]{64}; received none; pass --base")
    other = shutil.copytree(folder, tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    tensors["model.norm.weight"] += 1
    save_file(tensors, other / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        UserError, match=r"SHA-256 ([0-9a-f]{64}); received model.safetensors of SHA-256 (?!\1)"
    ) as caught:
        checkpoint.load(written, base=other)
    assert str(caught.value).isprintable()
    with pytest.raises(UserError, match=r"an .adapter with --base"):
        checkpoint.load(folder, base=folder)


def change(written: Path, path: Path, data: dict[str, Any] | None = None, **tensors: Tensor | None) -> Path:
    """A copy of an adapter with other metadata or tensors; None removes one."""
    with safe_open(written, framework="pt") as file:
        before = json.loads(file.metadata()[KEY])
    found = {**load_file(written), **{name.replace("__", "."): tensor for name, tensor in tensors.items()}}
    kept = {name: tensor for name, tensor in found.items() if tensor is not None}
    save_file(kept, path, {KEY: json.dumps({**before, **(data or {})})})
    return path


Q = "blocks__0__parts__0__q__weight"
DAMAGED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"version": 2}, {}, "version 1 of"),
    ({"base": {}}, {}, "the SHA-256 of each file"),
    ({"base": {"x": "0" * 63}}, {}, "the SHA-256 of each file"),
    ({"tokenizer": {"text": 3}}, {}, "tokenizers as texts"),
    ({"config": {}}, {}, "the keys banned_tokens"),
    ({"provenance": []}, {}, "an object as the provenance"),
    ({"more": 1}, {}, "the keys version"),
    ({}, {f"{Q}__B": None}, r"missing blocks.0.parts.0.q.weight.B"),
    ({}, {f"{Q}__A": torch.zeros(1 << 10, 18)}, r"shapes .*q.weight.B"),
    ({}, {f"{Q}__A": torch.zeros(3)}, r"q.weight"),
    ({}, {f"{Q}__A": torch.full((1, 18), torch.inf)}, "finite"),
    ({}, {f"{Q}__change": torch.zeros(24, 18)}, "unexpected blocks.0.parts.0.q.weight.change"),
    ({}, {Q: torch.zeros(24, 18)}, "unexpected blocks.0.parts.0.q.weight"),
    ({}, {"blocks__0__parts__0__inner__merge": torch.zeros(6, dtype=torch.int32)}, "floating-point"),
    ({}, {"blocks__0__parts__0__inner__merge": None}, "missing"),
    ({}, {"embedding__weight__change": torch.zeros(31, 17)}, "shapes"),
]  # fmt: skip


@pytest.mark.parametrize("data, tensors, message", DAMAGED, ids=lambda value: str(value)[:30])
def test_damage_is_refused(
    data: dict[str, Any], tensors: dict[str, Any], message: str, written: Path, folder: Path, tmp_path: Path
) -> None:
    path = change(written, tmp_path / "x.adapter", data, **tensors)
    with pytest.raises(UserError, match=message) as caught:
        checkpoint.load(path, base=folder)
    assert str(caught.value).isprintable()


def test_files_that_are_no_adapter(written: Path, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.adapter"
    for content, message in ((written.read_bytes()[:-2], "a whole adapter"), (b"", "a whole adapter")):
        path.write_bytes(content)
        refused(path, message)
    shutil.copy(folder / "model.safetensors", path)
    refused(path, "an adapter written by t2r save")


def test_a_full_disk_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    base = checkpoint.load(folder)
    student = student_of(base)
    with pytest.raises(UserError, match="write"), full_disk(2000):
        checkpoint.save_adapter(tmp_path / "x.adapter", student, base)
    assert list(tmp_path.iterdir()) == []
