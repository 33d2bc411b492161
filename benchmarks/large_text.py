"""Memory and processor time to tokenize a large text, and from a killed run's restart to its next step.

    python benchmarks/large_text.py MODEL WORK TEXT [TEXT…] [--bytes 1000000000]

The text repeats the shuffled documents of TEXT. Prints JSON lines. Seconds are CPU time, user and system, of a command
and its child processes. Memory is the peak of samples in bytes: of a single `process`; of `all` together, counting
shared libraries in each; and `anonymous`, of the main process without mapped files. `restart` ends with the first line
of the log, after ten small steps.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from t2r_export.checkpoints import checkpoint
from t2r_export.config.finetune import SEPARATOR
from t2r_export.data.documents import Texts
from t2r_export.python import start
from t2r_runtime.text.tokenizer_file import Library

RUN = "--stages task --steps 30 --batch 1 --every checkpoint=10,validate=1000 --device cpu"


def write_text(path: Path, texts: list[Path], size: int) -> None:
    documents, chance = list(Texts(tuple(texts))), random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < size:
            chance.shuffle(documents)
            for document in documents:
                if file.tell() < size:
                    file.write(f"{document}\n{SEPARATOR}\n")


def floor(model: Path, texts: list[Path], size: int) -> float:
    """Processor seconds of the library tokenizers alone for `size` bytes, extrapolated from the texts."""
    documents, library = list(Texts(tuple(texts))), Library(checkpoint.load(model).tokenizer or "")
    begun = time.process_time()
    for at in range(0, len(documents), 1000):
        library.tokenizer.encode_batch_fast(documents[at : at + 1000], add_special_tokens=False)
    return (time.process_time() - begun) * size / sum(len(document.encode()) for document in documents)


def state(process: str) -> tuple[float, int, int]:
    """Processor seconds of a process and its ended children, resident bytes, and anonymous resident bytes."""
    said = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    _, resident, shared, *_ = Path(f"/proc/{process}/statm").read_text().split()
    ticks, page = sum(map(int, said[11:15])), os.sysconf("SC_PAGE_SIZE")
    return ticks / os.sysconf("SC_CLK_TCK"), int(resident) * page, (int(resident) - int(shared)) * page


def watched(work: Path, *words: object, until: Callable[[], bool] = lambda: False) -> dict[str, float]:
    """Run `t2r WORDS`, and kill it once `until` holds."""
    environment = {**os.environ, "T2R_CACHE": str(work / "cache")}
    found = dict.fromkeys(("seconds", "process", "all", "anonymous"), 0.0)
    with start("-m", "t2r_export", *map(str, words), env=environment, stdout=sys.stderr) as started:
        children = Path(f"/proc/{started.pid}/task/{started.pid}/children")
        while started.poll() is None and not until():
            with contextlib.suppress(OSError):  # a process has ended
                states = [state(each) for each in (str(started.pid), *children.read_text().split())]
                sizes = [size for _, size, _ in states]
                now = {"process": max(sizes), "all": sum(sizes), "anonymous": states[0][2]}
                found = {name: max(found[name], size) for name, size in now.items()}
                found["seconds"] = sum(seconds for seconds, *_ in states)
            time.sleep(0.05)
        started.kill()
    assert started.returncode in (0, -9), words
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--bytes", type=int, default=1_000_000_000)
    options = parser.parse_args()
    work, text = options.work, options.work / "large.txt"
    work.mkdir(parents=True)
    write_text(text, options.texts, options.bytes)
    print(json.dumps({"library": {"seconds": floor(options.model, options.texts, text.stat().st_size)}}))
    print(json.dumps({"tokenize": watched(work, "tokenize", options.model, text)}))
    student, out, log = work / "student.pt", work / "out.pt", work / "out.pt.jsonl"
    watched(work, "convert", options.model, student, "--mixer", "linear:feature_size=8")
    run = ["finetune", student, out, "--data", text, *RUN.split()]
    watched(work, *run, until=Path(f"{out}.training").exists)
    before = log.read_text().count('"loss"')
    next_step = watched(work, *run, "--resume", until=lambda: log.read_text().count('"loss"') > before)
    print(json.dumps({"restart": next_step}))


if __name__ == "__main__":
    main()
