"""Repetition by sampling options: the basis of the defaults of `t2r demo`.

    python benchmarks/repetition.py models/storyteller/model.pt

Samples texts with equal seeds for each setting, and prints the share of repeated 4-grams of tokens.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

from t2r_export.checkpoints import checkpoint
from t2r_export.export import export
from t2r_runtime import Decoder, Sampling, Tokenizer

GRAM = 4  # tokens
NUCLEI = ((0.4, 0.95), (0.6, 0.9), (0.6, 0.95), (0.8, 0.9), (0.8, 0.95), (1.0, 1.0))  # temperature, top-p
PENALTIES = (1.1, 1.3)  # with temperature 0.6, top-p 0.9
SETTINGS = (
    *(Sampling(temperature, top_p=top_p) for temperature, top_p in NUCLEI),
    Sampling(1.0, min_p=0.1),
    *(Sampling(0.6, top_p=0.9, repetition_penalty=penalty) for penalty in PENALTIES),
)


def repeated(tokens: Sequence[int]) -> float:
    """Share of repeated 4-grams; 0 for short texts."""
    grams = [tuple(tokens[i : i + GRAM]) for i in range(len(tokens) - GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--tokens", type=int, default=240)
    parser.add_argument("--seeds", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        export(checkpoint.load(options.model), Path(folder) / "model.onnx")
        decoder = Decoder(Path(folder) / "model.onnx")
        prompt = Tokenizer.of(decoder.signature).encode(options.prompt)
        print(f"| temperature | top-p | min-p | penalty | repeated {GRAM}-grams |\n|---|---|---|---|---|")
        for rules in SETTINGS:
            shares = []
            for seed in range(options.seeds):
                decoder.reset()
                seeded = dataclasses.replace(rules, seed=seed)
                shares.append(repeated(decoder.generate(prompt, options.tokens, seeded)))
            said = (rules.temperature, rules.top_p, rules.min_p, rules.repetition_penalty)
            print(f"| {' | '.join(map(str, said))} | {sum(shares) / len(shares):.1%} |", flush=True)


if __name__ == "__main__":
    main()
