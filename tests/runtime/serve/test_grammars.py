"""Answers of a requested form, from a model of random weights."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli_models import letter_tokenizer
from runtime.serve.server import Client, letters, within
from t2r_runtime import Tokenizer
from t2r_runtime.contract.signature import Signature
from t2r_runtime.decode.decoder import Decoder
from t2r_runtime.errors import UserError
from t2r_runtime.serve.errors import ApiError
from t2r_runtime.serve.grammars import Form, Grammars

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llguidance") is None, reason="needs the extra structured: pip install llguidance"
)
LETTERS = '{}":,01ab -'
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["ab", "b", None]}, "ab": {"type": "array", "maxItems": 2}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
STRICT = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}
FIELDS: dict[str, Any] = {"max_tokens": 60, "seed": 3, "temperature": 1}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    graph = letters(tmp_path_factory.mktemp("forms"), tokenizer=letter_tokenizer(LETTERS), eos_tokens=(10,))
    with within(graph, rows=8) as client:
        yield client


def answers(client: Client, **fields: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.complete("ab", n=8, **FIELDS | fields)["choices"]
    return found


def test_json_schema(client: Client) -> None:
    """Each of eight choices side by side is a whole document of the schema, or cut by its length."""
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "b": {"enum": ["ab", "b"]}, "ab": {"const": "a"}}}  # type: ignore[dict-item]
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    whole = 0
    for choice in answers(client, response_format=form, max_tokens=300):
        if choice["finish_reason"] == "stop":
            whole += 1
            found = json.loads(choice["text"])
            assert isinstance(found["a"], int)
            assert found["b"] in ("ab", "b")
            assert found.keys() <= {"a", "b", "ab"}
            assert not re.search(r"[^\n ] {2}|\n\s*\n| {17}", choice["text"]), "one blank, or a line break and 16"
    assert whole > 2


def test_stream_ends_with_valid_json_or_with_its_length(client: Client) -> None:
    ends = set()
    for seed in range(6):
        fields = {**FIELDS, "seed": seed, "max_tokens": 24, "prompt": "b", "guided_json": {"enum": ["a" * 20, 1, -1]}}
        with client.stream(**fields) as events:
            parts = [event["choices"][0] for event in events]
        text, end = "".join(part["text"] for part in parts), parts[-1]["finish_reason"]
        ends.add(end)
        assert end == "length" or json.loads(text) in ("a" * 20, 1, -1)
    assert "stop" in ends
    [cut] = client.complete("b", **FIELDS | {"max_tokens": 3}, guided_json={"const": "abab"})["choices"]
    assert (cut["text"], cut["finish_reason"]) == ('"ab', "length")


def test_json_object(client: Client) -> None:
    for choice in answers(client, response_format={"type": "json_object"}, stop=["}"]):
        assert re.match(r"\{\s*(\"|$)", choice["text"]), choice


@pytest.mark.parametrize(
    "fields, pattern",
    [
        ({"guided_regex": "a{2,3}b?"}, "a{2,3}b?"),
        ({"structured_outputs": {"regex": "(0|1){4}"}}, "[01]{4}"),
        ({"guided_choice": ["a", "ab", '"', "b0"]}, 'ab?|"|b0'),
        ({"structured_outputs": {"choice": ["ab"]}, "ignore_eos": True}, "ab"),
        ({"grammar": 'root ::= "a" ("0" | "1") root2\nroot2 ::= "b"? "," | "a"'}, "a[01](b?,|a)"),
        ({"guided_grammar": 'start: "b" DIGIT\nDIGIT: /[01]/'}, "b[01]"),
    ],
    ids=str,
)
def test_other_forms(fields: dict[str, Any], pattern: str, client: Client) -> None:
    for choice in answers(client, **fields):
        assert choice["finish_reason"] == "stop"
        assert re.fullmatch(pattern, choice["text"]), choice


def test_forms_with_other_options(client: Client) -> None:
    """A bias cannot choose a token that may not follow; rows without a form are as without any form."""
    plain = client.complete([7], **FIELDS)["choices"]
    [biased] = client.complete("ab", **FIELDS, guided_regex="[01]{5}", logit_bias={"5": 100, "7": 100})["choices"]
    assert biased["text"] == "00000"
    mixed = client.complete("ab", **FIELDS, guided_regex="[01]{5}", repetition_penalty=3.0, no_repeat_ngram=1)
    assert re.fullmatch("[01]{5}", mixed["choices"][0]["text"])
    assert client.complete([7], **FIELDS)["choices"] == plain
    assert client.complete([7], **FIELDS, response_format={"type": "text"})["choices"] == plain


@pytest.mark.parametrize(
    "fields, param, message",
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}, "schema", '["not"]'),
        ({"guided_json": {"type": "array", "uniqueItems": True}}, "guided_json", '["uniqueItems"]'),
        (
            {"guided_json": {"oneOf": [{}, {}], "x-guidance": {"lenient": True}}},
            "guided_json",
            "received oneOf with alt",
        ),
        ({"guided_json": {"not": {}, "x-guidance": {"lenient": True}}}, "guided_json", '["not"]'),
        ({"guided_json": {"$ref": "http://127.0.0.1:1/x"}}, "guided_json", "'http://127.0.0.1:1/x'"),
        ({"guided_json": "{"}, "guided_json", ""),
        ({"guided_json": {"enum": []}}, "guided_json", "Unsatisfiable"),
        ({"guided_regex": "a("}, "guided_regex", "unclosed group"),
        ({"guided_regex": "z"}, "guided_regex", "none that may follow"),
        ({"grammar": "root ::= ("}, "grammar", "GBNF"),
        ({"guided_choice": []}, "guided_choice", "a list of texts"),
        ({"guided_choice": ["a", 1]}, "guided_choice", "a list of texts"),
        ({"response_format": {"type": "xml"}}, "response_format.type", '"xml"'),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "none"),
        ({"structured_outputs": {"xml": "a"}}, "structured_outputs.xml", "structured_outputs.xml"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "response_format"),
        ({"guided_regex": "a" * 65537}, "guided_regex", "65,536"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_refused_forms_are_named(fields: dict[str, Any], param: str, message: str, client: Client) -> None:
    status, answer = client.ask("/v1/completions", {"prompt": "a", **fields})
    assert status == 400, answer
    assert answer["error"]["param"].endswith(param)
    assert message in answer["error"]["message"]


def followed(form: Form) -> None:
    """Write the first of the allowed tokens sixty times."""
    mask = Grammars(Tokenizer(letter_tokenizer(LETTERS)), 11).mask(form, [10])
    for _ in range(60):
        mask.take(int(mask.allowed().argmax()))


WIDE = {"type": "object", "properties": {f"a{i}": {"type": "integer"} for i in range(2000)}}


@pytest.mark.parametrize(
    "kind, text, message",
    [
        ("regex", "(" * 4 + "a{1,1000}" + "){1,1000}" * 4, "too many expressions"),
        ("json", json.dumps(WIDE), "max is 2000"),
        ("json", '{"items": ' * 200 + "{}" + "}" * 200, "recursion limit"),
        ("grammar", 'start: x{1,100000}\nx: y{1,100000}\ny: "a"{1,100000}\n', "max is 2000"),
    ],
    ids=["repeated", "wide", "deep", "grammar"],
)
def test_forms_that_cost_too_much_are_refused(kind: str, text: str, message: str) -> None:
    with pytest.raises((ApiError, UserError), match=message):
        followed(Form(kind, text, "x"))


def test_each_mask_is_computed_once() -> None:
    """The first one, which also checks a form, is that of the first token of each choice."""
    first = Grammars(Tokenizer(letter_tokenizer(LETTERS)), 11).mask(Form("choice", '["ab"]', "x"), [])
    second = first.copy()
    first._matcher = second._matcher = None
    assert first.allowed().tolist() == second.allowed().tolist() == [letter == "a" for letter in LETTERS]


def test_a_text_that_no_token_can_continue(client: Client) -> None:
    """The regular expression allows a letter that the tokenizer lacks, after one that it has."""
    status, answer = client.ask("/v1/completions", {"prompt": "a", **FIELDS, "guided_regex": "az"})
    assert (status, answer["error"]["code"]) == (400, "sampling")
    assert "none that may follow" in answer["error"]["message"]


def test_server_without_the_package(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    right = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name == "llguidance" else right(name, *rest)
    )
    status, answer = client.ask("/v1/completions", {"prompt": "a", "response_format": {"type": "json_object"}})
    assert (status, answer["error"]["code"]) == (400, "not_installed")
    assert "pip install llguidance" in answer["error"]["message"]
    client.complete("a", response_format={"type": "text"}, max_tokens=1)


def test_bytes_of_tokens(tmp_path: Path) -> None:
    """Characters spread over tokens, spaces of words, and special tokens, of a tokenizer of bytes."""
    from runtime.test_tokenizer import pieces

    tokenizer = Tokenizer(pieces())
    size = tokenizer._library.tokenizer.get_vocab_size()
    grammars = Grammars(tokenizer, size)
    special = tokenizer.special_tokens
    assert special
    for text in ("Häuser", "\N{GRINNING FACE}", "a b", tokenizer.piece(special[0])):
        mask, read = grammars.mask(Form("regex", re.escape(text), "x"), special), b""
        while read != text.encode():
            [token] = mask.allowed().nonzero()[0].tolist()
            read += tokenizer.token_bytes(token)
            assert text.encode().startswith(read)
            assert mask.take(token) == (read == text.encode())


def test_a_model_without_stop_tokens_and_one_without_a_tokenizer(tmp_path: Path) -> None:
    graph = letters(tmp_path, tokenizer=letter_tokenizer(LETTERS), eos_tokens=())
    with within(graph) as client:
        [choice] = client.complete("a", **FIELDS, guided_choice=["b0"])["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("b0", "stop")
    signature: Signature = Decoder(graph, threads=1).signature
    assert signature.eos_tokens == ()
    with within(letters(tmp_path, "none", tokenizer=None, chat_template=None)) as client:
        status, answer = client.ask("/v1/completions", {"prompt": [1], "guided_regex": "a"})
        assert (status, answer["error"]["code"]) == (400, "tokenizer")
    with pytest.raises(ApiError, match="unclosed group"):
        Grammars(Tokenizer(letter_tokenizer(LETTERS)), 11).mask(Form("regex", "(", "x"), [])
