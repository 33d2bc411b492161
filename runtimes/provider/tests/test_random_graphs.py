"""Random graphs of the provider's operators, and mutants of golden graphs.

Each is equal to ONNX Runtime's results, not claimed, or invalid for both. Thousands more than the tests draw:
T2R_FUZZ_RUNS=10000 T2R_FUZZ_SEED=1 pytest --timeout 0 runtimes/provider/tests/test_random_graphs.py
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable

import mutants
import pytest
import random_graphs
from differential import Feeds, compared
from onnx import ModelProto

RUNS = int(os.environ.get("T2R_FUZZ_RUNS", "200"))
SEED = int(os.environ.get("T2R_FUZZ_SEED", "0"))  # of the first graph


@pytest.mark.parametrize("draw, bound", [(random_graphs.draw, 1e-5), (mutants.draw, 1e-4)], ids=["graphs", "mutants"])
def test_random_graphs(draw: Callable[[int], tuple[ModelProto, Feeds]], bound: float) -> None:
    counts: Counter[str] = Counter()
    wrong = []
    for seed in range(SEED, SEED + RUNS):
        sys.stderr.write(f"\r{seed} ")  # shows the last one if the process ends, with pytest -s
        made, feeds = draw(seed)
        try:
            counts[compared(made, feeds, bound)] += 1
        except Exception as error:
            wrong.append(f"{seed}: {' '.join(node.op_type for node in made.graph.node[:6])}: {error}")
    assert not wrong, "\n".join([f"{len(wrong)} wrong", *wrong])
    assert counts["equal"] > RUNS / 4 and counts["not claimed"] > RUNS / 20, counts
