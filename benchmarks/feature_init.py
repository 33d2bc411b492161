"""What it is worth that a head's φ of q starts as a copy of its group's φ of k: the figures in docs/quality.md.

    python benchmarks/feature_init.py [--steps 300,0] [--feature-size 16] [--seeds 0,1,2]

stories260K, all layers converted, steps of the stages transfer and distill, 4 · 256 tokens each. Prints nats per token
above the teacher on the test part, both ways, a row a seed.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from t2r_export.checkpoints import checkpoint
from t2r_export.config.finetune import FinetuneConfig, parse_plan
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.recipe import data_folder
from t2r_export.convert import convert, provenance
from t2r_export.finetune import finetune
from t2r_export.model.mixers.feature_maps import FeatureMaps, Relu
from t2r_export.model.transformer import Transformer


@torch.no_grad()
def initialise(model: Transformer, copied: bool, seed: int) -> None:
    """φ of q as a copy of φ of k, or drawn on its own."""
    torch.manual_seed(seed)
    for block in model.blocks:
        maps = next(module for module in block.modules() if isinstance(module, FeatureMaps))
        assert isinstance(maps.q, Relu)
        if copied:
            maps.q.copy_from_keys(maps.k)
        else:
            maps.q.reset_parameters()


def gap(folder: Path, feature_size: int, steps: str, seed: int, copied: bool) -> float:
    """Nats per token above the teacher."""
    loaded = checkpoint.load(data_folder() / "checkpoints" / "stories260K")
    model = convert(loaded.model, LinearConfig(feature_size), seed=seed)
    initialise(model, copied, seed)
    start, tuned = folder / "start.pt", folder / f"{seed}-{copied}.pt"
    checkpoint.save(start, model, loaded.tokenizer, provenance(loaded))
    text = data_folder() / "text" / "tinystories.txt"
    plan = parse_plan("transfer,distill", steps)
    report = finetune(
        FinetuneConfig(model=start, output=tuned, data=(text,), plan=plan, batch=4, seed=seed, device="cpu")
    )
    assert report.teacher is not None
    return report.after.nats - report.teacher.nats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", default="300,0", help="of the stages transfer and distill")
    parser.add_argument("--feature-size", type=int, default=16)
    parser.add_argument("--seeds", default="0,1,2")
    options = parser.parse_args()
    print(f"{'seed':>4}  {'own φ_q':>8}  {'copy of φ_k':>11}")
    with tempfile.TemporaryDirectory() as folder:
        for seed in map(int, options.seeds.split(",")):
            own, copy = (gap(Path(folder), options.feature_size, options.steps, seed, c) for c in (False, True))
            print(f"{seed:>4}  {own:8.4f}  {copy:11.4f}", flush=True)


if __name__ == "__main__":
    main()
