"""/tokenize, /detokenize and /tokenizer_info, which lm-eval uses in place of a local tokenizer."""

from __future__ import annotations

from typing import Any

from t2r_runtime.serve.errors import wrong
from t2r_runtime.serve.fields import Fields, shown
from t2r_runtime.serve.models import Model, Served
from t2r_runtime.serve.request_options import require_size


async def tokenize(served: Served, model: Model, fields: Fields) -> dict[str, Any]:
    """The tokens of a text. Raises ApiError."""
    text = fields.text("content", fields.text("prompt"))
    special = fields.flag("add_special_tokens", True)
    fields.end()
    if text is None:
        raise wrong("a text as prompt", "none", "pass one", "prompt")
    tokenizer = model.text()
    [ids] = await served.encoders.each(
        lambda text: tokenizer.encode_documents([text], special)[0], [text], None, "prompt"
    )
    return {"tokens": ids, "count": len(ids), "max_model_len": model.signature.reach}


async def detokenize(served: Served, model: Model, fields: Fields) -> dict[str, Any]:
    """The text of tokens. Raises ApiError."""
    ids = fields.take("tokens")
    fields.end()
    most = model.signature.vocab_size if model.engine is not None else 1 << 31
    if isinstance(ids, list):
        require_size(len(ids), "tokens")
    if not isinstance(ids, list) or not all(type(token) is int and 0 <= token < most for token in ids):
        raise wrong(f"a list of tokens in 0 … {most - 1}, as tokens", shown(ids), "correct it", "tokens")
    tokenizer = model.text()
    text = await served.encoders.run(len(ids), lambda: tokenizer.decode(ids))
    return {"prompt": text, "content": text}


def about(model: Model) -> dict[str, Any]:
    """Describe the tokenizer and the chat template. Raises ApiError."""
    tokenizer, signature = model.text(), model.signature
    bos, ends = signature.bos_token, signature.eos_tokens
    chat = signature.chat_template
    return {
        "tokenizer_class": "t2r",
        "bos_token": None if bos is None else tokenizer.piece(bos),
        "eos_token": tokenizer.piece(ends[0]) if ends else None,
        "eot_token": None if tokenizer.end_of_turn is None else tokenizer.piece(tokenizer.end_of_turn),
        "chat_template": None if chat is None else chat["template"],
        "max_model_len": signature.reach,
        "vocab_size": signature.vocab_size,
    }
