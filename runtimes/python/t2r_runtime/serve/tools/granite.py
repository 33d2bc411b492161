"""Granite 3: a tag, which some versions write in another way, then a list of objects in JSON."""

from t2r_runtime.serve.tools.base import Format, Shape, json_calls

SHAPE = Shape('{"name": "{name}", "arguments": ', before="<|tool_call|>[", after="]", between=", ")
FORMAT = Format("granite", "<|tool_call|>", "", json_calls, other="<tool_call>", shape=SHAPE)
