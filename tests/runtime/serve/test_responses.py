"""OpenAI's Responses API: the same answers as of chats, whole, as a stream, and with calls."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from runtime.serve.server import Client, letters, within
from runtime.serve.test_tools import NEEDS, TEMPLATE, TOOL, tokenizer

PATH = "/v1/responses"
TOOLS = [{"type": "function", **TOOL["function"]}]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("responses")
    chat = {"template": TEMPLATE, "tokens": {}}
    graph = letters(folder, tokenizer=tokenizer(), eos_tokens=(10,), chat_template=chat)
    with within(graph, rows=4) as client:
        yield client


@pytest.fixture
def api(client: Client) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"http://{client.host}:{client.port}/v1", api_key="none", max_retries=0) as api:
        yield api


def chat(client: Client, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = client.good("/v1/chat/completions", {"messages": messages, **fields})
    return answer


@pytest.mark.parametrize(
    "asked, messages",
    [
        ({"input": "af"}, [{"role": "user", "content": "af"}]),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "af"}]}], "instructions": "fa"},
            [{"role": "system", "content": "fa"}, {"role": "user", "content": "af"}],
        ),
        (
            {
                "input": [
                    {"role": "developer", "content": "a"},
                    {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": "f"},
                    {"type": "function_call", "id": "fc_1", "call_id": "abc", "name": "f", "arguments": '{"a": 1}'},
                    {"type": "function_call", "call_id": "def", "name": "f", "arguments": '{"a": 1}'},
                    {"type": "function_call_output", "call_id": "abc", "output": "af"},
                ]
            },
            [
                {"role": "system", "content": "a"},
                {"role": "assistant", "content": "f"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "abc", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
                        {"id": "def", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
                    ],
                },
                {"role": "tool", "tool_call_id": "abc", "content": "af"},
            ],
        ),
    ],
)
def test_answer_is_that_of_the_chat(
    asked: dict[str, Any], messages: list[dict[str, Any]], client: Client, api: openai.OpenAI
) -> None:
    expected = chat(client, messages, max_tokens=7, temperature=0)
    done = api.responses.create(model="letters", max_output_tokens=7, temperature=0, **asked)
    [choice] = expected["choices"]
    assert done.output_text == choice["message"]["content"]
    assert done.usage is not None and done.usage.input_tokens == expected["usage"]["prompt_tokens"]
    assert done.status == {"stop": "completed", "length": "incomplete"}[choice["finish_reason"]]
    assert (done.instructions, done.max_output_tokens, done.temperature) == (asked.get("instructions"), 7, 0)


def test_length_is_the_reason_of_an_incomplete_response(api: openai.OpenAI) -> None:
    done = api.responses.create(model="letters", input="af", max_output_tokens=2, extra_body={"ignore_eos": True})
    assert done.incomplete_details is not None
    assert (done.status, done.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_stream_has_the_parts_of_the_whole(api: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "letters", "input": "af", "max_output_tokens": 9, "temperature": 0}
    whole = api.responses.create(**asked)
    events = [*api.responses.create(**asked, stream=True)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events if not event.type.endswith(".delta")]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[4:] == ["output_text.done", "content_part.done", "output_item.done", whole.status]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    last: Any = events[-1]
    assert last.response.output_text == whole.output_text and last.response.usage == whole.usage


@NEEDS
def test_calls_and_their_results(client: Client, api: openai.OpenAI) -> None:
    """A call of a stream, sent back with its result."""
    fields: dict[str, Any] = {"model": "letters", "tools": TOOLS, "max_output_tokens": 60, "temperature": 1}
    bias = {"seed": 1, "logit_bias": {"9": 3, "10": 7}}
    with api.responses.stream(input="af", tool_choice="required", extra_body=bias, **fields) as events:
        kinds = {event.type for event in events}
        done = events.get_final_response()
    assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= kinds
    calls = [item for item in done.output if item.type == "function_call"]
    assert calls and all(type(json.loads(call.arguments)["a"]) is int for call in calls)
    whole = client.good(PATH, {**fields, **bias, "input": "af", "tool_choice": "required"})
    assert [item["arguments"] for item in whole["output"] if item["type"] == "function_call"] == [
        call.arguments for call in calls
    ]
    results: list[Any] = [{"type": "function_call_output", "call_id": call.call_id, "output": "a"} for call in calls]
    again: list[Any] = [{"role": "user", "content": "af"}, *done.output, *results]
    assert api.responses.create(input=again, **fields).usage is not None


@NEEDS
def test_form_of_the_text(client: Client) -> None:
    form = {"format": {"type": "json_schema", "name": "x", "schema": {"enum": [1, 11]}, "strict": True}}
    [item] = client.good(PATH, {"input": "af", "text": form, "logit_bias": {"10": 9}})["output"]
    assert json.loads(item["content"][0]["text"]) in (1, 11)
    form["format"]["schema"] = {"not": {"type": "null"}}
    status, answer = client.ask(PATH, {"input": "af", "text": form})
    assert (status, answer["error"]["param"]) == (400, "text.format.schema") and "not" in answer["error"]["message"]


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"previous_response_id": "resp_1"}, "expected no previous_response_id, which this server has not"),
        ({"background": True}, "expected no background"),
        ({"reasoning": {"effort": "low"}}, "expected no reasoning"),
        ({"truncation": "auto"}, "expected no truncation"),
        ({"include": ["reasoning.encrypted_content"]}, "expected no include"),
        ({"input": []}, "expected a text or a list of items"),
        (
            {"input": [{"type": "reasoning"}]},
            "expected a message, a function_call or a function_call_output as input[0]",
        ),
        ({"input": [3]}, "expected a message, a function_call or a function_call_output as input[0]"),
        ({"input": [{"role": "user", "content": 3}]}, "a text as the content of input; received 3"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "a text as the content of input"),
        ({"max_output_tokens": -1}, "as max_output_tokens; received -1"),
        ({"instructions": 3}, "a text as the content of input; received 3"),
        ({"text": {"verbosity": "high"}}, "expected no text.verbosity"),
        ({"stream": 1}, "expected true or false as stream; received 1"),
        ({"tools": [{"type": "web_search"}]}, "function"),
        ({"max_tokens": 3}, "expected max_output_tokens; received max_tokens, a field of chats"),
        ({"response_format": {}}, "expected text.format; received response_format"),
        ({"n": 2}, "expected no n"),
        ({"max_tokns": 3}, "expected a known field"),
    ],
)
def test_bad_fields(fields: dict[str, Any], message: str, client: Client) -> None:
    status, answer = client.ask(PATH, {"input": "af", **fields})
    assert status == 400 and message in answer["error"]["message"], answer
    assert answer["error"]["param"]


def test_error_in_a_stream_is_its_last_event(
    client: Client, api: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    from t2r_runtime.serve.answer import Answer
    from t2r_runtime.serve.errors import ApiError

    pieces = Answer._pieces

    async def broken(self: Answer) -> Any:
        async for piece in pieces(self):
            yield piece
            raise ApiError(500, "expected this; received that; do it", code="weights")

    monkeypatch.setattr(Answer, "_pieces", broken)
    *_, last = api.responses.create(model="letters", input="af", stream=True)
    assert last.type == "response.failed" and last.response.error is not None
    assert last.response.error.message == "expected this; received that; do it"
