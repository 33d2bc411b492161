"""Loss by half-precision states S and z: an experiment for docs/quantization.md, not an option.

    python benchmarks/float16_states.py MODEL.onnx TEXT [--steps 10000]

Two decoders of one float32 graph read the same text in 10,000 chained steps; one rounds its states to float16 after
every step. Printed for each tenth: nats per token of both, share of equal greedy tokens, worst difference of a logit
and of a state, and the share of state values that a step changes in float32 but not in float16 (a half-precision sum
stops changing above 2,048 times its addend).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from t2r_export.quality.quantization import Tokens, read_tokens
from t2r_runtime import Decoder

PARTS = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graph", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--steps", type=int, default=10_000)
    arguments = parser.parse_args()
    wide, half = Decoder(arguments.graph), Decoder(arguments.graph)
    tokens = read_tokens(arguments.text, wide.signature)[: arguments.steps + 1]
    print("| steps | nats, float32 | nats, float16 states | same greedy token | worst logit | states apart | stuck |")
    print("|---|---|---|---|---|---|---|")
    for part in np.array_split(np.arange(len(tokens) - 1), PARTS):
        print(f"| {part[-1] + 1:,} | " + " | ".join(_part(wide, half, tokens, part)) + " |", flush=True)


def _part(wide: Decoder, half: Decoder, tokens: Tokens, steps: Tokens) -> list[str]:
    nats, same, worst, stuck = np.zeros(2), 0, 0.0, 0.0
    for step in steps:
        before = half.state()
        logits = [decoder.step(tokens[step])[0].astype(np.float64) for decoder in (wide, half)]
        exact = half.state()
        rounded = {n: v.astype(np.float16).astype(np.float32) if v.dtype == np.float32 else v for n, v in exact.items()}
        half.set_state(rounded, half.position)
        nats += [np.log(np.exp(x - x.max()).sum()) + x.max() - x[tokens[step + 1]] for x in logits]
        same += int(logits[0].argmax() == logits[1].argmax())
        worst = max(worst, float(np.abs(logits[0] - logits[1]).max()))
        stuck += _stuck(before, exact, rounded)
    apart = max(
        float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-30))
        for a, b in zip(wide.state().values(), half.state().values(), strict=True)
    )
    n = len(steps)
    return [
        *(f"{x / n:.4f}" for x in nats),
        f"{same / n:.1%}",
        f"{worst:.2g}",
        f"{apart:.1e}",
        f"{stuck / n:.1%}",
    ]


def _stuck(before: dict[str, np.ndarray], exact: dict[str, np.ndarray], rounded: dict[str, np.ndarray]) -> float:
    """Share of the changed state values whose change was lost by rounding."""
    moved = stood = 0
    for name, value in exact.items():
        if value.dtype == np.float32:
            moves = value != before[name]
            moved += int(moves.sum())
            stood += int((moves & (rounded[name] == before[name])).sum())
    return stood / max(moved, 1)


if __name__ == "__main__":
    main()
