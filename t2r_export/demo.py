"""The whole way on one model, for someone who has just installed it: export, verify, write a text, count tokens."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from t2r_export.checkpoints import checkpoint
from t2r_export.export import ExportReport, export
from t2r_export.proof.report import Report
from t2r_export.verify import verify
from t2r_runtime import Decoder, Sampling, Text
from t2r_runtime.errors import CheckFailed, UserError

MODEL = Path("models/storyteller/model.pt")
STEPS = 500
TOKENS = 240
SAMPLING = Sampling(temperature=0.4, top_p=0.95, seed=3)  # the same text every time


@dataclass(frozen=True)
class Demo:
    """What the demonstration made and measured."""

    source_bytes: int
    graph_bytes: int
    graph: ExportReport
    parity: Report
    text: str
    tokens: int
    tokens_per_second: float


def demo(model: Path = MODEL, prompt: str = "Once upon a time") -> Demo:
    """Export `model` to a temporary folder, verify the graph there, and continue `prompt`.

    Args:
        model: a model.pt with a tokenizer in it.

    Raises:
        UserError: no model there, or one without a tokenizer. CheckFailed: the graph is not the model.
    """
    if not model.exists():
        raise UserError(f"a model at {model}", "nothing", "run this from the project's folder, or name a model.pt")
    loaded = checkpoint.load(model)
    if loaded.tokenizer is None:
        raise UserError(f"a tokenizer in {model}", "a model without one", "name another model")
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "demo.onnx")
        graph = export(loaded, path)
        graph_bytes = sum(file.stat().st_size for file in graph.files)
        parity = verify(loaded, path, steps=STEPS)
        if not parity.passed:
            raise CheckFailed("the exported graph is not the model: run t2r verify to see where")
        decoder = Decoder(path)
        text = Text.of(decoder.signature)
        ids = text.encode(prompt)
        stream = text.stream(ids)
        start = time.perf_counter()
        pieces = [stream.feed(token) for token in decoder.stream(ids, TOKENS, SAMPLING)]
        seconds = time.perf_counter() - start
        written = prompt + "".join(pieces) + stream.end()
    rate = (len(ids) + len(pieces)) / seconds
    return Demo(model.stat().st_size, graph_bytes, graph, parity, written, len(pieces), rate)
