"""Damage of folders of AWQ and GPTQ: of how they are packed, of the packed tensors, and of bytes."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from checkpoints.importers.test_packed import AWQ, GPTQ, written
from fuzz.kinds import exported, kind
from fuzz.mutations import damage_file, damage_json
from fuzz.runner import command

METHODS = {"awq": AWQ, "gptq": GPTQ}
CHANGES = (
    lambda tensor: tensor[:1].clone(),
    lambda tensor: tensor.T.contiguous(),
    lambda tensor: tensor.flatten(),
    lambda tensor: tensor[..., None].contiguous(),
    lambda tensor: tensor.double(),
    lambda tensor: tensor.to(torch.int8),
    lambda tensor: torch.zeros_like(tensor),
    lambda tensor: torch.full_like(tensor, -1),
)


def make(folder: Path) -> None:
    for method, how in METHODS.items():
        written(folder / method, how)


def read(chance: random.Random) -> str:
    if chance.randrange(3):
        return command("inspect", "packed")
    return command("export", "packed", "kept.onnx", "--quantize", "keep") if chance.randrange(2) else exported("packed")


@kind
def packed_config(base: Path, here: Path, chance: random.Random) -> str:
    shutil.copytree(base / chance.choice(sorted(METHODS)), here / "packed")
    path = here / "packed" / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] = damage_json(chance, config["quantization_config"])
    path.write_text(json.dumps(config))
    return read(chance)


@kind
def packed_tensors(base: Path, here: Path, chance: random.Random) -> str:
    """Tensors of other shapes, types and values, or none, in files that are well-formed."""
    shutil.copytree(base / chance.choice(sorted(METHODS)), here / "packed")
    path = chance.choice(sorted((here / "packed").glob("*.safetensors")))
    tensors = load_file(path)
    for name in chance.sample(sorted(name for name in tensors if "proj" in name), chance.randint(1, 2)):
        if chance.randrange(6):
            tensors[name] = chance.choice(CHANGES)(tensors[name])
        else:
            del tensors[name]
    save_file(tensors, path)
    return read(chance)


@kind
def packed_bytes(base: Path, here: Path, chance: random.Random) -> str:
    shutil.copytree(base / chance.choice(sorted(METHODS)), here / "packed")
    damage_file(chance, chance.choice(sorted((here / "packed").iterdir())))
    return read(chance)
