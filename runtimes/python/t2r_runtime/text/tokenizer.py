"""Text to tokens and back, with the tokenizer that travels inside the graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from t2r_runtime.checks import listed, require_kind
from t2r_runtime.contract.chat import render, require_chat_template
from t2r_runtime.contract.signature import Signature
from t2r_runtime.errors import UserError, printable
from t2r_runtime.text.tokenizer_file import Library
from t2r_runtime.text.tokenizer_parts import require_size

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what a decoder writes for bytes that are no character, or not yet one
MAX_UNFINISHED = 16  # characters: one has at most 4 bytes, so that a longer row of these will never be any
CONTEXT = 32  # tokens of a prompt that may matter for the text of the next one


class Tokenizer:
    """A tokenizer.

    Args:
        tokenizer: the text of a tokenizer.json.
        bos_token: stands in for an empty prompt; None if the model has none.
        chat_template: how messages become a text, as t2r_runtime.contract.chat has it; None if the model has none.
        any_parts: False refuses parts that runtimes/CONTRACT.md does not list.

    Raises:
        UserError: see t2r_runtime.text.tokenizer_file.Library.
    """

    def __init__(
        self,
        tokenizer: str,
        bos_token: int | None = None,
        chat_template: Mapping[str, Any] | None = None,
        any_parts: bool = True,
    ) -> None:
        self._library = Library(tokenizer, any_parts)
        require_kind(bos_token, (int, type(None)), "a token or None as bos_token", "tokenizer")
        self._bos = bos_token
        if chat_template is not None:
            require_chat_template(chat_template)
        self._chat = chat_template

    @classmethod
    def of(cls, signature: Signature) -> Tokenizer:
        """The tokenizer in a graph's metadata.

        Raises:
            UserError: there is none, it is malformed, or has parts that runtimes/CONTRACT.md does not list.
        """
        require_kind(signature, Signature, "a graph's signature", "tokenizer")
        if signature.tokenizer is None:
            raise UserError(
                "a graph with a tokenizer in it",
                "one without",
                "give token numbers, or export with a tokenizer",
                "tokenizer",
            )
        return cls._in_graph(signature.tokenizer, signature.bos_token, signature.chat_template)

    @classmethod
    def of_source(cls, signature: Signature) -> Tokenizer:
        """The tokenizer of a translator's source, which is the target's where it has none of its own.

        Raises:
            UserError: as for `of`, and for the graph of a decoder alone.
        """
        require_kind(signature, Signature, "a graph's signature", "tokenizer")
        if signature.source is None:
            raise UserError("a translator", "the graph of a decoder alone", "use Tokenizer.of", "graph")
        own = signature.source.source_tokenizer
        return cls.of(signature) if own is None else cls._in_graph(own)

    @classmethod
    def _in_graph(
        cls, tokenizer: str, bos_token: int | None = None, chat_template: Mapping[str, Any] | None = None
    ) -> Tokenizer:
        """One that came with a graph: of parts that every runtime has."""
        require_size(tokenizer)
        return cls(tokenizer, bos_token, chat_template, any_parts=False)

    def chat(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """The text that a chat model goes on with after `messages`, by its own template.

        Encode it with `special_tokens=False`: the template has written them.

        Args:
            messages: `{"role": "user", "content": "…"}`, of plain JSON data, oldest first.
            add_generation_prompt: end where the model's answer begins.

        Raises:
            UserError: a model without a template, and see t2r_runtime.contract.chat.render.
        """
        if self._chat is None:
            raise UserError("a model with a chat template", "one without", "write the prompt yourself", "tokenizer")
        return render(self._chat, messages, add_generation_prompt)

    @property
    def end_of_turn(self) -> int | None:
        """The token that ends a turn by the template's own `eos_token`, beside those that the graph names; or None."""
        text = None if self._chat is None else self._chat["tokens"].get("eos_token")
        found = None if text is None else self._library.tokenizer.token_to_id(text)
        return None if found is None else int(found)

    def encode(self, text: str, special_tokens: bool = True) -> list[int]:
        """Token numbers, with the special tokens that the tokenizer itself puts around a text.

        An empty text is the BOS token.

        Args:
            special_tokens: False leaves out those around the text, which has its own: what `chat` gives.

        Raises:
            UserError: an empty text, and a model without a BOS token; or text that cannot be UTF-8.
        """
        _require_text(text)
        ids = self._library.encode(text, special_tokens)
        if not ids and self._bos is None:
            raise UserError(
                "a text", "an empty one", "give some: this model has no BOS token to start from", "tokenizer"
            )
        return ids or [int(self._bos or 0)]

    def encode_documents(self, texts: Sequence[str], special_tokens: bool = False) -> list[list[int]]:
        """Token numbers of each text, without special tokens around it: to train on, where a model sees no others.

        Args:
            special_tokens: put those around each that the tokenizer puts around a text: to translate from.

        Raises:
            UserError: text that cannot be UTF-8.
        """
        documents = listed(texts, "a list of texts", "tokenizer")
        for text in documents:
            _require_text(text)
        return [found.ids for found in self._library.encode_batch(documents, special_tokens)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, without special tokens."""
        return self._library.decode(ids)

    def stream(self, prompt: Iterable[int] = ()) -> StreamingDetokenizer:
        """Text of the tokens that follow `prompt`, as they come."""
        return StreamingDetokenizer(self, prompt)


class StreamingDetokenizer:
    """Turns tokens into text one by one, and never hands out half a character.

    A token's text depends on its neighbours: a space before it is dropped at the start of a text only, and a
    character's bytes can be spread over several tokens. So new tokens are decoded together with a few before them (the
    context, whose text is out already), and what is new is the difference. Characters that may still be waiting for
    their last bytes stay inside until the next token shows what they are.

    Args:
        tokenizer: of the model.
        prompt: what comes before; it is not handed out again.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Iterable[int] = ()) -> None:
        require_kind(tokenizer, Tokenizer, "a Tokenizer", "tokenizer")
        self._tokenizer = tokenizer
        self._pending: list[int] = []
        self._given = 0  # characters of the pending tokens' text that are out
        self._start_from(_tail(tokenizer, listed(prompt, "tokens as the prompt", "tokenizer")))

    def feed(self, token: int) -> str:
        """The text that `token` completes; "" if it completes none."""
        self._pending.append(token)
        new = self._new()
        whole = new.rstrip(UNFINISHED)
        if len(new) - len(whole) > MAX_UNFINISHED:
            whole = new
        fresh = whole[self._given :]
        self._given = max(self._given, len(whole))
        if new and whole == new:  # without text only special tokens came, and the context stays what it is
            self._start_from(self._pending)
        return fresh

    def end(self) -> str:
        """What was still waiting for the rest of a character. Call it once, after the last token."""
        fresh = self._new()[self._given :]
        self._start_from(self._pending or self._context)
        return fresh

    def _start_from(self, context: list[int]) -> None:
        self._context, self._before = context, self._tokenizer.decode(context)
        self._pending, self._given = [], 0

    def _new(self) -> str:
        """The text of the pending tokens."""
        both = self._tokenizer.decode(self._context + self._pending)
        if both.startswith(self._before):
            return both[len(self._before) :]
        # bytes that continue the context's last bytes and spoil them together: on their own they read right
        return self._tokenizer.decode(self._pending)


def _require_text(text: object) -> None:
    require_kind(text, str, "a text", "tokenizer")
    try:
        str(text).encode()
    except UnicodeEncodeError as error:  # what Python makes of an argument that is no UTF-8
        raise UserError("text in UTF-8", printable(error), "check how it was typed or decoded", "tokenizer") from error


def _tail(tokenizer: Tokenizer, prompt: list[int]) -> list[int]:
    """The end of a prompt, not beginning inside a character: its stray bytes would spoil those that follow them."""
    tail = prompt[-CONTEXT:]
    cuts = (tail[skipped:] for skipped in range(4))
    return next((cut for cut in cuts if not tokenizer.decode(cut).startswith(UNFINISHED)), tail)
