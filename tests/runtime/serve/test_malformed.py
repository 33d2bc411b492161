"""Fields of chat requests that are not what the endpoint takes: each is an error of that field."""

from __future__ import annotations

from typing import Any

import pytest

from t2r_runtime.serve.errors import ApiError
from t2r_runtime.serve.fields import Fields
from t2r_runtime.serve.tools.formats import FORMATS
from t2r_runtime.serve.tools.messages import read_messages
from t2r_runtime.serve.tools.request import MAX_SIZE, read_tools

DEEP: Any = {}
for _ in range(200):
    DEEP = {"a": DEEP}


def call(**changed: Any) -> dict[str, Any]:
    """An answer with a call."""
    function = {"name": "f", "arguments": "{}"} | changed
    return {"role": "assistant", "tool_calls": [{"function": function}]}


@pytest.mark.parametrize(
    "message, where",
    [
        ("hello", ""),
        ({"content": "no role"}, ""),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, ""),
        ({"role": "user", "content": [{"type": "image_url"}]}, ""),
        ({"role": "user", "content": "hi", "tool_calls": [1]}, ""),
        ({"role": "assistant", "tool_calls": {"id": "1"}}, ".tool_calls"),
        ({"role": "assistant", "tool_calls": [{}] * 129}, ".tool_calls"),
        ({"role": "assistant", "tool_calls": [1]}, ".tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"function": "f"}]}, ".tool_calls[0]"),
        (call(arguments="{"), ".tool_calls[0].function.arguments"),
        (call(arguments="[]"), ".tool_calls[0].function.arguments"),
        (call(arguments=DEEP), ".tool_calls[0].function.arguments"),
        (call(name=""), ".tool_calls[0].function.name"),
        ({"role": "tool", "content": "", "tool_call_id": 7}, ".tool_call_id"),
    ],
)
def test_messages(message: object, where: str) -> None:
    with pytest.raises(ApiError) as error:
        read_messages([{"role": "user", "content": "hi"}, message])
    assert error.value.param == f"messages[1]{where}"


def test_what_a_function_returned_has_its_name() -> None:
    """That of the call with its id, unless the message has one of its own."""
    calls = [{"id": "7", "function": {"name": "f", "arguments": {"a": 1}}}]
    asked = {"role": "assistant", "tool_calls": calls}
    for own, name in (({}, "f"), ({"name": "g"}, "g")):
        *_, last = read_messages([asked, {"role": "tool", "content": "2", "tool_call_id": "7", **own}])
        assert (last["name"], last["content"]) == (name, "2")


def tool(**changed: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}} | changed}


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"tools": {"type": "function"}}, "tools"),
        ({"tools": [tool()] * 129}, "tools"),
        ({"tools": [tool(), tool()]}, "tools"),
        ({"tools": [tool(parameters=DEEP)]}, "tools"),
        ({"tools": [tool(description="a" * MAX_SIZE)]}, "tools"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"tools": [{"type": "retrieval"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": "f"}]}, "tools[0]"),
        ({"tools": [tool(name="a b")]}, "tools[0].function.name"),
        ({"tools": [tool(name=None)]}, "tools[0].function.name"),
        ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": "some"}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "function", "function": "f"}}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    ],
)
def test_tools(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as error:
        read_tools(Fields(fields), next(iter(FORMATS.values())))
    assert error.value.param == param


def test_tools_that_are_not_called() -> None:
    """None are given, the request wants no calls, or the model has no known format, which is an error."""
    assert read_tools(Fields({"tools": []}), None) is None
    assert read_tools(Fields({"tools": [tool()], "tool_choice": "none"}), None) is None
    with pytest.raises(ApiError, match="a known format of tool calls"):
        read_tools(Fields({"tools": [tool()]}), None)
    chosen = {"type": "function", "function": {"name": "f"}}
    found = read_tools(Fields({"tools": [tool()], "tool_choice": chosen}), next(iter(FORMATS.values())))
    assert found is not None and (found.required, found.parallel) == (("f",), False)
