"""Compare a character Transformer, an LSTM and the Transformer converted by T2R: loss, and time per token.

    python benchmarks/seed_experiment.py [--work build/seed-experiment] [--characters 100000] [--skip train|time]

The text is tinyshakespeare in lower case without its one "$", which leaves 38 characters: a to z, space, line break and
!&',-.3:;?. Windows of 100 characters; width 8, 2 layers and 2 heads for the Transformer and its student, 4 layers for
the LSTM. Trained: the Transformer 100 epochs, the LSTM 250, the student 100 more on the text alone, from the
Transformer's weights, as T2R does it. An epoch is as many windows as the text has.

Then time against text length, 32 to 8,192 tokens, by eager steps and exported graphs of the Transformer and the
student. Candidates take turns in rounds; figures are medians.

Writes models, graphs, curves.csv, curves.svg, times.csv, times.svg and results.json to the work folder, and reuses
existing models. Plots need the extra `plot`.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from comparison.data import data_folder
from comparison.tables import write_csv
from comparison.timing import machine
from t2r_export.checkpoints import checkpoint
from t2r_export.config.attention import HeadsConfig
from t2r_export.config.finetune import FinetuneConfig
from t2r_export.config.mixers import LinearConfig, SoftmaxConfig
from t2r_export.config.stages import parse_plan
from t2r_export.config.uniform import NoFeedForward, UniformConfig
from t2r_export.convert import convert
from t2r_export.data.corpus import Windows, read_corpus
from t2r_export.export import export
from t2r_export.files import write_bytes
from t2r_export.finetune import finetune
from t2r_export.lab.config.recurrent import LSTMConfig
from t2r_export.model.initialize import initialize
from t2r_export.training import curves
from t2r_export.training.drawing import drawing
from t2r_export.verify import verify
from t2r_runtime import Decoder

LETTERS = "\n !&',-.3:;?abcdefghijklmnopqrstuvwxyz"
LENGTH, BATCH, WIDTH, FEATURES = 100, 16, 8, 8
EPOCHS = {"transformer": 100, "lstm": 250, "t2r": 100}
LENGTHS = [32 << i for i in range(9)]  # to 8,192
TRANSFORMER = UniformConfig(
    vocab_size=len(LETTERS),
    width=WIDTH,
    ffn_size=4 * WIDTH,
    layers=(SoftmaxConfig(),) * 2,
    position="sinusoidal",
    tied_head=False,
    attention=HeadsConfig(heads=2, kv_heads=2, head_size=WIDTH // 2),
)
LSTM = UniformConfig(
    vocab_size=len(LETTERS),
    width=WIDTH,
    ffn_size=1,
    layers=(LSTMConfig(),) * 4,
    feed_forwards=(NoFeedForward(),) * 4,
    norm="none",
    residual=False,
    position="none",
    tied_head=False,
)


def text(work: Path, characters: int) -> Path:
    """Write the common text to the work folder."""
    path = work / "text.txt"
    if not path.exists():
        source = (data_folder() / "text" / "tinyshakespeare.txt").read_text(encoding="utf-8")
        letters = source.lower().replace("$", "")[:characters]
        assert set(letters) <= set(LETTERS), "another text"
        write_bytes(path, letters.encode())
    return path


def tokenizer() -> str:
    """A character tokenizer."""
    made = Tokenizer(models.BPE({letter: i for i, letter in enumerate(LETTERS)}, []))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = decoders.Fuse()
    return str(made.to_str())


def train(name: str, start: Path, work: Path, data: Path, epochs: int) -> dict[str, Any]:
    """Train the model at `start` on the text; returns its row of results."""
    out, done = work / f"{name}.pt", work / f"{name}.json"
    if not (out.exists() and done.exists()):
        loaded = checkpoint.load(start)
        windows = Windows(read_corpus([data], loaded.tokenizer, loaded.config).train, LENGTH, BATCH, 0).count
        steps = math.ceil(epochs * windows / BATCH)
        plan = parse_plan("task", str(steps))
        every = max(1, steps // 50)
        config = FinetuneConfig(
            model=start,
            output=out,
            force=True,
            data=(data,),
            plan=plan,
            length=LENGTH,
            batch=BATCH,
            validate_every=every,
            checkpoint_every=10 * every,
        )
        report = finetune(FinetuneConfig(**{**vars(config), "resume": config.state_path.exists()}))
        row = {
            "model": name,
            "parameters": sum(p.numel() for p in checkpoint.load(out).model.parameters()),
            "epochs": epochs,
            "steps": steps,
            "characters": report.tokens,
            "nats": round(report.after.nats, 4),
            "seconds": round(report.seconds, 1),
        }
        write_bytes(done, json.dumps(row).encode())
    return dict(json.loads(done.read_text()))


def train_all(work: Path, data: Path, share: float) -> list[dict[str, Any]]:
    rows = []
    for name, epochs in EPOCHS.items():
        start = work / f"{name}.start.pt"
        if not start.exists():
            if name == "t2r":
                model = convert(checkpoint.load(work / "transformer.pt").model, LinearConfig(FEATURES))
            else:
                model = initialize((TRANSFORMER if name == "transformer" else LSTM).build(), seed=0)
            checkpoint.save(start, model, tokenizer(), {"origin": "seed experiment"})
        rows.append(train(name, start, work, data, max(1, round(share * epochs))))
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    trained = curves.read_curves([work / f"{name}.pt.jsonl" for name in EPOCHS])
    curves.write_csv(trained, work / "curves.csv")
    curves.draw(trained, work / "curves.svg")
    return rows


def candidates(work: Path) -> dict[str, Callable[[int], list[float]]]:
    """Timed functions by name: text length → seconds of each step."""
    found: dict[str, Callable[[int], list[float]]] = {}
    for name in ("transformer", "t2r"):
        loaded, graph = checkpoint.load(work / f"{name}.pt"), work / f"{name}.onnx"
        export(loaded, graph)
        assert verify(loaded, graph, steps=64).passed, f"{graph} is not the model"
        found[f"{name}, eager"] = partial(eager, loaded.model)
        found[f"{name}, graph"] = partial(exported, Decoder(graph, threads=1))
    return found


@torch.inference_mode()
def eager(model: Any, length: int) -> list[float]:
    states, ids, seconds = model.init_state(1), torch.tensor([1]), []
    for _ in range(length):
        began = time.perf_counter()
        logits, states = model.step(ids, states)
        ids = logits.argmax(-1)
        seconds.append(time.perf_counter() - began)
    return seconds


def exported(decoder: Decoder, length: int) -> list[float]:
    decoder.reset(batch=1)
    ids, seconds = np.array([1]), []
    for _ in range(length):
        began = time.perf_counter()
        ids = decoder.step(ids).argmax(-1)
        seconds.append(time.perf_counter() - began)
    return seconds


def time_all(work: Path, rounds: int, longest: int) -> list[dict[str, Any]]:
    """Total time per text length, and time per token at its end (median of the last eighth)."""
    forms, order = candidates(work), np.random.default_rng(0)
    measured: dict[str, list[np.ndarray]] = {name: [] for name in forms}
    for form in forms.values():
        form(LENGTHS[0])  # warm-up
    for _ in range(rounds):
        for name in order.permutation(list(forms)):
            measured[name].append(np.array(forms[name](longest)))
    rows = []
    for name, runs in measured.items():
        for length in (n for n in LENGTHS if n <= longest):
            total = np.median([run[:length].sum() for run in runs])
            last = np.median([np.median(run[length - length // 8 : length]) for run in runs])
            rows.append({"form": name, "length": length, "seconds": float(total), "milliseconds_a_token": 1e3 * last})
    return rows


def write_times(rows: list[dict[str, Any]], work: Path) -> None:
    write_csv(rows, work / "times.csv")
    with drawing(work / "times.svg", size=(9, 4)) as figure:
        axes = figure.subplots(1, 2)
        for axis, key, label in zip(
            axes, ("seconds", "milliseconds_a_token"), ("s in all", "ms per token"), strict=True
        ):
            for name in dict.fromkeys(row["form"] for row in rows):
                points = [(row["length"], row[key]) for row in rows if row["form"] == name]
                axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name)
            axis.set(xscale="log", yscale="log", xlabel="tokens written", ylabel=label)
            axis.grid(alpha=0.3)
        axes[0].legend()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("build/seed-experiment"))
    parser.add_argument("--characters", type=int, default=100_000, help="length of the text")
    parser.add_argument("--share", type=float, default=1.0, help="share of the epochs, for trial runs")
    parser.add_argument("--longest", type=int, default=LENGTHS[-1], help="longest timed text")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--skip", choices=("train", "time"), help="part to skip; times need an idle machine")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.work.mkdir(parents=True, exist_ok=True)
    path = options.work / "results.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    if options.skip != "train":
        data = text(options.work, options.characters)
        results["training"] = train_all(options.work, data, options.share)
    if options.skip != "time":
        results["times"] = time_all(options.work, options.rounds, options.longest)
        write_times(results["times"], options.work)
        for row in results["times"]:
            print(
                "  ".join(
                    f"{key} {value:.4g}" if isinstance(value, float) else f"{value}" for key, value in row.items()
                )
            )
    write_bytes(path, (json.dumps({**results, "machine": machine()}, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
