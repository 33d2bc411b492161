"""A storyteller's page as a folder for a web server, and in it the translator's: make_web.py FOLDER.

Beside it, greedy.txt, translated.txt and chat.json are what Python writes. chat/ there is the chat's page for its
tests, with the storyteller in models/, which continues what it is told.

A softmax model of the same size is packed too, to run beside it. The cost of a token does not depend on the weights, so
it is untrained, with random weights; its output is not read.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from t2r_export.checkpoints import checkpoint
from t2r_export.config.export import ExportConfig
from t2r_export.config.mixers import SoftmaxConfig
from t2r_export.config.quantize import QuantizeConfig
from t2r_export.export import export
from t2r_export.model.transformer import Transformer
from t2r_export.providers.pack import pack
from t2r_export.quantize import export_quantized
from t2r_runtime import Beam, Decoder, Sampling, Tokenizer, Translator
from t2r_runtime.cli.chat import Conversation

JS = Path(__file__).parents[1]
MODELS = JS.parents[1] / "models"
PROMPT, TOKENS = "Once upon a time", 200
SENTENCES = ("Wo ist der Bahnhof?", "Ich habe heute keine Zeit.", "Kannst du mir bitte helfen?")
WIDTH = 4
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
MESSAGES, ANSWER = ("Once upon a time", " Then the dog"), 24


def main() -> None:
    web = Path(sys.argv[1])
    shutil.rmtree(web, ignore_errors=True)
    web.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        storyteller(web, Path(place))
        translator(web / "translate", Path(place))
        chat(web.parent / "chat", Path(place))


def storyteller(web: Path, work: Path) -> None:
    subprocess.run(["node", JS / "demo" / "build.js", work / "page"], check=True)
    loaded = checkpoint.load(MODELS / "stories6M" / "model.pt")
    form, rounding = ExportConfig(), QuantizeConfig(scheme="int8")  # which WebAssembly has kernels for
    export_quantized(loaded, work / "story.onnx", form, rounding)
    torch.manual_seed(0)
    layers = tuple(layer.with_mixer(SoftmaxConfig()) for layer in loaded.config.layers)
    peer = Transformer(dataclasses.replace(loaded.config, layers=layers)).eval()
    export_quantized(checkpoint.made(peer, None, {}), work / "softmax.onnx", form, rounding)
    packed = pack(work / "story.onnx", web, work / "page", work / "softmax.onnx")
    decoder = Decoder(web / packed.graph)
    tokenizer = Tokenizer.of(decoder.signature)
    ids = tokenizer.encode(PROMPT)
    text = tokenizer.stream(ids)
    pieces = [text.feed(token) for token in decoder.generate(ids, TOKENS, Sampling(temperature=0))]
    (web.parent / "greedy.txt").write_text("".join([PROMPT, *pieces, text.end()]), encoding="utf-8")


def translator(web: Path, work: Path) -> None:
    subprocess.run(["node", JS / "demo" / "build.js", work / "translator", "translator"], check=True)
    export(checkpoint.load(MODELS / "translator-de-en" / "model.pt"), work / "de-en.onnx")
    packed = pack(work / "de-en.onnx", web, work / "translator")
    made = Translator(web / packed.graph)
    sources, targets = Tokenizer.of_source(made.signature), Tokenizer.of(made.signature)
    found = made.translate([sources.encode(line) for line in SENTENCES], Beam(width=WIDTH))
    lines = [targets.decode(best.tokens) for (best,) in found]
    (web.parents[1] / "translated.txt").write_text("\n".join(lines), encoding="utf-8")


def chat(folder: Path, work: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["node", JS / "demo" / "build.js", work / "chat", "chat"], check=True)
    loaded = checkpoint.load(MODELS / "storyteller" / "model.pt")
    loaded.provenance["origin"] = {"chat_template": {"template": TEMPLATE, "tokens": {}}}
    export(loaded, work / "chat.onnx")
    packed = pack(work / "chat.onnx", folder, work / "chat", any_length=True)
    decoder = Decoder(folder / packed.graph)
    talk = Conversation(decoder, Tokenizer.of(decoder.signature), Sampling(temperature=0), ANSWER)
    answers = [["".join(talk.answer(message)), decoder.position] for message in MESSAGES]
    (folder.parent / "chat.json").write_text(json.dumps([MESSAGES, ANSWER, answers]), encoding="utf-8")


if __name__ == "__main__":
    main()
