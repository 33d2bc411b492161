"""The formats of calls, and which of them a chat template has."""

from __future__ import annotations

from collections.abc import Mapping

from t2r_runtime.serve.tools import gemma, granite, hermes, lfm2, llama, mistral, qwen_xml
from t2r_runtime.serve.tools.base import Format

# A chat template has the first format with all texts of one of its alternatives, and none of the texts of `OTHERS`.
RULES: tuple[tuple[Format, tuple[tuple[str, ...], ...]], ...] = (
    (gemma.FORMAT, (("<start_function_call>",),)),
    (gemma.GEMMA4, (("<|tool_call>", "<tool_call|>"),)),
    (lfm2.FORMAT, (("<|tool_call_start|>",), ("<|tool_list_start|>",))),
    (mistral.NAMED, (("[TOOL_CALLS]", "[ARGS]"),)),
    (mistral.FORMAT, (("[TOOL_CALLS]",),)),
    (qwen_xml.FORMAT, (("<tool_call>", "<function="),)),
    (hermes.FORMAT, (("<tool_call>",),)),
    (granite.FORMAT, (("<|tool_call|>",), ("<|start_of_role|>available_tools",))),
    (llama.FORMAT, (("<|start_header_id|>", '"parameters": '),)),
)
OTHERS = ("<arg_key>",)  # GLM-4.5, whose calls have Hermes's tags
FORMATS: Mapping[str, Format] = {format.name: format for format, _ in RULES}


def format_of(template: str) -> Format | None:
    """The format of a chat template; None if it has none that is known."""
    if "tools" not in template or any(text in template for text in OTHERS):
        return None
    for format, alternatives in RULES:
        if any(all(text in template for text in texts) for texts in alternatives):
            return format
    return None
