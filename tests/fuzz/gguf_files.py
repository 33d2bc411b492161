"""Damage of GGUF files: of the bytes of header and tensors, and of values in a whole header."""

from __future__ import annotations

import functools
import math
import random
import shutil
from pathlib import Path
from typing import Any

import gguf

import folders
from checkpoints.gguf import test_rwkv7_files
from checkpoints.gguf.test_architectures import CASES
from checkpoints.gguf.writer import Arrays, Values, write
from checkpoints.importers.test_rwkv7 import tensors as rwkv7_tensors
from cli_models import LETTERS
from fuzz.kinds import exported, kind
from fuzz.mutations import VALUES, damage_bytes, damage_file
from fuzz.runner import command

MODEL = "model.gguf"
TOKENS = ["<s>", "</s>", *LETTERS]
KEYS: Values = {
    "vocab_size": 31,
    "block_count": 2,
    "context_length": 40,
    "embedding_length": 18,
    "feed_forward_length": 11,
    "attention.head_count": 6,
    "attention.head_count_kv": 3,
    "attention.key_length": 4,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 1000.0,
    "rope.dimension_count": 4,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 2.0,
    "rope.scaling.original_context_length": 20,
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.scores": [float(-number) for number in range(len(TOKENS))],
    "tokenizer.ggml.token_type": [3, 3] + [1] * len(LETTERS),
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 1,
    "tokenizer.chat_template": "{{ messages[0]['content'] }}",
    "general.sampling.temp": 0.5,
}
HEADER = 2048  # bytes, in which most damage is done


OTHERS = ("granitehybrid rotary, with experts", "lfm2moe", "gemma3", "qwen35moe")  # of CASES


@functools.cache
def contents() -> dict[str, tuple[str, Values, Arrays]]:
    """Architecture, keys and tensors of each file; made before cases fork."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    shapes = folders.random_tensors(folders.llama_shapes())
    llama = {names.get_name(name, (".weight",)): tensor.numpy() for name, tensor in shapes.items()}
    rwkv7 = test_rwkv7_files.converted(rwkv7_tensors())
    others = {name: (CASES[name].architecture, *CASES[name].contents()[1:]) for name in OTHERS}
    return {"llama": ("llama", KEYS, llama), "rwkv7": ("rwkv7", test_rwkv7_files.KEYS, rwkv7), **others}


def make(folder: Path) -> None:
    (folder / "gguf").mkdir()
    for number, content in enumerate(contents().values()):
        write(folder / "gguf" / f"{number}.gguf", *content)


def read(chance: random.Random) -> str:
    return exported(MODEL) if chance.randrange(2) else command("inspect", MODEL)


@kind
def gguf_bytes(base: Path, here: Path, chance: random.Random) -> str:
    path = Path(shutil.copy(chance.choice(sorted((base / "gguf").iterdir())), here / MODEL))
    content = path.read_bytes()
    if chance.randrange(4):
        path.write_bytes(damage_bytes(chance, content[:HEADER]) + content[HEADER:])
    else:
        damage_file(chance, path)
    return read(chance)


@kind
def gguf_values(base: Path, here: Path, chance: random.Random) -> str:
    """Values of other types and sizes, and other shapes, in a file that is well-formed."""
    architecture, *both = contents()[chance.choice(sorted(contents()))]
    values, arrays = map(dict, both)
    for key in chance.sample(sorted(values), chance.randint(0, 2)):
        values[key] = chance.choice([value for value in (*VALUES, *values.values()) if storable(value)])
    if values.get("attention.sliding_window") == 1 << 20:  # a state of 1.5 GB is no fault
        values["attention.sliding_window"] = 1 << 8
    for name in chance.sample(sorted(arrays), chance.choice((0, 0, 1))):
        arrays[name] = arrays[name][:1] if chance.randrange(2) else arrays[name].T
    write(here / MODEL, architecture, values, arrays)
    return read(chance)


def storable(value: Any) -> bool:
    """Whether a file can have the value; numbers are unsigned and of 32 bits."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(one, str | int | float) for one in value)
    if isinstance(value, str):
        return value != "\ud800"
    if isinstance(value, float):
        return not 1e38 < abs(value) < math.inf  # beyond float32
    return isinstance(value, bool) or (isinstance(value, int) and 0 <= value < 1 << 32)
