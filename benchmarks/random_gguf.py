"""Write a GGUF file of a recurrent family at a published size, with random weights: random_gguf.py NAME OUT.gguf.

    python benchmarks/random_gguf.py lfm2-350m lfm2.gguf [--type Q4_0]

For benchmarks/beside_llama.py. Speed does not depend on the values of weights. Matrices are quantized, filters and
vectors are float32, and there is no vocabulary.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "tests")]

import gguf  # noqa: E402

from checkpoints.gguf import hybrid_files, test_architectures  # noqa: E402
from checkpoints.gguf.writer import Arrays, Values, tensors_of, write  # noqa: E402
from published_sizes import random_model  # noqa: E402

# name in published_sizes.SIZES -> architecture, its keys, and the change of its tensors
FILES: dict[str, tuple[str, Callable[[Any], Values], Callable[[Arrays, Any], Arrays]]] = {
    "granite-h-350m": ("granitehybrid", hybrid_files.granite, hybrid_files.halves),
    "lfm2-350m": ("lfm2", hybrid_files.lfm2, hybrid_files.filters),
    "mamba2-130m": ("mamba2", test_architectures.ssm, test_architectures.states),
    "qwen3.5-0.8b": ("qwen35", hybrid_files.delta, hybrid_files.tiled),
}
ADDED: dict[str, Values] = {
    "lfm2-350m": {"feed_forward_length": 4608},  # after transformers' own adjustment
    "qwen3.5-0.8b": {"full_attention_interval": 4, "rope.dimension_sections": [11, 11, 10, 0]},
}


def is_matrix(tensor: Any) -> bool:
    """Whether a tensor is quantized: norms, one row in some files, are not."""
    return bool(tensor.ndim == 2 and len(tensor) > 1 and tensor.shape[1] % 32 == 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=FILES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", default="Q4_0", choices=("Q4_0", "Q4_1", "Q8_0", "F32"))
    options = parser.parse_args()
    architecture, values, change = FILES[options.name]
    model = random_model(options.name)
    tensors = change(tensors_of(model, architecture), model.config)
    kind = gguf.GGMLQuantizationType[options.type]
    kinds = {name: kind for name, tensor in tensors.items() if is_matrix(tensor)}
    keys = {"tokenizer.ggml.model": "no_vocab", **values(model.config), **ADDED.get(options.name, {})}
    write(options.out, architecture, keys, tensors, kinds)


if __name__ == "__main__":
    main()
