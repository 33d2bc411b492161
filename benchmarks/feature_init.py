"""Compare initializations of T2R's feature maps.

    python benchmarks/feature_init.py [--starts own,copy,lifted,…] [--teacher M.pt] [--feature-size 16] [--gated]
        [--after] [--text TEXT] [--stages transfer] [--steps 300] [--rates 1e-2] [--batch 4] [--precision auto]
        [--seeds 0,1,2]

Trains a fully converted student per initialization of W and b in φ(x) = relu(W x + b):

    own     random W and b = 0, independent for q and k
    copy    as own, with the φ of q copied from its group's k: the default of `t2r convert`
    lifted  copy with b = 1: nearly all features are positive at first
    pairs   W = [Q, -Q, R, -R, …] with random rotations Q, R, …: relu(x) and relu(-x) together keep x
    eye     pairs with Q = I
    elu     eye with b = 1: for K = d it is relu(x + 1), equal to elu(x) + 1 above -1
    given   elu(x) + 1 instead of T2R, without parameters; needs K = d

Prints nats per token above the teacher on the test part, a row per seed.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from comparison.data import data_folder
from t2r_export.checkpoints import checkpoint
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.stages import parse_plan
from t2r_export.convert import convert, provenance
from t2r_export.finetune import finetune
from t2r_export.model.mixers.feature_maps import FeatureMaps
from t2r_export.model.mixers.maps import Relu
from t2r_export.model.transformer import Transformer

T2R = ("own", "copy", "lifted", "pairs", "eye", "elu")
STARTS = (*T2R, "given")


def paired(head_size: int, feature_size: int, eye: bool) -> Tensor:
    """W (d, K) of one head: [Q, -Q, R, -R, …]; Q is the identity if `eye`."""
    rotations = [
        torch.eye(head_size) if eye and number == 0 else nn.init.orthogonal_(torch.empty(head_size, head_size))
        for number in range(math.ceil(feature_size / head_size / 2))
    ]
    return torch.cat([signed for rotation in rotations for signed in (rotation, -rotation)], 1)[:, :feature_size]


@torch.no_grad()
def initialise(model: Transformer, start: str, seed: int) -> None:
    """Initialize W and b of all feature maps; `start` is one of T2R."""
    torch.manual_seed(seed)
    for block in model.blocks:
        maps = next(module for module in block.modules() if isinstance(module, FeatureMaps))
        assert isinstance(maps.q, Relu) and isinstance(maps.k, Relu)
        if start == "own":
            maps.q.reset_parameters()
            continue
        if start in ("pairs", "eye", "elu"):
            drawn = [paired(maps.k.head_size, maps.k.size, start != "pairs") for _ in range(maps.k.heads)]
            maps.k.weight.copy_(torch.stack(drawn))
        if start in ("lifted", "elu"):
            maps.k.bias.fill_(1.0)
        maps.q.copy_from_keys(maps.k)


def gap(folder: Path, options: argparse.Namespace, seed: int, start: str) -> float:
    """Nats per token above the teacher."""
    loaded = checkpoint.load(options.teacher)
    mixer = LinearConfig(
        options.feature_size,
        feature_map="elu" if start == "given" else "relu",
        positions="after" if options.after else "keep",
        update_rule="gated" if options.gated else "linear",
        gate="data" if options.gated else "none",
    )
    model = convert(loaded.model, mixer, seed=seed)
    if start in T2R:
        initialise(model, start, seed)
    converted, tuned = folder / "start.pt", folder / f"{seed}-{start}.pt"
    checkpoint.save(converted, model, loaded.tokenizer, provenance(loaded))
    plan = parse_plan(options.stages, options.steps, options.rates)
    config = FinetuneConfig(
        model=converted,
        output=tuned,
        teacher=options.teacher,
        data=(options.text,),
        plan=plan,
        batch=options.batch,
        seed=seed,
        device="cpu",
        precision=options.precision,
    )
    report = finetune(config)
    assert report.teacher is not None
    return report.after.nats - report.teacher.nats


def main() -> None:
    data = data_folder()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", type=Path, default=data / "checkpoints" / "stories260K")
    parser.add_argument("--text", type=Path, default=data / "text" / "tinystories.txt")
    parser.add_argument("--starts", default=",".join(T2R))
    parser.add_argument("--feature-size", type=int, default=16)
    parser.add_argument("--gated", action="store_true", help="data-dependent gate")
    parser.add_argument("--after", action="store_true", help="rotate after the feature map")
    parser.add_argument("--stages", default="transfer")
    parser.add_argument("--steps", default="300")
    parser.add_argument("--rates", default="1e-2")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--seeds", default="0,1,2")
    options = parser.parse_args()
    starts = options.starts.split(",")
    if unknown := set(starts) - set(STARTS):
        parser.error(f"expected starts of {', '.join(STARTS)}; received {', '.join(sorted(unknown))}")
    print("seed", *(f"{start:>8}" for start in starts))
    with tempfile.TemporaryDirectory() as folder:
        for seed in map(int, options.seeds.split(",")):
            gaps = (gap(Path(folder), options, seed, start) for start in starts)
            print(f"{seed:>4}", *(f"{value:8.4f}" for value in gaps), flush=True)


if __name__ == "__main__":
    main()
