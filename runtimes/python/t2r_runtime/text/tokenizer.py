"""The tokenizer stored in a graph."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from t2r_runtime.checks import listed, require_kind
from t2r_runtime.contract.chat import render, require_chat_template
from t2r_runtime.contract.signature import Signature
from t2r_runtime.errors import UserError
from t2r_runtime.text.token_bytes import byte_piece
from t2r_runtime.text.tokenizer_file import Library
from t2r_runtime.text.tokenizer_parts import require_size

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # decoded from incomplete or invalid UTF-8
MAX_UNFINISHED = 16  # a character has at most 4 bytes, so longer runs are invalid
CONTEXT = 32  # tokens that may affect the text of the next


class Tokenizer:
    """Converts text to tokens and back.

    Args:
        tokenizer: text of a tokenizer.json.
        bos_token: replaces an empty prompt, if given.
        chat_template: see t2r_runtime.contract.chat.is_chat_template.
        any_parts: False rejects components that runtimes/contract/text.md does not list.

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
        require_kind(any_parts, bool, "true or false as any_parts", "tokenizer")
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
            UserError: no tokenizer, a malformed one, or components that runtimes/contract/text.md does not list.
        """
        require_kind(signature, Signature, "a graph's signature", "tokenizer")
        if signature.tokenizer is None:
            do = "pass token ids, or export with a tokenizer"
            raise UserError("a graph with a tokenizer", "one without", do, "tokenizer")
        return cls._in_graph(signature.tokenizer, signature.bos_token, signature.chat_template)

    @classmethod
    def of_source(cls, signature: Signature) -> Tokenizer:
        """The tokenizer of a translator's source, by default that of the target.

        Raises:
            UserError: as for `of`, or the graph is not a translator's.
        """
        require_kind(signature, Signature, "a graph's signature", "tokenizer")
        if signature.source is None:
            raise UserError("a translator", "the graph of a decoder", "use Tokenizer.of", "graph")
        own = signature.source.source_tokenizer
        return cls.of(signature) if own is None else cls._in_graph(own)

    @classmethod
    def _in_graph(
        cls, tokenizer: str, bos_token: int | None = None, chat_template: Mapping[str, Any] | None = None
    ) -> Tokenizer:
        """A tokenizer of a graph, which may have only the components that every runtime supports."""
        require_size(tokenizer)
        return cls(tokenizer, bos_token, chat_template, any_parts=False)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Render messages with the model's chat template.

        Encode the text with `special_tokens=False`, as the template adds them.

        Args:
            messages: dicts such as `{"role": "user", "content": "…"}` of plain JSON data, oldest first.
            add_generation_prompt: append the prefix of the model's answer.
            tools: functions that the model may call, as in OpenAI's API.

        Raises:
            UserError: no chat template; see also t2r_runtime.contract.chat.render.
        """
        return render(self.require_chat_template(), messages, add_generation_prompt, tools)

    def require_chat_template(self) -> Mapping[str, Any]:
        """The chat template. Raises UserError: none."""
        if self._chat is None:
            raise UserError("a model with a chat template", "one without", "write the prompt yourself", "tokenizer")
        return self._chat

    @property
    def end_of_turn(self) -> int | None:
        """The `eos_token` of the chat template, which ends a turn besides the graph's eos_tokens, if there is one."""
        text = None if self._chat is None else self._chat["tokens"].get("eos_token")
        found = None if text is None else self._library.tokenizer.token_to_id(text)
        return None if found is None else int(found)

    def encode(self, text: str, special_tokens: bool = True) -> list[int]:
        """Encode a text to token ids; an empty text becomes the BOS token.

        Args:
            special_tokens: add the tokenizer's special tokens; False for the output of `chat`.

        Raises:
            UserError: an empty text for a model without a BOS token, or lone surrogates.
        """
        _require_text(text)
        ids = self._library.encode(text, special_tokens)
        if not ids and self._bos is None:
            do = "pass some text: this model has no BOS token"
            raise UserError("a text", "an empty one", do, "tokenizer")
        return ids or [int(self._bos or 0)]

    def encode_documents(self, texts: Sequence[str], special_tokens: bool = False) -> list[list[int]]:
        """Encode several texts to token ids.

        Args:
            special_tokens: add the tokenizer's special tokens to each text.

        Raises:
            UserError: a text with lone surrogates.
        """
        documents = listed(texts, "a list of texts", "tokenizer")
        for text in documents:
            _require_text(text)
        return [found.ids for found in self._library.encode_batch(documents, special_tokens)]

    def places(self, text: str) -> list[int]:
        """Start of each token of `encode(text)` in the text, in characters; a token without text starts with the next.

        Raises:
            UserError: lone surrogates.
        """
        _require_text(text)
        [found] = self._library.encode_batch([text], True, places=True)
        places, end = [], 0
        for first, last in found.offsets:  # (0, 0) for a token without text; some begin after the token's space
            places.append(min(first, end) if last else end)
            end = max(end, last)
        return places or [0]

    def decode(self, ids: Sequence[int]) -> str:
        """Decode token ids to text, without special tokens."""
        return self._library.decode(ids)

    def piece(self, token: int) -> str:
        """The vocabulary's piece of a token, as it is written in the tokenizer's file; "" for an unknown token."""
        require_kind(token, numbers.Integral, "an integer as token", "tokenizer")
        known = 0 <= token < 1 << 32  # range of the library's ids
        return str((self._library.tokenizer.id_to_token(int(token)) if known else None) or "")

    def token_text(self, token: int) -> str:
        """The text that a token adds to others; its piece if it has none, or only a part of a character."""
        alone, twice = self.decode([token]), self.decode([token, token])  # a text's first token may lose its space
        text = twice[len(alone) :] if twice.startswith(alone) else alone
        return text if text and UNFINISHED not in text else self.piece(token)

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token adds to others: those of its `token_text`, or the part of a character."""
        found = byte_piece(self.piece(token), self._library.decoders)
        return self.token_text(token).encode() if found is None else found

    @property
    def special_tokens(self) -> list[int]:
        """The tokens without text, which `decode` leaves out."""
        added = self._library.tokenizer.get_added_tokens_decoder()
        return [int(token) for token, about in added.items() if about.special]

    def stream(self, prompt: Iterable[int] = ()) -> StreamingDetokenizer:
        """A StreamingDetokenizer for the tokens after `prompt`."""
        return StreamingDetokenizer(self, prompt)


class StreamingDetokenizer:
    """Decodes a stream of tokens to text, without splitting characters.

    The text of a token depends on its neighbours: a leading space is dropped at the start of a text only, and the bytes
    of a character may be spread over several tokens. So new tokens are decoded together with a few earlier ones, the
    context, whose text is removed from the result. Incomplete characters are held back.

    Args:
        tokenizer: the model's tokenizer.
        prompt: tokens before the stream, whose text is not returned.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Iterable[int] = ()) -> None:
        require_kind(tokenizer, Tokenizer, "a Tokenizer", "tokenizer")
        self._tokenizer = tokenizer
        self._pending: list[int] = []
        self._given = 0  # returned characters of the pending tokens
        self._start_from(_tail(tokenizer, listed(prompt, "tokens as the prompt", "tokenizer")))

    def feed(self, token: int) -> str:
        """Add a token; returns the text that it completes, which may be empty."""
        self._pending.append(token)
        new = self._new()
        whole = new.rstrip(UNFINISHED)
        if len(new) - len(whole) > MAX_UNFINISHED:
            whole = new
        fresh = whole[self._given :]
        self._given = max(self._given, len(whole))
        if new and whole == new:  # keep the context after tokens without text
            self._start_from(self._pending)
        elif len(self._pending) > CONTEXT:
            self._shorten(new[self._given :])
        return fresh

    def end(self) -> str:
        """Return the text held back. Call it once, after the last token."""
        fresh = self._new()[self._given :]
        self._start_from(self._pending or self._context)
        return fresh

    def _shorten(self, held: str) -> None:
        """Bound the pending tokens, which are many if tokens have no text, or all of them end within a character."""
        text = self._tokenizer.decode(self._pending)
        if text and text.endswith(held):
            self._start_from(self._pending)
            self._before = text[: len(text) - len(held)]
        else:  # the last token has no text, and none of the others has any that could be the context
            self._pending.pop()

    def _start_from(self, context: list[int]) -> None:
        self._context, self._before = context, self._tokenizer.decode(context)
        self._pending, self._given = [], 0

    def _new(self) -> str:
        """The text of the pending tokens."""
        both = self._tokenizer.decode(self._context + self._pending)
        if both.startswith(self._before):
            return both[len(self._before) :]
        # invalid bytes at the end of the context change its text; the pending tokens decode correctly alone
        return self._tokenizer.decode(self._pending)


def _require_text(text: object) -> None:
    require_kind(text, str, "a text", "tokenizer")
    try:
        str(text).encode()
    except UnicodeEncodeError as error:
        # Python decodes bytes of the command line that are not UTF-8 to these surrogates
        undecoded = "\udc80" <= error.object[error.start] <= "\udcff"
        received = f"{'bytes that are not UTF-8' if undecoded else 'a lone surrogate'} at character {error.start + 1}"
        raise UserError("text in UTF-8", received, "check how it was typed or decoded", "tokenizer") from error


def _tail(tokenizer: Tokenizer, prompt: list[int]) -> list[int]:
    """The last tokens of a prompt, starting at a character boundary."""
    tail = prompt[-CONTEXT:]
    cuts = (tail[skipped:] for skipped in range(4))
    return next((cut for cut in cuts if not tokenizer.decode(cut).startswith(UNFINISHED)), tail)
