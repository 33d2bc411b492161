"""Components of a tokenizer.json that all runtimes support: runtimes/contract/text.md.

The Python library supports more. An export reports unsupported components, and every runtime rejects them by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from t2r_runtime.errors import UserError, printable
from t2r_runtime.text.patterns import linear

Data = dict[str, Any]
Part = dict[str, Any]
FORM = "the text of a tokenizer.json"
DO = "use the tokenizer that the model was trained with"
MAX_PARTS = 64  # per kind of component, including Sequences
LISTS = {  # field of a Sequence
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "decoder": "decoders",
    "post_processor": "processors",
}
MAX_BYTES = 1 << 25  # of a tokenizer.json
PARTS = {
    "model": ("BPE", "Unigram"),
    "normalizer": ("NFC", "NFD", "NFKC", "NFKD", "Strip", "Prepend", "Replace", "Precompiled"),
    "pre_tokenizer": ("ByteLevel", "Metaspace", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit"),
    "decoder": ("ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"),
    "post_processor": ("TemplateProcessing", "RobertaProcessing", "ByteLevel"),
}
NONE_OF = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")  # unsupported fields of BPE


def field(data: Any, name: str, kind: Any, default: Any = None) -> Any:
    """A field of a JSON object. Raises UserError if it is missing, null or of another type."""
    found = data.get(name) if isinstance(data, Mapping) else None
    found = default if found is None else found
    if not isinstance(found, kind) or isinstance(found, bool):
        raise UserError(FORM, f"{printable(repr(found), 40)} as its {name}", DO, "tokenizer")
    return found


def parts_of(data: Data, component: str) -> list[Part]:
    """The parts of a component in order, with Sequences flattened.

    Raises:
        UserError: too many parts, or one without a type, which the library would guess.
    """
    if data.get(component) is None:
        return []
    waiting, found, count = [data[component]], list[Part](), 1
    while waiting:
        part = waiting.pop()
        if field(part, "type", str) == "Sequence":
            inner = field(part, LISTS[component], list)
            count += len(inner)
            waiting.extend(reversed(inner))
        else:
            found.append(part)
        if count > MAX_PARTS:
            raise UserError(f"at most {MAX_PARTS} parts of a {component}", f"{count:,} or more", DO, "tokenizer")
    return found


def unknown_parts(data: Data) -> list[str]:
    """Names of unsupported components, without duplicates."""
    model = field(data, "model", dict)
    kind = model.get("type", "BPE" if "merges" in model else "without a type")
    found = [] if kind in PARTS["model"] else [f"the model {kind}"]
    found += [f"a {name} of the model" for name in NONE_OF if model.get(name)]
    for component, known in PARTS.items():
        for part in parts_of(data, component) if component != "model" else ():
            if part["type"] not in known:
                found.append(f"the {component} {part['type']}")
            elif (regex := regex_of(part)) is not None and (reason := unsupported(regex)):
                found.append(f"the {component} {part['type']} with {reason} in the regular expression {regex}")
    return list(dict.fromkeys(found))


def require_size(text: str) -> None:
    """Raise UserError if a tokenizer exceeds the size limit of runtimes."""
    if (size := len(text.encode(errors="replace"))) > MAX_BYTES:
        expected = f"a tokenizer of at most {MAX_BYTES:,} bytes"
        raise UserError(expected, f"{size:,}", "export with another tokenizer", "tokenizer")


def require_known(data: Data) -> None:
    """Raise UserError if a tokenizer.json has unsupported components."""
    if unknown := unknown_parts(data):
        expected = "a tokenizer with components that runtimes/contract/text.md lists"
        raise UserError(expected, ", ".join(unknown), "encode elsewhere, and pass token ids", "tokenizer")


def regex_of(part: Part) -> str | None:
    """The regular expression of a component, if it has one."""
    pattern = part.get("pattern")
    found = pattern.get("Regex") if isinstance(pattern, dict) else None
    return found if isinstance(found, str) else None


def unsupported(regex: str) -> str:
    """Why runtimes do not support a regular expression; "" if they do."""
    try:
        linear(regex)
    except ValueError as error:
        return str(error)
    return ""
