"""Untrusted files: other archives, code, wrong types. Loading gives a checkpoint or a one-line error."""

from __future__ import annotations

import contextlib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoint_files import Change, put, random_model, refused
from t2r_export.checkpoints import checkpoint
from t2r_export.config.model import ModelConfig
from t2r_runtime.errors import UserError


def test_missing_checkpoint_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "model.pt", "a checkpoint at .*model.pt; received nothing; pass a model.pt made by t2r, a")


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04" + b"\0" * 100, b"\x80\x02}q\0."])
def test_other_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(content)
    refused(path, "a checkpoint in .*model.pt; received no archive, or a part of one")


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.99])
def test_truncated_checkpoint_is_refused(saved: Path, keep: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(keep * len(content))])
    refused(saved, "received no archive, or a part of one")


def test_other_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme", "hello")
    refused(path, "a checkpoint in .*model.pt; received another archive")


def test_compressed_archive_is_refused(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.namelist():
            new.writestr(member, old.read(member))
    refused(path, "a checkpoint in .*bomb.pt; received an archive with compressed members")


class Code:
    """Pickles as a function call."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("this must never be printed",)


@pytest.mark.parametrize("where", ["weights", "config", "provenance"])
def test_code_in_checkpoint_is_never_run(saved: Path, where: str, capsys: Any) -> None:
    data = torch.load(saved, weights_only=True)
    data[where]["more"] = Code()
    torch.save(data, saved)
    refused(
        saved, r"tensors and plain data, and nothing else, in .*; received a reference to [a-z_.]*print; do not trust"
    )
    assert capsys.readouterr().out == ""


def test_pickled_module_is_refused(tmp_path: Path) -> None:
    torch.save(random_model(), tmp_path / "model.pt")
    refused(
        tmp_path / "model.pt",
        "received a reference to t2r_export.model.transformer.Transformer; do not",
    )


def test_bare_state_dict_is_refused(tmp_path: Path) -> None:
    torch.save(random_model().state_dict(), tmp_path / "model.pt")
    refused(tmp_path / "model.pt", "a checkpoint in .*; received something else")


def drop(*keys: str) -> Change:
    def change(data: dict[str, Any]) -> None:
        for key in keys[:-1]:
            data = data[key]
        del data[keys[-1]]

    return change


Q = ("weights", "blocks.1.parts.0.q.weight")


@pytest.mark.parametrize(
    "change, message",
    [
        (put("version", value=4), "version 5 of .*; received 4; use the version of t2r that wrote it"),
        (
            drop("tokenizer"),
            "the keys format, version, config, weights, tokenizer, provenance in .*; received config, ",
        ),
        (
            put("extra", value=1),
            "the keys format, .*; received config, extra, format, provenance, tokenizer and 2 more",
        ),
        (put("tokenizer", value=3), "a text as the tokenizer in .*; received int"),
        (put("provenance", value=[]), "an object as the provenance in .*; received list"),
        (put("provenance", "x", value=torch.ones(1)), "plain data as 'provenance' in .*; received a Tensor"),
        (put("config", "width", value=(1, 2)), "plain data as 'config' in .*; received a tuple"),
        (
            put("provenance", 3, value=1),
            "data as 'provenance' in .*; received an object with keys that are no texts",
        ),
        (put("weights", value=[]), "tensors by name as the weights in .*; received something else"),
        (put(*Q, value=1.0), "tensors by name as the weights"),
        (put(*Q, value=torch.ones(1, 12).expand(24, 12)), "tensors by name as the weights"),
        (put(*Q, value=torch.ones(24, 12, device="meta")), "received a reference to torch._utils._rebuild_meta_tensor"),
        (put(*Q, value=torch.ones(24, 12).to_sparse()), "received a reference to torch._utils._rebuild_sparse_tensor"),
        (
            put(*Q, value=torch.full((24, 12), torch.inf)),
            "finite numbers in 'blocks.1.parts.0.q.weight'; received an inf",
        ),
        (put(*Q, value=torch.ones(24, 12).int()), "dense floating-point numbers in .*; received strided of int32"),
        (
            put(*Q, value=torch.ones(12, 24)),
            "the shapes .*; received blocks.1.parts.0.q.weight 12×24 instead of 24×12",
        ),
        (
            drop(*Q),
            "the 59 tensors that its config describes; received missing blocks.1.parts.0.q.weight, unexpected none",
        ),
        (
            put("weights", "x", value=torch.ones(1)),
            "received missing none, unexpected x; check that config and weights",
        ),
        (
            drop("config", "width"),
            r"model to have the keys .*; received missing \['width'\], unexpected none",
        ),
        (put("config", "more", value=1), r"received missing none, unexpected \['more'\]"),
        (put("config", value=3), "model to be a JSON object; received int"),
        (put("config", "layers", value=[3]), "model.layers to be a JSON object; received int"),
        (put("config", "eos_tokens", value=3), "model.eos_tokens to be a list of at most 1048576; received int"),
        (put("config", "width", value=11), "the shapes that its config describes"),
        (put("config", "logit_scale", value=10**400), "logit_scale to be a finite positive number"),
    ],
)
def test_wrong_types_in_checkpoint_are_refused(saved: Path, change: Change, message: str) -> None:
    data = torch.load(saved, weights_only=True)
    change(data)
    torch.save(data, saved)
    refused(saved, message)


def test_shared_storage_is_refused(saved: Path) -> None:
    data = torch.load(saved, weights_only=True)
    weight = torch.ones(24 * 12)
    for layer in range(1000):
        data["weights"][f"blocks.{layer}.parts.0.q.weight"] = weight.view(24, 12)
    torch.save(data, saved)
    refused(saved, r"weights of at most the \d+ bytes of .*; received \d+ bytes")


def test_huge_sizes_are_refused(saved: Path) -> None:
    data = torch.load(saved, weights_only=True)
    huge = 1 << 20
    data["config"] |= {"width": huge, "positions": None}
    for layer in data["config"]["layers"]:
        layer["parts"][0] |= {"heads": huge, "kv_heads": huge, "head_size": huge, "positions": None}
    data["config"]["layers"][0]["parts"][0]["inside"] |= {"feature_size": huge, "folded": True}
    torch.save(data, saved)
    refused(saved, "sizes that fit into memory; received Storage size calculation overflowed")


@pytest.mark.parametrize("wrong", [None, "x", -1, 0, 1.5, True, [], {}, float("nan"), 10**30])
def test_wrong_config_types_are_refused(saved: Path, wrong: Any) -> None:
    original = torch.load(saved, weights_only=True)["config"]
    part = original["layers"][0]["parts"][0]
    owners = [
        original,
        original["layers"][0],
        part,
        part["norm"],
        part["positions"],
        part["inside"],
        part["inside"]["guard"],
    ]
    places = [(owner, key) for owner in owners for key in owner]
    for owner, key in places:
        before, owner[key] = owner[key], wrong
        with contextlib.suppress(UserError):  # some values are valid for some keys
            ModelConfig.from_dict(original)
        owner[key] = before


@pytest.mark.parametrize("name", ["x" * 300 + ".pt", "model.pt/more.pt", "y" * 300])
def test_invalid_path_is_refused(saved: Path, name: str) -> None:
    refused(saved.parent / name, "a checkpoint at .*; received nothing; pass a model.pt")
    with pytest.raises(UserError, match="to be able to write .*; received (File name too long|Not a directory)"):
        checkpoint.save(saved.parent / name, random_model(), None, {})
