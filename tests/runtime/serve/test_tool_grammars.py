"""Grammars of required calls: which texts they allow, and that these are read as calls."""

from __future__ import annotations

import importlib.util
import json
import string
from typing import Any

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers

from t2r_runtime import Tokenizer
from t2r_runtime.serve.errors import ApiError
from t2r_runtime.serve.fields import Fields
from t2r_runtime.serve.grammars import Form, Grammars
from t2r_runtime.serve.tools.formats import FORMATS
from t2r_runtime.serve.tools.request import Tools, read_tools

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llguidance") is None, reason="needs the extra structured: pip install llguidance"
)
SPECIAL = ["<|tool_call_start|>", "<|tool_call_end|>", "[TOOL_CALLS]", "[ARGS]", "<end>"]
LETTERS = [c for c in string.printable if c.isprintable() or c == "\n"]
END = len(LETTERS) + len(SPECIAL) - 1
FIND: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"$ref": "#/$defs/Unit"},
        "box": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"Unit": {"enum": ["C", "F"], "title": "Unit"}},
}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    library = Library(models.BPE({letter: token for token, letter in enumerate(LETTERS)}, []))
    library.pre_tokenizer, library.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    library.add_special_tokens(SPECIAL)
    return Grammars(Tokenizer(library.to_str()), END + 1)


def tools_of(name: str, choice: Any = "required", schema: Any = FIND, strict: bool = False, **fields: Any) -> Tools:
    functions = [{"name": "find", "parameters": schema, "strict": strict}, {"name": "get-x.y"}]
    tools = [{"type": "function", "function": function} for function in functions]
    found = read_tools(Fields({"tools": tools, "tool_choice": choice, **fields}), FORMATS[name])
    assert found is not None
    return found


def form_of(tools: Tools) -> Form:
    written = {len(LETTERS) + n: text for n, text in enumerate(SPECIAL) if text in tools.format.special}
    form = tools.form(written)
    assert form is not None
    return form


def tokens_of(text: str) -> list[int]:
    found = []
    while text:
        special = next((each for each in SPECIAL if text.startswith(each)), text[0])
        found.append(LETTERS.index(special) if len(special) == 1 else len(LETTERS) + SPECIAL.index(special))
        text = text.removeprefix(special)
    return found


def allows(grammars: Grammars, form: Form, text: str) -> bool:
    """Whether a whole answer may be this text."""
    mask = grammars.mask(form, [END])
    for token in tokens_of(text):
        if not mask.allowed()[token]:
            return False
        mask.take(token)
    return bool(mask.allowed()[END])


ONE, OTHER = {"city": "a <b>", "box": [1, 2]}, {"city": "x"}
CALLS = {
    "hermes": '<tool_call>\n{"name": "find", "arguments": %s}\n</tool_call>',
    "granite": '<|tool_call|>[{"name": "find", "arguments": %s}]',
    "llama3": '{"name": "find", "parameters": %s}',
    "mistral": '[TOOL_CALLS][{"name": "find", "arguments": %s}]',
    "mistral-args": "[TOOL_CALLS]find[ARGS]%s",
    "lfm2": '<|tool_call_start|>[{"name": "find", "arguments": %s}]<|tool_call_end|>',
}
SEVERAL = {
    "hermes": f"{CALLS['hermes']}\n{CALLS['hermes']}",
    "granite": '<|tool_call|>[{"name": "find", "arguments": %s}, {"name": "find", "arguments": %s}]',
    "mistral": '[TOOL_CALLS][{"name": "find", "arguments": %s}, {"name": "find", "arguments": %s}]',
    "mistral-args": f"{CALLS['mistral-args']}{CALLS['mistral-args']}",
    "lfm2": CALLS["lfm2"].replace("}]", '}, {"name": "find", "arguments": %s}]'),
}


def called(tools: Tools, text: str) -> list[Any]:
    stream = tools.stream()
    _, calls = stream.feed(text)
    return [json.loads(call.arguments) for call in calls + stream.end()[1]]


@pytest.mark.parametrize("name", CALLS)
def test_calls_in_json(name: str, grammars: Grammars) -> None:
    tools = tools_of(name)
    form = form_of(tools)
    text = CALLS[name] % json.dumps(ONE)
    assert allows(grammars, form, text)
    assert called(tools, text) == [ONE]
    for wrong in ({"city": 1}, {"box": [1]}, {**ONE, "unit": "K"}, {**ONE, "box": [1, 2, 3]}, {**ONE, "z": 1}):
        assert not allows(grammars, form, CALLS[name] % json.dumps(wrong))
    assert not allows(grammars, form, "Hello")
    assert not allows(grammars, form, text.replace("find", "fine"))
    assert allows(grammars, form, (CALLS[name] % "{}").replace("find", "get-x.y"))
    named = {"type": "function", "function": {"name": "find"}}
    assert not allows(grammars, form_of(tools_of(name, named)), (CALLS[name] % "{}").replace("find", "get-x.y"))
    if name in SEVERAL:
        both = SEVERAL[name] % (json.dumps(ONE), json.dumps(OTHER))
        assert allows(grammars, form, both)
        assert called(tools, both) == [ONE, OTHER]
        for single in (tools_of(name, named), tools_of(name, parallel_tool_calls=False)):
            assert not allows(grammars, form_of(single), both)
    else:
        assert not allows(grammars, form, f"{text}; {text}")


def xml(**parameters: str) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function=find>\n{inner}</function>\n</tool_call>"


def test_calls_in_xml(grammars: Grammars) -> None:
    tools = tools_of("qwen-xml")
    form = form_of(tools)
    for text, expected in (
        (xml(city="a <b>", box="[1, 2]"), [ONE]),
        (xml(city="x\n\ny", unit="F", note="null"), [{"city": "x\n\ny", "unit": "F", "note": None}]),
        (xml(city="7") + "\n" + xml(city=""), [{"city": "7"}, {"city": ""}]),
        (xml().replace("find", "get-x.y"), [{}]),
    ):
        assert allows(grammars, form, text), text
        assert called(tools, text) == expected
    for wrong in (
        xml(),
        xml(unit="C"),
        xml(city="a", unit="K"),
        xml(city="a", box="[1, 2, 3]"),
        xml(city="a", z="1"),
        "a",
    ):
        assert not allows(grammars, form, wrong)


@pytest.mark.parametrize("name", [*CALLS, "qwen-xml"])
def test_strict_calls_in_any_text(name: str, grammars: Grammars) -> None:
    tools = tools_of(name, "auto", strict=True)
    form = form_of(tools)
    write = {"qwen-xml": lambda text: xml(**json.loads(text))}.get(name, lambda text: CALLS[name] % text)
    text, other = write('{"city": "a"}'), write('{"town": "a"}')
    for plain in ("", "Hello, <t> [T {\n", " \n"):
        assert allows(grammars, form, plain)
    assert allows(grammars, form, text)
    assert not allows(grammars, form, other)
    if name != "llama3":
        assert allows(grammars, form, f"I look.\n{text}")
        assert not allows(grammars, form, f"I look.\n{other}")
    if name in ("hermes", "mistral-args", "lfm2", "qwen-xml"):
        assert allows(grammars, form, f"{text}\n{text}")
        assert called(tools, f"a {text}\n{text}") == [{"city": "a"}] * 2
    assert tools_of(name, "auto").form({}) is None
    assert tools.form({}, Form("regex", "a", "x")) == Form("regex", "a", "x")


@pytest.mark.parametrize(
    "name, schema, message",
    [
        ("qwen-xml", {"properties": {"a": {"type": "string", "pattern": "a"}}}, "the keyword pattern"),
        ("qwen-xml", {"properties": {"a": {"enum": ["a", 1]}}}, "several types"),
        ("qwen-xml", {"properties": {"a": {"anyOf": [{"type": "string", "maxLength": 1}]}}}, "the keyword maxLength"),
        ("qwen-xml", {"properties": {"a": {"allOf": []}}}, "the keyword allOf"),
        ("qwen-xml", {"properties": {"a": True}}, "a schema that is no object"),
        ("qwen-xml", {"properties": {"a>": {}}}, "a parameter named a>"),
        ("qwen-xml", {"required": ["a"]}, "required a, which has no schema"),
        ("qwen-xml", {"anyOf": []}, "the keyword anyOf"),
        ("hermes", {"description": "a" * (1 << 16)}, "65,536"),
        ("functiongemma", {}, "functiongemma, which has no grammar"),
    ],
    ids=str,
)
def test_schemas_without_a_grammar(name: str, schema: dict[str, Any], message: str) -> None:
    with pytest.raises(ApiError, match=message.replace("(", r"\(")):
        form_of(tools_of(name, schema=schema))


def test_every_format_is_tested() -> None:
    assert {name for name, format in FORMATS.items() if format.shape is not None} == {*CALLS, "qwen-xml"}
