"""The chat template of a Hugging Face folder, and the special tokens that it names."""

from __future__ import annotations

from typing import Any

from t2r_export.checkpoints.importers.files import Folder
from t2r_runtime.contract.chat import MAX_TEMPLATE, MAX_TOKEN, TOKENS, fault

CONFIG, TEMPLATE = "tokenizer_config.json", "chat_template.jinja"
LIMITS = {CONFIG: 1 << 23, TEMPLATE: 1 << 20}  # bytes
DEFAULT = "default"  # name of the chat template among several


def chat_template(files: Folder) -> tuple[dict[str, Any] | None, list[str]]:
    """The template as in the contract, and notes. Its own file overrides the tokenizer's config.

    A template that is larger than a graph may hold, or that is invalid in jinja2, is skipped with a note.

    Raises:
        UserError: a file that is damaged or too large.
    """
    config = files.object(CONFIG, LIMITS[CONFIG]) if files.has(CONFIG) else {}
    found = files.text(TEMPLATE, LIMITS[TEMPLATE]) if files.has(TEMPLATE) else _default(config.get("chat_template"))
    if found is None:
        return None, []
    if len(found) > MAX_TEMPLATE:
        return None, [f"its chat template has {len(found)} characters, more than {MAX_TEMPLATE}, and is passed over"]
    if why := fault(found):
        return None, [f"its chat template is not valid jinja2 ({why}) and is passed over"]
    texts = {name: _text(config.get(name)) for name in TOKENS}
    tokens = {name: text for name, text in texts.items() if text is not None and len(text) <= MAX_TOKEN}
    return {"template": found, "tokens": tokens}, []


def _default(value: object) -> str | None:
    """The template, or the default one of several named templates."""
    if isinstance(value, list):
        named = [entry for entry in value if isinstance(entry, dict) and entry.get("name") == DEFAULT]
        value = named[0].get("template") if named else None
    return value if isinstance(value, str) else None


def _text(value: object) -> str | None:
    """A token's text, stored as a string or as the `content` of an object."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None
