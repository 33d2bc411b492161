"""The parts of a tokenizer.json that a graph may carry, for runtimes in all languages: runtimes/CONTRACT.md, "Text".

The library here takes more. But a graph that ran in Python alone would be no graph of the contract, so an export says
what is not in the table, and every runtime refuses it by its name.
"""

from __future__ import annotations

from typing import Any

from t2r_runtime.errors import UserError
from t2r_runtime.tokenizer_file import Part, parts_of

MAX_BYTES = 1 << 24  # of the text of a tokenizer.json
PARTS = {
    "model": ("BPE", "Unigram"),
    "normalizer": ("NFC", "NFD", "NFKC", "NFKD", "Strip", "Prepend", "Replace", "Precompiled"),
    "pre_tokenizer": ("ByteLevel", "Metaspace", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit"),
    "decoder": ("ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"),
    "post_processor": ("TemplateProcessing", "RobertaProcessing", "ByteLevel"),
}
NONE_OF = ("dropout", "continuing_subword_prefix", "end_of_word_suffix")  # what a BPE may not have
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
REGEXES = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    rf"{_WORDS}\p{{N}}{{1,3}}{_REST}",
    rf"{_WORDS}\p{{N}}{_REST}",
    "^ +| +$",
    " {2,}",
)


def unknown_parts(tokenizer: Any) -> list[str]:
    """What a tokenizers.Tokenizer has that is not in the table, each by its name; none twice."""
    model = type(tokenizer.model).__name__
    found = [] if model in PARTS["model"] else [f"the model {model}"]
    found += [f"a {name} of the model" for name in NONE_OF if getattr(tokenizer.model, name, None)]
    for component, known in PARTS.items():
        for part in parts_of(getattr(tokenizer, component)) if component != "model" else ():
            if part.get("type") not in known:
                found.append(f"the {component} {part.get('type')}")
            elif (regex := _regex(part)) is not None and regex not in REGEXES:
                found.append(f"the {component} {part.get('type')} with the regular expression {regex}")
    return list(dict.fromkeys(found))


def require_size(text: str) -> None:
    """Refuse a tokenizer of more bytes than a runtime parses. Raises UserError."""
    if (size := len(text.encode(errors="replace"))) > MAX_BYTES:
        raise UserError(
            f"a tokenizer of at most {MAX_BYTES:,} bytes", f"{size:,}", "export with another tokenizer", "tokenizer"
        )


def require_known(tokenizer: Any) -> None:
    """Refuse a tokenizers.Tokenizer with parts that are not in the table. Raises UserError, which names them."""
    if unknown := unknown_parts(tokenizer):
        raise UserError(
            "a tokenizer of the parts that runtimes/CONTRACT.md lists",
            ", ".join(unknown),
            "encode elsewhere, and give token numbers",
            "tokenizer",
        )


def _regex(part: Part) -> str | None:
    pattern = part.get("pattern")
    found = pattern.get("Regex") if isinstance(pattern, dict) else None
    return found if isinstance(found, str) else None
