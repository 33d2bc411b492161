"""Calls of functions: in the formats of models, in streams, in requests, and of a required form."""

from __future__ import annotations

import importlib.util
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from runtime.serve.server import Client, letters, within
from runtime.serve.tool_shapes import FUNCTIONS, SHAPES
from t2r_runtime.serve.tools.base import Call, Format
from t2r_runtime.serve.tools.formats import FORMATS, format_of
from t2r_runtime.serve.tools.qwen_xml import types_of
from t2r_runtime.serve.tools.stream import CallStream
from t2r_runtime.serve.tools.values import Values, quoted

CASES = [(FORMATS[name], shape) for name, shapes in SHAPES.items() for shape in shapes]
CHATS = "/v1/chat/completions"


def read(format: Format, pieces: list[str], most: int | None = None) -> tuple[str, list[Call]]:
    stream = CallStream(format, FUNCTIONS, most)
    found = [*map(stream.feed, pieces), stream.end()]
    return "".join(text for text, _ in found), [call for _, calls in found for call in calls]


def test_shapes() -> None:
    assert SHAPES.keys() == FORMATS.keys()
    for format, (text, content, calls) in CASES:
        found, received = read(format, [text])
        assert (found, [(call.name, json.loads(call.arguments)) for call in received]) == (content, calls), text


def test_pieces_of_a_stream() -> None:
    """Text and calls do not depend on where a text is divided: at each place, and at random ones."""
    dice = random.Random(1)
    for format, (text, _, _) in CASES:
        if len(text) > 1000:
            continue
        whole = read(format, [text])
        for place in range(len(text)):
            assert read(format, [text[:place], text[place:]]) == whole, (text, place)
        for _ in range(5):
            places = sorted(dice.randrange(len(text) + 1) for _ in range(dice.randrange(12)))
            pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
            assert read(format, pieces) == whole, pieces
        assert read(format, [*text]) == whole


def test_random_texts_never_fail() -> None:
    dice = random.Random(2)
    for format, (text, _, _) in CASES:
        parts = re.findall(r"\w+|.", text, re.DOTALL)[:300]
        for _ in range(5):
            changed = [part for part in parts if dice.random() > 0.1]
            dice.shuffle(changed[: dice.randrange(4)])
            content, calls = read(format, changed)
            assert calls or content.rstrip() == "".join(changed).rstrip()


def test_one_call_at_most() -> None:
    format, text = FORMATS["hermes"], SHAPES["hermes"][1][0]
    assert [call.name for call in read(format, [text], 1)[1]] == ["find"]


def test_characters_by_number() -> None:
    """Numbers that are no character's stay as written."""
    text = r"'\U0001F600 \U0010ffff \U00110000 \Uffffffff \u00e9'"
    assert quoted(Values(text, quoted)) == "\U0001f600 \U0010ffff \\U00110000 \\Uffffffff \u00e9"


def test_work_grows_with_the_length_of_a_text() -> None:
    """Malformed calls are not read again for each tag in them."""
    begin, end = "<tool_call>", "</tool_call>"
    for text in (begin * 3000, f'{begin}{{"a": "{end * 3000}', f'{begin}{{"{end}' * 3000, f"{begin}{end}" * 3000):
        assert read(FORMATS["hermes"], [text]) == (text, [])
    text = f"{begin}<function=find><parameter=city>" * 1000 + end * 1000
    assert read(FORMATS["qwen-xml"], [text]) == (text, [])


def test_types_of_a_schema_that_refers_to_itself() -> None:
    again = {"$ref": "#/$defs/a"}
    root = {"$defs": {"a": {"anyOf": [again] * 50 + [{"enum": ["x", None]}, {"type": ["integer", "boolean"]}]}}}
    assert types_of(again, root) == {"string", "null", "integer", "boolean"}
    assert types_of({"$ref": "#/$defs/b"}, {"$defs": {"b": {"$ref": "#/$defs/b"}}}) == set()


@pytest.mark.parametrize(
    "template, name",
    [
        ("{{ tools }}<tool_call>", "hermes"),
        ("{{ tools }}<tool_call>\n<function=example>", "qwen-xml"),
        ("{{ tools }}[TOOL_CALLS][", "mistral"),
        ("{{ tools }}[TOOL_CALLS]x[ARGS]", "mistral-args"),
        ("{{ tools }}<|tool_call|>", "granite"),
        ("{{ tools }}<|start_of_role|>available_tools<|end_of_role|>", "granite"),
        ("{{ tools }}<|start_of_role|><tool_call>", "hermes"),
        ('{{ tools }}<|start_header_id|> "parameters": ', "llama3"),
        ("{{ tools }}<|start_header_id|><tool_call>", "hermes"),
        ("{{ tools }}<|tool_list_start|>", "lfm2"),
        ("{{ tools }}<|tool_call_start|>", "lfm2"),
        ("{{ tools }}<start_function_call>", "functiongemma"),
        ("{{ tools }}<|tool_call>call:<tool_call|>", "gemma4"),
        ("{{ tools }}<tool_call>{name}<arg_key>", None),
        ("{{ tools }}", None),
        ("<tool_call>", None),
        ("", None),
    ],
)
def test_format_of_a_template(template: str, name: str | None) -> None:
    found = format_of(template)
    assert (None if found is None else found.name) == name


# one token each; two are special, and the last ends an answer
PIECES = ["[TOOL_CALLS]", "[ARGS]", "f", "{", '"', "a", ":", " ", "1", "}", "$"]
TEMPLATE = (
    "{% for tool in tools or [] %}[TOOL_CALLS]{% endfor %}{% for m in messages %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}[ARGS]{{ call.function.arguments.a }}{% endfor %}"
    "{% if m.role == 'tool' %}{{ m.tool_call_id[:1] }}{{ m.name }}{% endif %}{% endfor %}"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "It says f.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
HI = [{"role": "user", "content": "af"}]
BODY: dict[str, Any] = {"messages": HI, "tools": [TOOL], "max_tokens": 40, "temperature": 1, "seed": 1}
NEEDS = pytest.mark.skipif(
    importlib.util.find_spec("llguidance") is None, reason="needs the extra structured: pip install llguidance"
)


def tokenizer() -> str:
    made = Tokenizer(models.BPE({piece: token for token, piece in enumerate(PIECES)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    made.add_special_tokens(PIECES[:2])
    return str(made.to_str())


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    chat = {"template": TEMPLATE, "tokens": {}}
    folder = tmp_path_factory.mktemp("tools")
    graph = letters(folder, tokenizer=tokenizer(), eos_tokens=(10,), chat_template=chat)
    plain = letters(folder, "plain", tokenizer=tokenizer(), chat_template={"template": "{{ tools }}a", "tokens": {}})
    with within(graph, plain, rows=4) as client:
        yield client


def asked(client: Client, **fields: Any) -> Any:
    return client.good(CHATS, {"model": "letters", **BODY, **fields})


def test_messages_and_tools_in_the_template(client: Client) -> None:
    """A special token of the format is a part of the text."""
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "annotations": []},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "a"},
    ]
    answer = asked(client, messages=messages, max_tokens=2, logit_bias={"0": 100}, tools=[TOOL])
    assert answer["usage"]["prompt_tokens"] == len("T" + "af" + "A1" + "aaf")
    [choice] = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "[TOOL_CALLS]" * 2, "refusal": None}
    assert choice["finish_reason"] == "length"
    none = asked(client, messages=messages, tool_choice="none", max_tokens=2, logit_bias={"0": 100})
    assert none["usage"]["prompt_tokens"] == len("af" + "A1" + "aaf")
    assert none["choices"][0]["message"]["content"] == ""


@NEEDS
def test_required_call(client: Client) -> None:
    """The call of a random model, whole and in a stream."""
    named = {"type": "function", "function": {"name": "f"}}
    for fields in (
        {"tool_choice": "required", "parallel_tool_calls": False},
        {"tool_choice": named},
        {"tool_choice": "required"},
    ):
        whole = asked(client, **fields, n=4, logit_bias={"9": 3, "10": 7})
        with client.stream(CHATS, model="letters", **BODY, **fields, n=4, logit_bias={"9": 3, "10": 7}) as events:
            deltas = [event["choices"][0] for event in events]
        for choice in whole["choices"]:
            calls, parts = choice["message"].get("tool_calls", []), [d for d in deltas if d["index"] == choice["index"]]
            assert parts[-1]["finish_reason"] == choice["finish_reason"]
            streamed = [one for part in parts for one in part["delta"].get("tool_calls", [])]
            named_parts, arguments = streamed[::2], streamed[1::2]
            assert [one["function"] for one in named_parts] == [{"name": "f", "arguments": ""}] * len(calls)
            assert [one["index"] for one in named_parts] == [one["index"] for one in arguments] == [*range(len(calls))]
            assert [one["function"]["arguments"] for one in arguments] == [
                one["function"]["arguments"] for one in calls
            ]
            for one in calls:
                assert re.fullmatch("[A-Za-z0-9]{9}", one["id"])
                assert type(json.loads(one["function"]["arguments"])["a"]) is int
            assert choice["finish_reason"] == ("tool_calls" if calls else "length")
            assert choice["message"]["content"] == (
                None if calls else "".join(p["delta"].get("content", "") for p in parts)
            )
        assert any(choice["message"].get("tool_calls") for choice in whole["choices"])


@NEEDS
def test_openai_client_calls(client: Client) -> None:
    """The client's stream of a call, which it then sends back with the result."""
    messages: list[Any] = [{"role": "user", "content": "af"}]
    fields: dict[str, Any] = {"model": "letters", "tools": [TOOL], "seed": 1, "max_tokens": 40}
    with openai.OpenAI(base_url=f"http://{client.host}:{client.port}/v1", api_key="none", max_retries=0) as api:
        bias = {"9": 3, "10": 7}
        with api.chat.completions.stream(
            messages=messages, tool_choice="required", logit_bias=bias, **fields
        ) as events:
            kinds = {event.type for event in events}
            [choice] = events.get_final_completion().choices
        assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
        calls = choice.message.tool_calls or []
        assert choice.finish_reason == "tool_calls"
        assert {call.function.name for call in calls} == {"f"}
        results = [{"role": "tool", "tool_call_id": call.id, "content": "a"} for call in calls]
        answer = api.chat.completions.create(messages=[*messages, choice.message, *results], **fields)
    written = "".join("A" + str(json.loads(call.function.arguments)["a"]) for call in calls)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("T" + "af") + len(written) + len(calls) * len("aIf") - sum(
        call.id[0] not in PIECES for call in calls
    )


@NEEDS
def test_server_without_the_package(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    right = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name == "llguidance" else right(name, *rest)
    )
    status, answer = client.ask(CHATS, {"model": "letters", **BODY, "tool_choice": "required"})
    assert (status, answer["error"]["code"]) == (400, "not_installed")
    assert "llguidance" in answer["error"]["message"]
    asked(client, max_tokens=1)


def tool(**changes: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **changes}}


DEEP: dict[str, Any] = {}
for _ in range(70):
    DEEP = {"items": DEEP}


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"tools": {}}, "tools"),
        ({"tools": [tool(name=f"f{n}") for n in range(129)]}, "tools"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [tool(description="a" * (1 << 18))]}, "tools"),
        ({"tools": [tool(parameters=DEEP)]}, "tools"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"tools": [TOOL, {"type": "web_search"}]}, "tools[1]"),
        ({"tools": [tool(name="a b")]}, "tools[0].function.name"),
        ({"tools": [tool(name=None)]}, "tools[0].function.name"),
        ({"tools": [tool(parameters=[1])]}, "tools[0].function.parameters"),
        ({"tools": [tool(strict=1)]}, "tools[0].function.strict"),
        ({"tools": [tool(returns={})]}, "tools[0].function.returns"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"model": "plain"}, "tools"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"tool_choice": "required", "guided_regex": "a"}, "tool_choice"),
        ({"tools": [tool(parameters={"not": {}})], "tool_choice": "required"}, "tool_choice"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": {"a": 1}}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": "a", "tool_call_id": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "a", "tool_call_id": 5}]}, "messages[0].tool_call_id"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": DEEP}}]}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": {}}}]}]},
            "messages[0].tool_calls[0].function.name",
        ),
    ],
    ids=lambda value: str(value)[:60],
)
def test_refused_fields_are_named(fields: dict[str, Any], param: str, client: Client) -> None:
    status, answer = client.ask(CHATS, {"model": "letters", **BODY, **fields})
    assert status == 400, answer
    assert answer["error"]["param"] == param, answer
    assert answer["error"]["message"].startswith("expected ")


def test_tool_format_of_a_server(tmp_path: Path) -> None:
    graph = letters(tmp_path, tokenizer=tokenizer(), chat_template={"template": "a", "tokens": {}})
    with within(graph) as client:
        assert client.ask(CHATS, {**BODY, "max_tokens": 1})[0] == 400
    with within(graph, tool_format="lfm2") as client:
        assert client.good(CHATS, {**BODY, "max_tokens": 1})["choices"][0]["message"]["role"] == "assistant"
