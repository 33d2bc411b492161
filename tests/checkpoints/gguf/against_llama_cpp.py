"""Logits of the small GGUF files of our tests, as we read them, beside llama.cpp's in float32.

    pip install llama-cpp-python
    python -m tests.checkpoints.gguf.against_llama_cpp

Files differ from those of the tests where llama.cpp has fixed numbers in place of keys, or a limit: LIKE. Exit 1 if a
difference is above LIMIT, relative to the largest logit. GELU is a table of float16 in llama.cpp, whose rounding later
layers amplify.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2])]
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

import numpy as np  # noqa: E402
import torch  # noqa: E402

from checkpoints.gguf import test_rwkv7_files  # noqa: E402
from checkpoints.gguf.test_architectures import CASES, Case  # noqa: E402
from checkpoints.gguf.writer import Arrays, Values, write  # noqa: E402
from checkpoints.importers import test_rwkv7  # noqa: E402
from checkpoints.importers.peers import error  # noqa: E402
from t2r_export.checkpoints import checkpoint  # noqa: E402
from t2r_export.checkpoints.importers.rwkv7 import RWKV7  # noqa: E402
from t2r_export.checkpoints.weights import weight_shapes  # noqa: E402

TOKENS, LIMIT, GELU_LIMIT = 37, 5e-6, 5e-3
GELU = ("bloom", "gemma", "gpt2", "gptneox", "phi2", "starcoder2")
NO_TOKENIZER: Values = {"tokenizer.ggml.model": "no_vocab", "vocab_size": 31}
EVERY_HEAD, EXPANDED = {"num_key_value_heads": 6}, {"mamba_expand": 2, "mamba_n_heads": 6, "mamba_d_head": 8}
DELTA = {"rms_norm_eps": 1e-6, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
# name of a case -> changes of its config, and of its keys
LIKE: dict[str, tuple[dict[str, Any], Values]] = {
    "arcee": ({"attention_bias": False, "mlp_bias": False}, {}),
    "dots1": (EVERY_HEAD, {}),
    "ernie4_5-moe": ({"moe_layer_interval": 1}, {"expert_shared_feed_forward_length": 16}),
    "falcon-mamba": ({"intermediate_size": 48, "layer_norm_epsilon": 1e-6}, {}),
    "granitehybrid": (EXPANDED, {}),
    "granitehybrid rotary, with experts": (
        {**EXPANDED, "mamba_proj_bias": False},
        {"expert_shared_feed_forward_length": 11},
    ),
    "granitemoe shared": ({}, {"expert_shared_feed_forward_length": 7}),
    "hunyuan-dense": ({"attention_bias": False}, {}),
    "jamba without experts": ({"mamba_proj_bias": False}, {"expert_count": 0, "expert_used_count": 0}),
    "lfm2moe": ({"routed_scaling_factor": 1.0}, {}),
    "mamba": ({"intermediate_size": 48}, {}),
    "olmoe": (EVERY_HEAD, {}),
    "phi3": ({"sliding_window": None}, {"attention.sliding_window": 0}),
    "phi3 longrope": ({"sliding_window": None}, {"attention.sliding_window": 0}),
    "seed_oss": ({"attention_out_bias": False}, {}),
    **{name: (DELTA, {}) for name in CASES if name.startswith(("qwen35", "qwen3next"))},
}
WINDOWS = ("exaone4 windows",)  # llama.cpp has them with 64 layers only
RWKV: dict[str, Any] = {**test_rwkv7.CONFIG, "hidden_size": 128, "head_dim": 64, "norm_eps": 1e-5}


def contents(name: str, case: Case) -> tuple[Values, Arrays]:
    """Keys and tensors of a case's file, without layers that draft tokens, which llama.cpp wants whole."""
    config, keys = LIKE.get(name, ({}, {}))
    _, values, tensors = replace(case, config=case.config | config).contents()
    values = {key: value for key, value in values.items() if not key.startswith("tokenizer")} | NO_TOKENIZER | keys
    if not (drafts := values.pop("nextn_predict_layers", 0)):
        return values, tensors
    layers = values["block_count"] - drafts
    values = {key: value[:layers] if isinstance(value, list) else value for key, value in values.items()}
    dropped = tuple(f"blk.{layers + number}." for number in range(drafts))
    return {**values, "block_count": layers}, {k: x for k, x in tensors.items() if not k.startswith(dropped)}


def rwkv7() -> tuple[Values, Arrays]:
    """Heads of 64, as llama.cpp needs them."""
    config = RWKV7.config(RWKV7.fields(RWKV, "config.json"))
    ours, random = weight_shapes(config), np.random.default_rng(0)
    sources = RWKV7.sources(config, ours)
    folder = {name: 0.3 * random.standard_normal(source.shape(ours)) for name, source in sources.items()}
    sizes = {"embedding_length": 128, "wkv.head_size": 64, "attention.layer_norm_epsilon": 1e-5}
    return {**test_rwkv7_files.KEYS, **sizes}, test_rwkv7_files.converted(folder)


def theirs(path: Path, ids: list[int]) -> np.ndarray[Any, Any]:
    """Logits (T, V) of llama.cpp, with a cache in float32."""
    import llama_cpp

    model = llama_cpp.Llama(str(path), n_ctx=64, logits_all=True, n_threads=1, type_k=0, type_v=0, verbose=False)
    model.eval(ids)
    return np.array(model.scores[: len(ids)])


@torch.no_grad()
def compare(name: str, path: Path) -> bool:
    """Print the difference for a file. Returns: whether it is within the limit."""
    ids = torch.randint(0, 31, (1, TOKENS), generator=torch.Generator().manual_seed(1))
    found = error(checkpoint.load(path).model(ids)[0], theirs(path, ids[0].tolist()))
    print(f"| {name} | {found:.1e} |", flush=True)
    return found < (GELU_LIMIT if name.startswith(GELU) else LIMIT)


def main() -> int:
    print("| file | difference |\n|---|---|", flush=True)
    failed = []
    for name in [*CASES, "rwkv7"]:
        if name in WINDOWS:
            continue
        with tempfile.TemporaryDirectory() as folder:
            kind, both = (
                ("rwkv7", rwkv7()) if name == "rwkv7" else (CASES[name].architecture, contents(name, CASES[name]))
            )
            path = write(Path(folder) / "model.gguf", kind, *both)
            child = os.fork()  # llama.cpp ends its process by some errors
            if child == 0:
                with contextlib.suppress(BaseException):
                    os._exit(not compare(name, path))
                os._exit(1)
            if os.waitpid(child, 0)[1]:
                failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all within the limits")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
