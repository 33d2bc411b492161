"""What models write when they call functions, by format: text, its content, and its calls."""

from __future__ import annotations

from typing import Any

FUNCTIONS: dict[str, dict[str, Any]] = {
    "find": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
            "where": {"type": "object", "properties": {"box": {"type": "array", "items": {"type": "number"}}}},
            "unit": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["city"],
    },
    "now": {},
    "get-x.y": {"properties": {"n": {"enum": [1, 2]}}},
}
Shape = tuple[str, str, list[tuple[str, dict[str, Any]]]]
PARIS, NOW = ("find", {"city": "Paris"}), ("now", {})
NESTED = ("find", {"city": "Zürich 雪", "where": {"box": [1, 2.5, -3]}, "unit": None, "exact": True})
QUOTED = ("find", {"city": 'say "hi", it\'s\n{[}]'})


def texts(*malformed: str) -> list[Shape]:
    """Texts without calls."""
    return [(text, text, []) for text in ("", "plain", " a < b \n", *malformed)]


HERMES: list[Shape] = [
    ('<tool_call>\n{"name": "find", "arguments": {"city": "Paris"}}\n</tool_call>', "", [PARIS]),
    (
        'Let me see.\n\n<tool_call>\n{"name": "find", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "Let me see.",
        [PARIS, NOW],
    ),
    (
        '<tool_call>{"arguments": {"city": "Z\\u00fcrich 雪", "where": {"box": [1, 2.5, -3]}, "unit": null, '
        '"exact": true}, "name": "find"}</tool_call>',
        "",
        [NESTED],
    ),
    (
        '<tool_call>{"name": "find", "arguments": {"city": "say \\"hi\\", it\'s\\n{[}]"}}</tool_call>',
        "",
        [QUOTED],
    ),
    (
        '<tool_call>{"name": "find", "arguments": {"city": "</tool_call><tool_call>"}}</tool_call> Done.',
        " Done.",
        [("find", {"city": "</tool_call><tool_call>"})],
    ),
    ('<tool_call>{"name": "now"}</tool_call>', "", [NOW]),
    ('<tool_call>[{"name": "now"}, {"name": "get-x.y", "arguments": {"n": 1}}]', "", [NOW, ("get-x.y", {"n": 1})]),
    ('<tool_call>{"name": "find", "arguments": "{\\"city\\": \\"Paris\\"}"}</tool_call>', "", [PARIS]),
    (
        '<tool_call>{"name": "now"</tool_call> x <tool_call>{"name": "now"}</tool_call>',
        '<tool_call>{"name": "now"</tool_call> x',
        [NOW],
    ),
    *texts(
        '<tool_call>\n{"name": "find", "arguments": {"city": "Pa',
        '<tool_call>{"name": "find", "arguments": {city: 1}}</tool_call>',
        'a <tool_call>{"name": "none", "arguments": {}}</tool_call>\n',
        '<tool_call>{"name": "find", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "find", "arguments": {"city": NaN}}</tool_call>',
        '<tool_call>{"name": "find", "arguments": {"city": "\\ud800"}}</tool_call>',
        '<tool_call>{"name": "find", "arguments": {"city": ' + "9" * 5000 + "}}</tool_call>",
        '<tool_call>{"name": 3}</tool_call>',
        "<tool_call></tool_call>",
        "<tool_call>7</tool_call>",
        "<tool_call>" + "[" * 3000 + "</tool_call>",
        "<tool_cal <tool_call",
    ),
]
LLAMA: list[Shape] = [
    ('{"name": "find", "parameters": {"city": "Paris"}}', "", [PARIS]),
    ('<|python_tag|>{"name": "find", "parameters": {"city": "Paris"}}', "", [PARIS]),
    ('\n {"name": "find", "arguments": {"city": "Paris"}}; {"name": "now", "parameters": {}}', "", [PARIS, NOW]),
    ('I look. <|python_tag|>{"name": "now", "parameters": {}}\n', "I look.", [NOW]),
    (
        '{"type": "function", "function": {"name": "find", "parameters": {"city": "Zürich 雪", '
        '"where": {"box": [1, 2.5, -3]}, "unit": null, "exact": true}}}',
        "",
        [NESTED],
    ),
    ('{"name": "find", "parameters": {"city": "say \\"hi\\", it\'s\\n{[}]"}}', "", [QUOTED]),
    ('{"name": "find", "parameters": {"city": "Paris"}} and more\n', " and more", [PARIS]),
    *texts(
        '{"name": "find", "parameters": {"city": "Pa',
        '{"name": "find", "parameters": {"city": "Paris"}}; {"name": "no',
        '{"name": "none", "parameters": {}}',
        '{"city": "Paris"}',
        '<|python_tag|>print("a")',
        'As JSON: {"name": "now", "parameters": {}}',
        "{}",
    ),
]
MISTRAL: list[Shape] = [
    ('[TOOL_CALLS] [{"name": "find", "arguments": {"city": "Paris"}, "id": "abcdefghi"}]', "", [PARIS]),
    (
        'Yes.\n[TOOL_CALLS][{"name": "find", "arguments": {"city": "Paris"}},\n{"name": "now", "arguments": {}}]',
        "Yes.",
        [PARIS, NOW],
    ),
    (
        '[TOOL_CALLS][{"name": "find", "arguments": {"city": "Zürich 雪", "where": {"box": [1, 2.5, -3]}, '
        '"unit": null, "exact": true}}]',
        "",
        [NESTED],
    ),
    ('[TOOL_CALLS]find[ARGS]{"city": "Paris"}', "", [PARIS]),
    ('Yes.[TOOL_CALLS]find[CALL_ID]abc123[ARGS]{"city": "Paris"}[TOOL_CALLS]now[ARGS]{}', "Yes.", [PARIS, NOW]),
    ('[TOOL_CALLS]find{"city": "say \\"hi\\", it\'s\\n{[}]"}', "", [QUOTED]),
    ('[TOOL_CALLS]find[ARGS]{"city": "[TOOL_CALLS]now[ARGS]{}"}', "", [("find", {"city": "[TOOL_CALLS]now[ARGS]{}"})]),
    ("Yes. [TOOL_CALLS]now[ARGS]{} and [TOOL_CALLS] more", "Yes. and [TOOL_CALLS] more", [NOW]),
    ('[TOOL_CALLS] [{"name": "now", "arguments": {}}]\n\nDone.', "\n\nDone.", [NOW]),
    *texts(
        '[TOOL_CALLS] [{"name": "find", "arguments": {"city": "Paris"}',
        '[TOOL_CALLS][{"name": "none", "arguments": {}}]',
        "[TOOL_CALLS]find[ARGS]",
        '[TOOL_CALLS]find[ARGS]{"city": }',
        "[TOOL_CALLS]",
        "[TOOL_CALLS][]",
        "[TOOL_CALL [TOOL_CALLS",
    ),
]
GRANITE: list[Shape] = [
    ('<|tool_call|>[{"name": "find", "arguments": {"city": "Paris"}}]', "", [PARIS]),
    (
        '<|tool_call|> [{"arguments": {"city": "Paris"}, "name": "find"}, {"name": "now", "arguments": {}}]\n',
        "",
        [PARIS, NOW],
    ),
    ('<tool_call>[{"name": "find", "arguments": {"city": "Paris"}}]', "", [PARIS]),
    (
        'So: <|tool_call|>[{"name": "find", "arguments": {"city": "Zürich 雪", "where": {"box": [1, 2.5, -3]}, '
        '"unit": null, "exact": true}}]',
        "So:",
        [NESTED],
    ),
    ('<|tool_call|>[{"name": "find", "arguments": {"city": "say \\"hi\\", it\'s\\n{[}]"}}]', "", [QUOTED]),
    ('<|tool_call|>{"name": "now"} done', " done", [NOW]),
    *texts(
        '<|tool_call|>[{"name": "find", "arguments": {"city": "Par',
        '<|tool_call|>[{"name": "none", "arguments": {}}]',
        '<|tool_call|>[{"name": "find", "arguments": "Paris"}]',
        "<tool_call>[1]",
        "<|tool_call|>[]",
    ),
]
LFM2: list[Shape] = [
    ('<|tool_call_start|>[find(city="Paris")]<|tool_call_end|>', "", [PARIS]),
    ("I look. <|tool_call_start|>[find(city='Paris'), now()]<|tool_call_end|>Done.", "I look.Done.", [PARIS, NOW]),
    (
        '<|tool_call_start|>[find(city="Zürich 雪", where={"box": [1, 2.5, -3]}, unit=None, exact=True)]'
        "<|tool_call_end|>",
        "",
        [NESTED],
    ),
    (
        "<|tool_call_start|>[find(city='say \"hi\", it\\'s\\n{[}]')]<|tool_call_end|>",
        "",
        [QUOTED],
    ),
    ('<|tool_call_start|>[{"name": "find", "arguments": {"city": "Paris"}}]<|tool_call_end|>', "", [PARIS]),
    (
        '<|tool_call_start|>[find(city="<|tool_call_end|>")]<|tool_call_end|>',
        "",
        [("find", {"city": "<|tool_call_end|>"})],
    ),
    ("<|tool_call_start|>[get-x.y(n=1)]", "", [("get-x.y", {"n": 1})]),
    ("<|tool_call_start|>now()<|tool_call_end|>", "", [NOW]),
    (
        "<|tool_call_start|>[find(city='\\u00e4\\x41\\q', days=-2e3)]<|tool_call_end|>",
        "",
        [("find", {"city": "äA\\q", "days": -2000.0})],
    ),
    *texts(
        '<|tool_call_start|>[find(city="Par',
        "<|tool_call_start|>[find(city=Paris)]<|tool_call_end|>",
        '<|tool_call_start|>[find("Paris")]<|tool_call_end|>',
        "<|tool_call_start|>[find(city=__import__('os').getcwd())]<|tool_call_end|>",
        "<|tool_call_start|>[none()]<|tool_call_end|>",
        "<|tool_call_start|>find(), now()<|tool_call_end|>",
        "<|tool_call_start|>[find() now()]<|tool_call_end|>",
        "<|tool_call_start|>[]<|tool_call_end|>",
        "<|tool_call_start|>[find(city=" + "[" * 3000 + ")]<|tool_call_end|>",
        "<|tool_call_start|>[find(days=007)]<|tool_call_end|>",
        "<|tool_call_start|>[find()] x<|tool_call_end|>",
    ),
]
GEMMA: list[Shape] = [
    ("<start_function_call>call:find{city:<escape>Paris<escape>}<end_function_call>", "", [PARIS]),
    (
        "I look.\n<start_function_call>call:find{city:<escape>Paris<escape>}<end_function_call>"
        "<start_function_call>call:now{}<end_function_call>",
        "I look.",
        [PARIS, NOW],
    ),
    (
        "<start_function_call>call:find{city:<escape>Zürich 雪<escape>,where:{box:[1,2.5,-3]},unit:null,exact:true}"
        "<end_function_call>",
        "",
        [NESTED],
    ),
    ('<start_function_call>call:find{city:<escape>say "hi", it\'s\n{[}]<escape>}<end_function_call>', "", [QUOTED]),
    (
        "<start_function_call>call:find{city:<escape><end_function_call><escape>}<end_function_call>",
        "",
        [("find", {"city": "<end_function_call>"})],
    ),
    ("<start_function_call>call:now{}", "", [NOW]),
    *texts(
        "<start_function_call>call:find{city:<escape>Par",
        "<start_function_call>call:find{city:Paris}<end_function_call>",
        "<start_function_call>call:none{}<end_function_call>",
        "<start_function_call>find{}<end_function_call>",
        "<start_function_call>call:find{city<end_function_call>",
    ),
]
GEMMA4: list[Shape] = [
    (
        text.replace("<escape>", '<|"|>')
        .replace("start_function_call", "|tool_call")
        .replace("<end_function_call>", "<tool_call|>"),
        content,
        calls,
    )
    for text, content, calls in GEMMA[:4]
]
QWEN: list[Shape] = [
    (
        "<tool_call>\n<function=find>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        "",
        [PARIS],
    ),
    (
        "I look.\n\n<tool_call>\n<function=find>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "I look.",
        [PARIS, NOW],
    ),
    (
        "<tool_call><function=find><parameter=city>Zürich 雪</parameter><parameter=where>\n"
        '{"box": [1, 2.5, -3]}\n</parameter><parameter=unit>None</parameter><parameter=exact>True</parameter>'
        "</function></tool_call>",
        "",
        [NESTED],
    ),
    (
        '<tool_call>\n<function=find>\n<parameter=city>\nsay "hi", it\'s\n{[}]\n</parameter>\n'
        "</function>\n</tool_call>",
        "",
        [QUOTED],
    ),
    (
        "<tool_call>\n<function=find>\n<parameter=city>\n7\n</parameter>\n<parameter=days>\n7\n</parameter>\n"
        "<parameter=unit>\n7\n</parameter>\n<parameter=exact>\nmaybe\n</parameter>\n<parameter=more>\n7\n</parameter>\n"
        "</function>",
        "",
        [("find", {"city": "7", "days": 7, "unit": "7", "exact": "maybe", "more": "7"})],
    ),
    (
        "<tool_call>\n<function=find>\n<parameter=city>\n</tool_call>\n</parameter>\n</function>\n</tool_call>",
        "",
        [("find", {"city": "</tool_call>"})],
    ),
    ("<tool_call><function=get-x.y><parameter=n>\n2\n</parameter></function></tool_call>", "", [("get-x.y", {"n": 2})]),
    ("<tool_call>\n<function=find>\n<parameter=city>\nParis\n</parameter>\n</tool_call> Done.", " Done.", [PARIS]),
    *texts(
        "<tool_call>\n<function=find>\n<parameter=city>\nPar",
        "<tool_call>\n<function=none>\n</function>\n</tool_call>",
        "<tool_call>\n<function=find>\n<parameter=city>\nParis\n</parameter>\n",
        "<tool_call>\n<function=find>\nParis\n</function>\n</tool_call>",
        "<tool_call>\nfind\n</tool_call>",
        "<tool_call></tool_call>",
    ),
]
SHAPES: dict[str, list[Shape]] = {
    "hermes": HERMES,
    "llama3": LLAMA,
    "mistral": MISTRAL,
    "mistral-args": MISTRAL,
    "granite": GRANITE,
    "lfm2": LFM2,
    "functiongemma": GEMMA,
    "gemma4": GEMMA4,
    "qwen-xml": QWEN,
}
