"""Two versions of this project beside each other: what a change costs in time.

    python benchmarks/trees.py OLD NEW FOLDER --data TEXT [--convert OPTIONS]... [--rounds N]

OLD and NEW are source trees, FOLDER a Hugging Face checkpoint that both import. Each tree converts, exports and
finetunes it with its own code. Then graphs are run by ONNX Runtime alone, the old and the new one in turn in one
process on one thread, runtimes and commands as processes in turn. A ratio is the median of NEW / OLD pair by pair,
beside it the smallest and the largest: what they differ by is the machine. It wants one that does nothing else.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnxruntime as ort

from t2r_export import python

STEPS, PROMPT, WARMUP = 60, 256, 10
FINETUNE = ["--stages", "transfer,distill", "--steps", "20,20"]
TARGETS = ("portable", "fused")
DTYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}


class Tree:
    """One version: its commands, and the files that it made."""

    def __init__(self, root: Path, work: Path) -> None:
        self.root, self.work = root.resolve(), work
        work.mkdir()

    def run(self, *arguments: str | Path) -> float:
        """Seconds that a command takes as a process; it must succeed."""
        start = time.perf_counter()
        self._python("-c", "from t2r_export.cli import main; main()", *map(str, arguments))
        return time.perf_counter() - start

    def _python(self, *arguments: str) -> str:
        path = os.pathsep.join(map(str, (self.root, self.root / "runtimes" / "python")))
        status, out, said = python.run(*arguments, env={**os.environ, "PYTHONPATH": path}, cwd=self.work)
        if status != 0:
            raise click.ClickException(f"{self.root}: {shlex.join(arguments[2:])}: {said[-500:]}")
        return out

    def step(self, graph: str) -> float:
        """Seconds of a step of this version's runtime, its checks and its copies included."""
        return float(self._python("-c", RUNTIME, graph))

    def companion(self, graph: str) -> Path:
        (found,) = self.work.glob(f"{graph}.*.prefill.onnx")
        return found


class Steps:
    """A step graph whose states are chained."""

    def __init__(self, path: Path) -> None:
        self.session = opened(path)
        self.names = [output.name for output in self.session.get_outputs()]

    def __call__(self) -> float:
        feeds = zeros(self.session, ())
        for _ in range(WARMUP):
            self._step(feeds)
        start = time.perf_counter()
        for _ in range(STEPS):
            self._step(feeds)
        return (time.perf_counter() - start) / STEPS

    def _step(self, feeds: dict[str, Any]) -> None:
        for name, value in zip(self.names, self.session.run(None, feeds), strict=True):
            if name.startswith("present_"):
                feeds["past_" + name.removeprefix("present_")] = value


RUNTIME = f"""
import statistics, sys, time
from t2r_runtime import Decoder

decoder, times = Decoder(sys.argv[1], threads=1), []
for _ in range({WARMUP} + 10 * {STEPS}):
    start = time.perf_counter()
    decoder.step([0])
    times.append(time.perf_counter() - start)
print(statistics.median(times[{WARMUP}:]))
"""


class Prompt:
    """A prefill graph, from the start of a text."""

    def __init__(self, path: Path) -> None:
        self.session = opened(path)
        self.feeds = zeros(self.session, (PROMPT,))

    def __call__(self) -> float:
        start = time.perf_counter()
        self.session.run(None, self.feeds)
        return time.perf_counter() - start


def opened(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def zeros(session: ort.InferenceSession, tokens: tuple[int, ...]) -> dict[str, Any]:
    """Token 0 and states of zeros of one sequence; a length that is free is 0."""
    feeds = {}
    for node in session.get_inputs():
        shape = [n if isinstance(n, int) else int(i == 0) for i, n in enumerate(node.shape)]
        feeds[node.name] = np.zeros((1, *tokens) if node.name == "input_ids" else shape, DTYPES[node.type])
    return feeds


def ratios(old: Callable[[], float], new: Callable[[], float], rounds: int) -> tuple[float, list[float]]:
    """Median seconds of `new`, and NEW / OLD of each round, in which they change places."""
    old(), new()
    times: list[float] = []
    found = []
    for n in range(rounds):
        first, second = (old, new) if n % 2 else (new, old)
        one, two = first(), second()
        before, after = (one, two) if n % 2 else (two, one)
        times.append(after)
        found.append(after / before)
    return statistics.median(times), found


def trained(tree: Tree, data: Path) -> Callable[[], float]:
    """Seconds per token of a short finetune, the stages' own count."""

    def run() -> float:
        for file in tree.work.glob("tuned.pt*"):
            file.unlink()
        tree.run("finetune", "model-0.pt", "tuned.pt", "--data", data.resolve(), *FINETUNE)
        lines = map(json.loads, (tree.work / "tuned.pt.jsonl").read_text().splitlines())
        return statistics.mean(1 / float(line["tokens_per_second"]) for line in lines if "tokens_per_second" in line)

    return run


def measurements(
    old: Tree, new: Tree, folder: Path, data: Path, conversions: Sequence[str]
) -> Mapping[str, tuple[Callable[[], float], Callable[[], float]]]:
    """What is compared: a name, and what returns seconds for each tree."""
    found: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {}
    for n, options in enumerate(conversions):
        for tree in (old, new):
            tree.run("convert", folder.resolve(), f"model-{n}.pt", *shlex.split(options))
        for target in TARGETS:
            graph = f"{n}-{target}.onnx"
            for tree in (old, new):
                tree.run("export", f"model-{n}.pt", graph, "--target", target, "--prefill")
            found[f"step, {options}, {target}"] = Steps(old.work / graph), Steps(new.work / graph)
            found[f"prompt, {options}, {target}"] = Prompt(old.companion(graph)), Prompt(new.companion(graph))
    graph = f"0-{TARGETS[0]}.onnx"
    found["Decoder.step"] = functools.partial(old.step, graph), functools.partial(new.step, graph)
    commands: dict[str, list[str | Path]] = {
        "t2r --help": ["--help"],
        "a first token": ["generate", graph, "--ids", "0", "--max-tokens", "1"],
        "export": ["export", "model-0.pt", "again.onnx", "--prefill"],
    }
    for name, arguments in commands.items():
        found[name] = functools.partial(old.run, *arguments), functools.partial(new.run, *arguments)
    found["finetune, a token"] = trained(old, data), trained(new, data)
    return found


@click.command()
@click.argument("old", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("new", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--data", type=click.Path(exists=True, path_type=Path), required=True, help="Text to finetune on.")
@click.option(
    "--convert",
    "conversions",
    multiple=True,
    default=["--mixer linear:feature_size=32"],
    help="Options of t2r convert.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=9, show_default=True)
@click.option("--only", default="", help="What contains this text.")
@click.option("--work", type=click.Path(path_type=Path), required=True, help="A folder that is not there yet.")
def main(
    old: Path, new: Path, folder: Path, data: Path, conversions: tuple[str, ...], rounds: int, only: str, work: Path
) -> None:
    """Compare the source trees OLD and NEW on the checkpoint in FOLDER."""
    work.mkdir(parents=True)
    trees = Tree(old, (work / "old").resolve()), Tree(new, (work / "new").resolve())
    click.echo("| what | new, ms | new / old |\n|---|---|---|")
    for name, (before, after) in measurements(*trees, folder, data, conversions).items():
        if only in name:
            seconds, found = ratios(before, after, rounds)
            spread = f"{statistics.median(found):.3f} ({min(found):.3f}-{max(found):.3f})"
            click.echo(f"| {name} | {1e3 * seconds:.3g} | {spread} |")


if __name__ == "__main__":
    main()
