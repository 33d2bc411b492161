"""Hermes, Qwen2.5, Qwen3, SmolLM3, Granite 4: an object in JSON between tags, for each call."""

from t2r_runtime.serve.tools.base import Format, Shape, json_calls

SHAPE = Shape('<tool_call>\n{"name": "{name}", "arguments": ', "}\n</tool_call>", between="\n")
FORMAT = Format("hermes", "<tool_call>", "</tool_call>", json_calls, shape=SHAPE)
