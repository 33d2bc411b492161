"""model.pt files: round trip, reproducibility, and what cannot be saved."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import folders
from checkpoint_files import CONFIG, PROVENANCE, random_model
from disk import full_disk
from t2r_export.checkpoints import checkpoint
from t2r_export.config.mixers import WindowConfig
from t2r_export.files import sha256, sha256_beside
from t2r_runtime.errors import UserError


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tied_head": False},
        {"position": "learned", "max_positions": 9},
        {"position": "sinusoidal"},
        {"position": "none", "norm": "rms", "gated_ffn": True, "ffn_bias": False},
        {"layers": (dataclasses.replace(CONFIG.layers[0], folded=True),)},
    ],
)
def test_save_load_round_trip(changes: dict[str, Any], tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    model, path = random_model(config), tmp_path / "model.pt"
    checkpoint.save(path, model, "text", PROVENANCE)
    found = checkpoint.load(path)
    assert found.config == config.build()
    assert found.tokenizer == "text"
    assert found.provenance == PROVENANCE
    assert found.sha256 == sha256(path)
    assert not found.model.training
    assert (found.model.head.weight is found.model.embedding.weight) == config.tied_head
    torch.testing.assert_close(found.model.state_dict(), model.state_dict(), rtol=0, atol=0)
    ids = torch.tensor([[4, 8, 15, 16]])
    torch.testing.assert_close(found.model(ids), model(ids), rtol=0, atol=0)


def test_loaded_model_can_be_trained_and_overwritten(saved: Path) -> None:
    model = checkpoint.load(saved).model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.tensor([[4, 8, 15]])).square().mean().backward()
    optimizer.step()
    assert torch.equal(checkpoint.load(saved).model.embedding.weight, before["embedding.weight"])
    checkpoint.save(saved, model, None, {})
    assert not torch.equal(checkpoint.load(saved).model.embedding.weight, before["embedding.weight"])
    assert checkpoint.load(saved).model.head.weight.requires_grad


def test_save_is_deterministic(saved: Path, tmp_path: Path) -> None:
    found = checkpoint.load(saved)
    again = tmp_path / "another name.pt"
    checkpoint.save(again, found.model, found.tokenizer, found.provenance)
    assert again.read_bytes() == saved.read_bytes()


def test_tied_head_is_stored_once(saved: Path) -> None:
    weights = torch.load(saved, weights_only=True)["weights"]
    assert "embedding.weight" in weights
    assert "head.weight" not in weights


def test_partial_storage_is_stored(saved: Path, tmp_path: Path) -> None:
    model = random_model()
    wide = torch.zeros(3, *model.embedding.weight.shape)
    wide[1] = model.embedding.weight.detach()
    model.embedding.weight.data = wide[1]
    checkpoint.save(tmp_path / "view.pt", model, '{"t": "ö"}', PROVENANCE)
    assert (tmp_path / "view.pt").read_bytes() == saved.read_bytes()


def test_untied_head_with_shared_memory(tmp_path: Path) -> None:
    model = random_model(dataclasses.replace(CONFIG, tied_head=False))
    model.head.weight = model.embedding.weight
    checkpoint.save(tmp_path / "model.pt", model, None, {})
    found = checkpoint.load(tmp_path / "model.pt").model
    assert found.head.weight.data_ptr() != found.embedding.weight.data_ptr()


def test_other_precisions_are_stored_as_float32(tmp_path: Path) -> None:
    model = random_model()
    checkpoint.save(tmp_path / "model.pt", model.double(), None, {})
    assert checkpoint.load(tmp_path / "model.pt").model.embedding.weight.dtype == torch.float32


def test_save_float16(saved: Path, tmp_path: Path) -> None:
    whole = checkpoint.load(saved)
    small_file = tmp_path / "half.pt"
    checkpoint.save(small_file, whole.model, whole.tokenizer, whole.provenance, dtype=torch.float16)
    loaded = checkpoint.load(small_file)
    for name, weight in whole.model.state_dict().items():
        rounded = loaded.model.state_dict()[name]
        assert rounded.dtype == torch.float32
        assert torch.equal(rounded, weight.half().float())
    weights = sum(4 * weight.numel() for weight in whole.model.parameters())
    assert saved.stat().st_size - small_file.stat().st_size > 0.4 * weights
    with torch.no_grad():
        next(whole.model.parameters()).mul_(1e6)
    with pytest.raises(UserError, match="an infinity"):
        checkpoint.save(small_file, whole.model, None, {}, dtype=torch.float16)
    assert checkpoint.load(small_file).sha256 == loaded.sha256


def test_imported_folder_round_trip(tmp_path: Path) -> None:
    folder = checkpoint.load(folders.write_llama(tmp_path / "llama"))
    checkpoint.save(tmp_path / "model.pt", folder.model, folder.tokenizer, folder.provenance)
    file = checkpoint.load(tmp_path / "model.pt")
    assert (file.config, file.provenance) == (folder.config, folder.provenance)
    torch.testing.assert_close(file.model.state_dict(), folder.model.state_dict(), rtol=0, atol=0)


def test_non_finite_weights_are_not_saved(saved: Path) -> None:
    before, model = saved.read_bytes(), random_model()
    with torch.no_grad():
        model.blocks[1].mixers[0].q.weight[2, 3] = torch.nan
    with pytest.raises(UserError, match="finite numbers in 'blocks.1.parts.0.q.weight'; received NaN"):
        checkpoint.save(saved, model, None, {})
    assert saved.read_bytes() == before


def test_provenance_must_be_json(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="plain JSON data as provenance; received .*Tensor is not JSON serializable"):
        checkpoint.save(tmp_path / "model.pt", random_model(), None, {"loss": torch.ones(1)})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [0, 1000, 9000])
def test_full_disk_keeps_old_file(saved: Path, size: int) -> None:
    before = saved.read_bytes()
    assert len(before) > 9000
    message = "to be able to write .*model.pt; received .*; choose another place, or make room"
    with pytest.raises(UserError, match=message), full_disk(size):
        checkpoint.save(saved, random_model(), None, {})
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="to be able to write .*; received No such file or directory"):
        checkpoint.save(tmp_path / "missing" / "model.pt", random_model(), None, {})


def test_background_hash_equals_file_hash(saved: Path, tmp_path: Path) -> None:
    begun = sha256_beside(saved)
    assert checkpoint.load(saved).sha256 == checkpoint.load(saved, begun).sha256 == sha256(saved)
    missing = sha256_beside(tmp_path / "nothing.pt")
    with pytest.raises(FileNotFoundError):
        missing()


def test_invalid_window_is_refused(tmp_path: Path) -> None:
    """A small file whose states take many gigabytes is refused on load."""
    long = dataclasses.replace(CONFIG, layers=(WindowConfig(1 << 20),) * 24)
    checkpoint.save(tmp_path / "long.pt", random_model(long), None, {})
    with pytest.raises(UserError, match="states of at most 2,147,483,648 bytes per sequence; received "):
        checkpoint.load(tmp_path / "long.pt")
    assert len(random_model(long).state_spec(max_state_bytes=1 << 40)) > 24
