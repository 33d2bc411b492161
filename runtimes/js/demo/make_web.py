"""The storyteller's page as a folder for a web server: make_web.py FOLDER. Beside it, greedy.txt is what Python writes.

A softmax model of the same size is packed too, to run beside it. What a token costs does not depend on the weights, so
its own are random: nobody has to train it, and nobody reads what it would say.
"""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from t2r_export.checkpoints import checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.export import export
from t2r_export.model.transformer import Transformer
from t2r_export.pack import pack
from t2r_runtime import Decoder, Sampling, Tokenizer

JS = Path(__file__).parents[1]
MODEL = JS.parents[1] / "models" / "storyteller" / "model.pt"
PROMPT, TOKENS = "Once upon a time", 200


def main() -> None:
    web = Path(sys.argv[1])
    shutil.rmtree(web, ignore_errors=True)
    web.parent.mkdir(parents=True, exist_ok=True)
    loaded = checkpoint.load(MODEL)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        subprocess.run(["node", JS / "demo" / "build.js", folder / "page"], check=True)
        export(loaded, folder / "story.onnx", ExportConfig(prefill=True))
        torch.manual_seed(0)
        layers = (SoftmaxConfig(),) * len(loaded.config.layers)
        peer = Transformer(dataclasses.replace(loaded.config, layers=layers)).eval()
        export(checkpoint.made(peer, None, {}), folder / "softmax.onnx", ExportConfig(prefill=True))
        packed = pack(folder / "story.onnx", web, folder / "page", folder / "softmax.onnx")
    decoder = Decoder(web / packed.graph)
    tokenizer = Tokenizer.of(decoder.signature)
    ids = tokenizer.encode(PROMPT)
    text = tokenizer.stream(ids)
    pieces = [text.feed(token) for token in decoder.generate(ids, TOKENS, Sampling(temperature=0))]
    (web.parent / "greedy.txt").write_text("".join([PROMPT, *pieces, text.end()]), encoding="utf-8")


if __name__ == "__main__":
    main()
