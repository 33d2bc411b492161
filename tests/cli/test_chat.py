"""`t2r chat`: answers on stdout, and state kept between turns."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cli_models import CONFIG, LETTERS, Output, letter_tokenizer, run
from t2r_export.checkpoints import checkpoint
from t2r_export.export import export
from t2r_export.model.transformer import Transformer
from t2r_runtime import Decoder, Sampling, Tokenizer, UserError
from t2r_runtime.cli.chat import Conversation

WHOLE = "{% for m in messages %}{{ m.content }}{% if m.role != 'assistant' %},{% endif %}{% endfor %}"
LAST = "{{ messages[-1].content }},"
SAID = ["hello there", "what", "why not"]
GREEDY = Sampling(temperature=0)


def write(folder: Path, template: str | None) -> Path:
    """The graph of a random character-level model whose turns end with a full stop."""
    torch.manual_seed(1)
    origin = {} if template is None else {"chat_template": {"template": template, "tokens": {"eos_token": "."}}}
    checkpoint.save(folder / "m.pt", Transformer(CONFIG.build()).eval(), letter_tokenizer(), {"origin": origin})
    export(checkpoint.load(folder / "m.pt"), folder / "g.onnx")
    return folder / "g.onnx"


@pytest.fixture(scope="module", params=[WHOLE, LAST], ids=["whole", "last"])
def graph(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return write(tmp_path_factory.mktemp("chat"), request.param), request.param


class Counting:
    """A decoder that records the prompt length of each stream."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder, self.given = decoder, list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.decoder, name)

    def stream(self, ids: list[int], *rest: Any) -> Iterator[int]:
        self.given.append(len(ids))
        return self.decoder.stream(ids, *rest)


def test_chat_turn_equals_full_prompt(graph: tuple[Path, str]) -> None:
    path, template = graph
    decoder, other = Counting(Decoder(path)), Decoder(path)
    tokenizer = Tokenizer.of(other.signature)
    talk = Conversation(decoder, tokenizer, GREEDY, 12)  # type: ignore[arg-type]
    whole = []
    for said in SAID:
        messages = [*talk.messages, {"role": "user", "content": said}]
        ids = tokenizer.encode(tokenizer.chat(messages), special_tokens=False)
        answer = "".join(talk.answer(said))
        other.reset()
        stop = Sampling(temperature=0, stop_tokens=[LETTERS.index(".")])
        assert answer == tokenizer.decode(other.generate(ids, 12, stop))
        assert talk.messages[-1] == {"role": "assistant", "content": answer}
        whole.append(len(ids))
    if template == WHOLE:  # the last token of an answer, the user's text, and a comma
        assert decoder.given == [whole[0], *(1 + len(said) + 1 for said in SAID[1:])]
    else:
        assert decoder.given == whole


def test_the_verb(graph: tuple[Path, str], capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = graph
    options = ["--temperature", 0, "--max-tokens", 12]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hello there\n\n  \nwhat\r\nwhy not")))
    out, err = run(capsys, "chat", path, *options)
    decoder = Decoder(path)
    talk = Conversation(decoder, Tokenizer.of(decoder.signature), GREEDY, 12)
    assert out.splitlines() == ["".join(talk.answer(said)) for said in SAID]
    assert err == ""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hello there")))
    told, _ = run(capsys, "chat", path, *options, "--system", "be kind")
    talk = Conversation(decoder, talk.tokenizer, GREEDY, 12, [{"role": "system", "content": "be kind"}])
    assert told == "".join(talk.answer("hello there")) + "\n"


def test_seed_per_answer(graph: tuple[Path, str]) -> None:
    """At a temperature where noise alone chooses, one seed for all answers would repeat the answer."""
    decoder = Decoder(graph[0])
    rules = Sampling(temperature=1e9, seed=5)
    talks = [Conversation(decoder, Tokenizer.of(decoder.signature), rules, 12) for _ in range(2)]
    first, second = (["".join(talk.answer(said)) for said in ("hello", "hello")] for talk in talks)
    assert first == second and first[0] != first[1]


def test_abandoned_answer_discarded(graph: tuple[Path, str]) -> None:
    decoder = Decoder(graph[0])
    talk = Conversation(decoder, Tokenizer.of(decoder.signature), GREEDY, 12)
    expected = "".join(talk.answer("hello there"))
    talk.messages.clear()
    next(talk.answer("something else"))
    assert talk.messages == []
    assert "".join(talk.answer("hello there")) == expected


def test_without_a_template(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, None)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))  # refused before a line is read
    _, err = run(capsys, "chat", path, code=2)
    assert err == "t2r: expected a model with a chat template; received one without; write the prompt yourself\n"


def test_template_raises(tmp_path: Path) -> None:
    decoder = Decoder(write(tmp_path, "{{ raise_exception('no') }}"))
    talk = Conversation(decoder, Tokenizer.of(decoder.signature), GREEDY, 12)
    with pytest.raises(UserError, match="received no; change the messages"):
        list(talk.answer("hello"))


def test_stdin_that_is_not_utf8_is_one_line(
    graph: tuple[Path, str], capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfeh\n")))
    said = "t2r: expected text in UTF-8 in line 1 of stdin; received the byte 0xff at offset 0; convert it to UTF-8\n"
    assert run(capsys, "chat", graph[0], code=2) == ("", said)


@pytest.mark.parametrize("template", ["{% for n in range(7000) %}abc{% endfor %}", "a" * 60_000])
def test_template_output_limit(template: str, tmp_path: Path) -> None:
    """No token is read, as each would be a step."""
    decoder = Counting(Decoder(write(tmp_path, template)))
    talk = Conversation(decoder, Tokenizer.of(decoder.signature), GREEDY, 3)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="expected at most 16,384 tokens of a chat template") as caught:
        list(talk.answer("hello"))
    assert (caught.value.kind, decoder.given) == ("position", [])


def test_chat_context_limit(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, position="learned", max_positions=12)
    torch.manual_seed(1)
    origin = {"chat_template": {"template": WHOLE, "tokens": {}}}
    checkpoint.save(tmp_path / "m.pt", Transformer(config.build()).eval(), letter_tokenizer(), {"origin": origin})
    export(checkpoint.load(tmp_path / "m.pt"), tmp_path / "g.onnx")
    decoder = Counting(Decoder(tmp_path / "g.onnx"))
    talk = Conversation(decoder, Tokenizer.of(decoder.signature), GREEDY, 1)  # type: ignore[arg-type]
    assert list(talk.answer("hello"))
    with pytest.raises(UserError, match="expected at most 12 tokens of the model's context; received ") as caught:
        list(talk.answer("hello again"))
    assert (caught.value.kind, len(decoder.given)) == ("position", 1)
