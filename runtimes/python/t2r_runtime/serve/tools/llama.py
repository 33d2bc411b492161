"""Llama 3: objects in JSON from the start of the text, with `;` between them."""

from t2r_runtime.serve.tools.base import Format, Shape, json_calls

SHAPE = Shape('{"name": "{name}", "parameters": ')  # its templates refuse several calls
FORMAT = Format("llama3", "<|python_tag|>", "", json_calls, bare="{", shape=SHAPE)
