"""The intact inputs: a folder of small models, graphs, texts and states."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import torch

import folders
from cli_models import CONFIG, LETTERS, letter_tokenizer
from fuzz import generation, gguf_files, packed_folders, training, translators
from fuzz.runner import command, whole
from t2r_export.checkpoints import checkpoint
from t2r_export.config.mixers import LinearConfig
from t2r_export.convert import convert, provenance
from t2r_export.model.transformer import Transformer

RECIPE = """
text = "text.txt"
[tokenizer]
vocab_size = 262
[model]
vocab_size = 262
width = 12
attention = { heads = 2, kv_heads = 2, head_size = 6 }
ffn_size = 20
layers = [{ kind = "softmax" }]
position = "sinusoidal"
bos_token = 0
eos_tokens = [0]
[teacher]
steps = "1"
batch = 2
length = 8
[[student]]
name = "one"
convert = { feature_size = 3 }
finetune = { stages = "transfer", steps = "1", batch = 2, length = 8 }
"""
LINES = [
    ["convert", "source.pt", "x.pt", "--mixer", "window:window=4,sinks=1"],
    ["convert", "source.pt", "x.pt", "--mixer", "linear:feature_size=3,guard.kind=add", "--layers", "0"],
    ["export", "model.pt", "x.onnx", "--batch", "2", "--target", "npu", "--top-k", "2"],
    ["export", "model.pt", "x.onnx", "--prefill", "--draft-check", "--state-layout", "packed"],
    ["export", "model.pt", "x.onnx", "--quantize", "w4:block_size=16"],
    ["finetune", "model.pt", "x.pt", "--data", "text.txt", "--steps", "1,1", "--batch", "2", "--length", "8"],
    ["generate", "graph.onnx", "--prompt", "abc", "--max-tokens", "3", "--temperature", "0.5", "--seed", "3"],
    ["export", "student.adapter", "x.onnx", "--base", "source.pt"],
    ["verify", "model.pt", "graph.onnx", "--steps", "3", "--provider", "cpu"],
    ["quantize", "graph.onnx", "x.onnx", "--scheme", "w8:block_size=32"],
    ["evaluate", "model.pt", "text.txt", "--lengths", "8"],
    ["inspect", "graph.onnx", "--json"],
    ["bench", "graph.onnx", "--measure", "steps=1,rounds=1,starts=0,prompt=2"],
]  # fmt: skip


def make(folder: Path) -> Path:
    """Fill the folder and return it: the same weights in each run, so that a case can be repeated."""
    torch.manual_seed(1)
    folders.write_llama(folder / "llama")
    folders.write_gpt2(folder / "gpt2")
    folders.write_lora(folder / "llama")
    folders.write_tokens(folder / "gpt2")
    for family in ("llama", "gpt2"):
        (folder / family / "tokenizer.json").write_text(letter_tokenizer())
    (folder / "tokenizer.json").write_text(letter_tokenizer())
    teacher = checkpoint.made(Transformer(CONFIG.build()).eval(), letter_tokenizer(), {"origin": "random weights"})
    checkpoint.save(folder / "source.pt", teacher.model, teacher.tokenizer, teacher.provenance)
    student = convert(teacher.model, LinearConfig(3))
    checkpoint.save(folder / "model.pt", student, teacher.tokenizer, provenance(teacher, layers="all"))
    (folder / "text.txt").write_text("once upon a time, there was a hen.\n<|endoftext|>\n" * 20)
    np.save(folder / "ids.npy", np.arange(400) % len(LETTERS))
    (folder / "recipe.toml").write_text(RECIPE)
    (folder / "lines.json").write_text(json.dumps(LINES))
    whole("save", folder / "model.pt", folder / "student.adapter", "--as", "adapter", "--base", folder / "source.pt")
    whole("export", folder / "model.pt", folder / "graph.onnx", "--prefill", "--draft-check")
    whole("generate", folder / "graph.onnx", "--ids", "1", "--max-tokens", "1", "--save-state", folder / "saved.state")
    _interrupted(folder)
    translators.make(folder)
    generation.make(folder)
    gguf_files.make(folder)
    packed_folders.make(folder)
    training.make(folder)
    return folder


def _interrupted(folder: Path) -> None:
    """A killed run and the command line that resumes it."""
    line = ["finetune", "model.pt", "tuned.pt", "--data", "text.txt", "--stages", "distill", "--steps", "24"]
    line += ["--batch", "2", "--length", "8", "--every", "checkpoint=1"]
    (folder / "run.json").write_text(json.dumps(line))
    run = folder / "run"
    while not (run / "tuned.pt.training").exists():
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir()
        for name in ("model.pt", "text.txt"):
            shutil.copy(folder / name, run)
        child = os.fork()
        if child == 0:
            os.chdir(run)
            command(*line)
            os._exit(0)
        end = time.monotonic() + 60
        while not (run / "tuned.pt.training").exists() and time.monotonic() < end:
            if os.waitpid(child, os.WNOHANG)[0]:
                break
            time.sleep(0.005)
        else:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
