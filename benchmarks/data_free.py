"""What finetuning on text that the teacher wrote itself costs against finetuning on the corpus.

    python benchmarks/data_free.py [--steps 300,500] [--feature-size 16] [--tokens 0]

stories260K, all layers converted, 4 · 256 tokens a step. `--tokens` are sampled with `t2r sample`'s function; 0 is as
many as the steps read, so that none is read twice. Both students are measured on the test part of the corpus.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from t2r_export.checkpoints import checkpoint
from t2r_export.config.finetune import FinetuneConfig, Shares, parse_plan
from t2r_export.config.mixers import LinearConfig
from t2r_export.config.recipe import data_folder
from t2r_export.convert import convert
from t2r_export.data.batch import window_batches
from t2r_export.data.corpus import held_out_windows, read_corpus
from t2r_export.finetune import finetune
from t2r_export.quality.evaluate import evaluate
from t2r_export.training.sample import sample

BATCH, LENGTH = 4, 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", default="300,500", help="of the stages transfer and distill")
    parser.add_argument("--feature-size", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=0)
    options = parser.parse_args()
    source, text = data_folder() / "checkpoints" / "stories260K", data_folder() / "text" / "tinystories.txt"
    loaded = checkpoint.load(source)
    plan = parse_plan("transfer,distill", options.steps)
    needed = round(sum(stage.steps for stage in plan) * BATCH * LENGTH / (1 - Shares.valid - Shares.test)) + 2 * LENGTH
    held_out = window_batches(held_out_windows(read_corpus([text], loaded.tokenizer, loaded.config).test, LENGTH))
    teacher = evaluate(loaded.model, held_out).nats
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        np.save(folder / "sampled.npy", sample(loaded.model, options.tokens or needed, LENGTH))
        start = folder / "start.pt"
        checkpoint.save(start, convert(loaded.model, LinearConfig(options.feature_size)), loaded.tokenizer, {})
        print(f"{'text':<12}  {'nats/token':>10}  {'above the teacher':>17}")
        print(f"{'(teacher)':<12}  {teacher:10.4f}", flush=True)
        for data in (text, folder / "sampled.npy"):
            out = folder / f"{data.stem}.pt"
            finetune(
                FinetuneConfig(
                    model=start,
                    output=out,
                    data=(data,),
                    plan=plan,
                    teacher=source,
                    batch=BATCH,
                    length=LENGTH,
                    device="cpu",
                )
            )
            nats = evaluate(checkpoint.load(out).model, held_out).nats
            print(f"{data.stem:<12}  {nats:10.4f}  {nats - teacher:17.4f}", flush=True)


if __name__ == "__main__":
    main()
