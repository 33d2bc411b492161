"""Compare the logits of other engines with our softmax model's after 40 random tokens.

    python benchmarks/same_model.py [--size smollm-135m]

Needs the extra `peers`. Prints the largest difference, the standard deviation of our logits, and the correlation: F32
must agree, other forms differ by their rounding.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import llama_cpp
import numpy as np
import onnxruntime_genai
import torch

from comparison.engines import make, parse
from comparison.runners import random_ids
from comparison.sizes import softmax_model

TOKENS = 40


def of_llama(path: Path, ids: np.ndarray, vocabulary: int) -> np.ndarray:
    llama = llama_cpp.Llama(str(path), n_ctx=2 * TOKENS, verbose=False)
    llama.eval(ids.tolist())
    return np.array(np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llama.ctx, -1), (vocabulary,)))


def of_genai(path: Path, ids: np.ndarray, vocabulary: int) -> np.ndarray:
    model = onnxruntime_genai.Model(str(path))
    parameters = onnxruntime_genai.GeneratorParams(model)
    parameters.set_search_options(max_length=2 * TOKENS)
    generator = onnxruntime_genai.Generator(model, parameters)
    generator.append_tokens(ids.astype(np.int32))
    return np.asarray(generator.get_logits().reshape(-1, vocabulary)[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="smollm-135m")
    size = parser.parse_args().size
    model = softmax_model(size)
    ids = random_ids(TOKENS, model.config.vocab_size)
    with torch.no_grad():
        ours = model(torch.from_numpy(ids)[None])[0, -1].numpy()
    names = ["llama.cpp:F32", "llama.cpp:Q8_0", "llama.cpp:Q4_0"]
    if model.config.rotates:  # of the family that genai's builder knows
        names += ["genai:fp32", "genai:int4"]
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            files = make(parse(name), size, Path(folder))
            read = of_genai if name.startswith("genai") else of_llama
            theirs = read(files.path, ids, len(ours))
        worst, close = np.abs(ours - theirs).max(), np.corrcoef(ours, theirs)[0, 1]
        print(f"{name:16} worst {worst:.2g} of a deviation of {ours.std():.2g}, correlation {close:.7f}")


if __name__ == "__main__":
    main()
