"""`t2r generate`, `chat` and `translate` use the graph's options where the command line sets none."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
import torch

from cli_models import CONFIG, LETTERS, Output, letter_tokenizer, run
from runtime import translators
from t2r_export.checkpoints import checkpoint
from t2r_export.config.generation import GenerationOptions
from t2r_export.export import export
from t2r_export.model.transformer import Transformer
from t2r_runtime import Beam, Decoder, Sampling, Tokenizer, Translator

ASKED = {"temperature": 0.6, "top_k": 5, "repetition_penalty": 1.5}
TEMPLATE = {"template": "{{ messages[-1].content }},", "tokens": {}}


def write(folder: Path, options: dict[str, Any] | None) -> Path:
    """The graph of a random character-level model, and its checkpoint beside it."""
    folder.mkdir(exist_ok=True)
    torch.manual_seed(1)
    generation = None if options is None else GenerationOptions(**options)
    model = Transformer(dataclasses.replace(CONFIG, generation=generation).build()).eval()
    checkpoint.save(folder / "m.pt", model, letter_tokenizer(), {"origin": {"chat_template": TEMPLATE}})
    export(checkpoint.load(folder / "m.pt"), folder / "g.onnx")
    return folder / "g.onnx"


def text(graph: Path, prompt: str, **options: Any) -> str:
    decoder = Decoder(graph)
    tokenizer = Tokenizer.of(decoder.signature)
    return tokenizer.decode(decoder.generate(tokenizer.encode(prompt), 20, Sampling(**options)))


@pytest.mark.parametrize(
    ("options", "used"),
    [
        (ASKED, ASKED),
        (None, {"temperature": 0.8, "top_p": 0.95}),  # the command line's, as neither sets any
        ({"temperature": 1.0, "top_k": 0, "top_p": 1.0}, {}),
    ],
    ids=["asked", "silent", "all tokens"],
)
def test_generate_and_chat(
    options: dict[str, Any] | None,
    used: dict[str, Any],
    tmp_path: Path,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, plain = write(tmp_path / "own", options), write(tmp_path / "plain", None)
    tail = ["--max-tokens", 20, "--seed", 3]
    expected = text(plain, "one,", seed=3, **used)
    assert run(capsys, "generate", graph, "--prompt", "one,", *tail)[0] == expected
    assert expected != text(plain, "one,", seed=3, temperature=0.1)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one\n")))
    assert run(capsys, "chat", graph, *tail)[0] == expected + "\n"


def test_the_command_line_comes_first(tmp_path: Path, capsys: Output) -> None:
    graph = write(tmp_path, ASKED)
    given = ["--temperature", 1, "--top-k", 0, "--seed", 3, "--max-tokens", 20]
    expected = text(graph, "one,", seed=3, temperature=1, top_k=0, repetition_penalty=1.5)
    assert run(capsys, "generate", graph, "--prompt", "one,", *given)[0] == expected
    shown, of_model = run(capsys, "inspect", graph)[0], run(capsys, "inspect", tmp_path / "m.pt")[0]
    assert "generation: repetition_penalty 1.5, temperature 0.6, top_k 5" in shown.splitlines()
    assert "generation: temperature 0.6, top_k 5, repetition_penalty 1.5" in of_model.splitlines()


def test_translate(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"width": 2, "length_penalty": 0.2, "max_tokens": 6, "min_tokens": 3}
    texts = {"tokenizer": letter_tokenizer(), "source_tokenizer": letter_tokenizer(LETTERS[: translators.SOURCE])}
    graph = translators.save(tmp_path / "t", 1, generation=asked, **texts)
    translator = Translator(graph, threads=1)
    tokenizer = Tokenizer.of_source(translator.signature)
    for options, beam in (([], Beam()), (["--beam", 3, "--max-tokens", 9], Beam(3, max_tokens=9))):
        ((best,),) = translator.translate([tokenizer.encode("lid fed")], beam)
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"lid fed\n")))
        expected = "".join(LETTERS[token] for token in best.tokens)
        assert run(capsys, "translate", graph, *options)[0] == expected + "\n"
