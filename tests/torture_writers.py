"""torture_writers.py once|on FOLDER WRITER...: every operation of a writer on its files fails, one after another.

Runs with the compiled torture.c preloaded. After a failure, which must be an error of exit status 2, FOLDER is as
before or as after the whole call; then the call succeeds. Prints the number of faults of each writer.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np

from checkpoint_files import random_model
from graph.written import SIGNATURE, weights, write_graph
from t2r_export.checkpoints import checkpoint
from t2r_export.data import shards
from t2r_export.files import write_bytes
from t2r_export.graph import file as graph_file
from t2r_export.training.log import TrainingLog
from t2r_runtime.cli.bulk import Bulk
from t2r_runtime.cli.exit import ENVIRONMENT
from t2r_runtime.errors import T2RError
from t2r_runtime.files import unwritable
from t2r_runtime.serve.prefixes import Prefixes
from t2r_runtime.session import archive

FAULTS = ctypes.CDLL(None)
FAULTS.t2r_plan.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int]
RETRIED = 2  # an open, which zipfile tries again in another mode
Contents = dict[str, tuple[int, bytes]]


def graph(folder: Path, seed: int) -> None:
    write_graph(weights(seed), folder / "g.onnx", 1)


def inline(folder: Path, seed: int) -> None:
    write_graph(weights(seed), folder / "g.onnx")


def model(folder: Path, seed: int) -> None:
    made = random_model()
    next(made.parameters()).data.add_(seed)
    checkpoint.save(folder / "model.pt", made, None, {})


def state(folder: Path, seed: int) -> None:
    array = np.random.default_rng(seed).normal(size=(3, 5, 700)).astype(np.float32)
    archive.write(folder / "s.state", {"snapshot": 1}, {"S.0": array, "z.0": array[0]}, "saved state")


def keep(folder: Path, seed: int) -> None:
    """The server's folder of states."""
    Prefixes(folder, 1 << 20, 1 << 20).put(b"graph", SIGNATURE, np.arange(seed, seed + 20), {})


def report(folder: Path, seed: int) -> None:
    write_bytes(folder / "report.json", b"%d" % seed * 10_000)


def corpus(folder: Path, seed: int) -> None:
    """The cache: one entry per seed."""
    os.environ["T2R_CACHE"] = str(folder)
    ids = np.arange(seed, 3000 + seed) % 40
    shards.cached({"seed": seed}, 40, lambda: [(0, ids, 1), (1, ids[:70], 1)])


def log(folder: Path, seed: int) -> None:
    TrainingLog(folder / "log.jsonl").record(seed=seed, text="é" * 5000)


def lines(folder: Path, seed: int) -> None:
    source = folder.parent / f"{seed}.jsonl"
    source.write_text('{"id": 1}\n{"id": 2}\n{"id": 3}\n')
    context = click.Context(click.Command("generate"))
    with context, Bulk((source, folder / "out.jsonl"), source) as given:
        for number, _ in given:
            given.put(number, {"answer": "é" * 9000 * seed})


def in_place(folder: Path, seed: int) -> None:
    """Wrong on purpose."""
    try:
        (folder / "part").write_bytes(bytes(seed) * 3)
    except OSError as error:
        raise unwritable(folder, error) from error


def silent(folder: Path, seed: int) -> None:
    """Wrong on purpose."""
    with contextlib.suppress(T2RError):
        report(folder, seed)


WRITERS: dict[str, Callable[[Path, int], None]] = {
    each.__name__: each for each in (graph, inline, model, state, keep, report, corpus, log, lines, in_place, silent)
}


def contents(folder: Path) -> Contents:
    """Permissions and bytes of the files, but the answers that `lines` resumes from."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lines")
    return {str(path.relative_to(folder)): (path.stat().st_mode, path.read_bytes()) for path in files}


def torture(write: Callable[[Path, int], None], folder: Path, on: bool) -> int:
    for place in (folder, folder.with_name("whole")):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        write(place, 1)
        for path in contents(place):
            (place / path).chmod(0o640)
    before = contents(folder)
    write(folder.with_name("whole"), 2)
    whole = contents(folder.with_name("whole"))
    shutil.rmtree(folder.with_name("copy"), ignore_errors=True)
    shutil.copytree(folder, folder.with_name("copy"))
    for number in itertools.count(1):
        if contents(folder) != before:
            shutil.rmtree(folder)
            shutil.copytree(folder.with_name("copy"), folder)
        FAULTS.t2r_plan(os.fsencode(folder), number, on)
        said = ""
        try:
            write(folder, 2)
        except T2RError as error:
            said = str(error)
        except OSError as error:
            if error.errno not in ENVIRONMENT:
                raise
            said = str(error)
        failed, found = FAULTS.t2r_done(), contents(folder)
        assert bool(failed) == bool(said) or failed == RETRIED, f"operation {number}: {said or 'it succeeded'}"
        assert found == whole or (said and found == before), f"operation {number}: {sorted(found)} after {said}"
        if not failed:
            return number - 1
    raise AssertionError


if __name__ == "__main__":
    graph_file.run_once = lambda path: None
    for name in sys.argv[3:]:
        faults = torture(WRITERS[name], Path(sys.argv[2]) / "files", sys.argv[1] == "on")
        sys.stdout.write(f"{name} {faults}\n")
        shutil.rmtree(sys.argv[2])
        Path(sys.argv[2]).mkdir()
