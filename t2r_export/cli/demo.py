"""`t2r demo`: export, verify and run one small model, to try out an installation."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import click

from t2r_export.cli.reports import export_text, parity_text, state_bytes
from t2r_export.errors import CheckFailed
from t2r_runtime.cli.output import json_option, note, show
from t2r_runtime.errors import UserError

MODEL = Path("models/stories6M/model.pt")
STEPS = 500
TOKENS = 240
STORY = "Once upon a time"
SENTENCES = ("Wo ist der Bahnhof?", "Ich habe heute keine Zeit.", "Kannst du mir bitte helfen?")
BEAM = 4
# The storyteller repeats 6.8 % of its 4-grams here, 15.7 % at 0.4 with 0.95: python benchmarks/repetition.py MODEL
TEMPERATURE, TOP_P, SEED = 0.6, 0.9, 3  # fixed seed: the same text every time


@click.command("demo")
@click.argument("model", type=click.Path(path_type=Path), default=MODEL)
@click.option(
    "--prompt",
    metavar="TEXT",
    help="Text to continue or, for translators, to translate. Default: built-in examples.",
)
@json_option
def command(model: Path, prompt: str | None, as_json: bool) -> None:
    """Export MODEL, verify the graph, and continue a text or translate with it."""
    if not model.exists():
        raise UserError(f"a model at {model}", "nothing", "run it in the project's folder, or name a model.pt")
    if not as_json:
        note(f"exporting and verifying {model}, generating a text …")
    from t2r_export.checkpoints import checkpoint
    from t2r_export.export import export
    from t2r_export.verify import verify

    loaded = checkpoint.load(model)
    if loaded.tokenizer is None:
        raise UserError(f"a tokenizer in {model}", "a model without one", "name another model")
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "demo.onnx")
        graph = export(loaded, path)
        files = {str(model): model.stat().st_size, "the graph": sum(file.stat().st_size for file in graph.files)}
        parity = verify(loaded, path, steps=STEPS)
        if not parity.passed:
            raise CheckFailed("the exported graph differs from the model: run t2r verify for details")
        show_off = _written if loaded.config.encoder is None else _translated
        text, tokens, rate = show_off(path, prompt)
    data = {
        "model_bytes": files[str(model)],
        "graph_bytes": files["the graph"],
        "parameters": graph.parameters,
        "state_bytes": state_bytes(graph),
        "parity": parity.to_dict(),
        "text": text,
        "tokens_per_second": rate,
    }
    parts = [export_text(graph, files), parity_text(parity), text, f"{tokens} tokens, {rate:.0f} tokens/s"]
    show(as_json, data, "\n\n".join(parts))


def _translated(graph: Path, sentence: str | None) -> tuple[str, int, float]:
    """Sentences with translations, the number of translated tokens, and tokens per second including encoding."""
    from t2r_runtime import Beam, Tokenizer, Translator

    translator = Translator(graph)
    source, target = Tokenizer.of_source(translator.signature), Tokenizer.of(translator.signature)
    sentences = SENTENCES if sentence is None else (sentence,)
    start = time.perf_counter()
    best = [one for one, *_ in translator.translate(map(source.encode, sentences), Beam(BEAM), batch=1)]
    new = sum(len(one.tokens) for one in best)
    rate = new / (time.perf_counter() - start)
    lines = [f"{line}\n    {target.decode(one.tokens)}" for line, one in zip(sentences, best, strict=True)]
    return "\n".join(lines), new, rate


def _written(graph: Path, prompt: str | None) -> tuple[str, int, float]:
    """The continued prompt, the number of new tokens, and tokens per second including the prompt."""
    prompt = STORY if prompt is None else prompt
    from t2r_runtime import Decoder, Sampling, Tokenizer

    decoder = Decoder(graph)
    tokenizer = Tokenizer.of(decoder.signature)
    ids = tokenizer.encode(prompt)
    start = time.perf_counter()
    new = decoder.generate(ids, TOKENS, Sampling(temperature=TEMPERATURE, top_p=TOP_P, seed=SEED))
    rate = (len(ids) + len(new)) / (time.perf_counter() - start)
    return prompt + tokenizer.decode(new), len(new), rate
