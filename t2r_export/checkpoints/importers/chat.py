"""The chat template of a Hugging Face folder, and the special tokens that it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from t2r_export.checkpoints.importers.files import SUBFOLDER, Folder
from t2r_export.checkpoints.importers.special import CONFIG, SpecialTokens
from t2r_export.checkpoints.weights import listed
from t2r_runtime.contract.chat import MAX_TEMPLATE, MAX_TOKEN, TOKENS, fault

TEMPLATE, ENDING = "chat_template.jinja", ".jinja"
LIMIT = 1 << 20  # bytes of a template's file
DEFAULT = "default"  # name of the chat template among several


def chat_template(files: Folder, special: SpecialTokens) -> tuple[dict[str, Any] | None, list[str]]:
    """The template as in the contract, and notes. Its own files override the tokenizer's config.

    A template that is larger than a graph may hold, or that is invalid in jinja2, is skipped with a note, and so are
    those beside the default one.

    Raises:
        UserError: a file that is damaged or too large.
    """
    found, others = _default(files, special.config.get("chat_template"))
    notes = [f"chat templates beside the default one are not read: {listed(others)}"] if others else []
    if found is None:
        return None, notes
    if len(found) > MAX_TEMPLATE:
        why = f"has {len(found)} characters, more than {MAX_TEMPLATE}"
        return None, [*notes, f"its chat template {why}, and is passed over"]
    why_not = fault(found)
    if why_not is not None:
        return None, [*notes, f"its chat template is not valid jinja2 ({why_not}) and is passed over"]
    tokens = {name: text for name, text in special.texts().items() if len(text) <= MAX_TOKEN}
    without = [name for name in TOKENS if name in found and name not in tokens]
    if without:
        notes.append(f"the chat template names {listed(without)}, which {CONFIG} does not have: its text is empty")
    return {"template": found, "tokens": tokens}, notes


def _default(files: Folder, value: object) -> tuple[str | None, list[str]]:
    """The default template, and the names of others.

    Args:
        value: chat_template of tokenizer_config.json: a template, or a list of named ones. Files replace all of them.
    """
    paths = {DEFAULT: TEMPLATE} if files.has(TEMPLATE) else {}
    paths |= {name.removesuffix(ENDING): f"{SUBFOLDER}/{name}" for name in files.names(SUBFOLDER, ENDING)}
    if paths:
        return files.text(paths[DEFAULT], LIMIT) if DEFAULT in paths else None, sorted(paths.keys() - {DEFAULT})
    entries = value if isinstance(value, list) else [{"name": DEFAULT, "template": value}]
    named = {str(one["name"]): one.get("template") for one in entries if isinstance(one, Mapping) and "name" in one}
    found = named.get(DEFAULT)
    return found if isinstance(found, str) else None, sorted(named.keys() - {DEFAULT})
