"""Special and added tokens of a folder, from the files in which the versions of transformers store them.

As AutoTokenizer of transformers 5.23: an `added_tokens_decoder` in tokenizer_config.json replaces the two older files;
without one, special_tokens_map.json overrides tokenizer_config.json, and added_tokens.json is below tokenizer.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from t2r_export.checkpoints.importers.files import DOWNLOAD, Folder
from t2r_runtime.contract.chat import TOKENS
from t2r_runtime.errors import UserError, shown
from t2r_runtime.text.tokenizer_file import Library, no_panic

CONFIG, SPECIAL, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
LIMIT = 1 << 23  # bytes of each
DECODER, EXTRA, OLDER_EXTRA = "added_tokens_decoder", "extra_special_tokens", "additional_special_tokens"
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
Token = dict[str, Any]  # "content", and the flags that are stored


class SpecialTokens:
    """The tokens of a folder's tokenizer_config.json, special_tokens_map.json and added_tokens.json."""

    def __init__(self, files: Folder) -> None:
        """Raises UserError for a damaged file, and for tokens without a text."""
        self.config = files.object(CONFIG, LIMIT) if files.has(CONFIG) else {}
        self.where = str(files.folder)
        older = DECODER not in self.config
        self._map = files.object(SPECIAL, LIMIT) if older and files.has(SPECIAL) else {}
        added = files.object(ADDED, LIMIT) if older and files.has(ADDED) else {}
        stored = {self._number(number): text for text, number in added.items()} if older else self.config[DECODER]
        if not isinstance(stored, dict):
            raise UserError(f"an object as {DECODER} in {self.where}", shown(stored), DOWNLOAD)
        self._added = {self._number(number): self._token(value) for number, value in stored.items()}
        self.named = dict(self._named())

    def texts(self) -> dict[str, str]:
        """The texts of the special tokens that chat templates may use, by name."""
        return {name: self.named[name]["content"] for name in TOKENS if name in self.named}

    def added_to(self, tokenizer: str, data: dict[str, Any]) -> str | None:
        """A tokenizer.json with the folder's added tokens, numbered as AutoTokenizer does; None: it has all of them.

        Args:
            tokenizer, data: a tokenizer.json that was tried, as text and parsed.

        Raises:
            UserError: tokens that the library rejects.
        """
        own = data.get("added_tokens") or []
        held = {token["content"]: _flags(token) for token in own}
        wanted = list(self._wanted(own))
        if all(_flags(token) == held.get(token["content"]) for token in wanted):
            return None
        from tokenizers import AddedToken

        library = Library(tokenizer).tokenizer
        with no_panic(f"added tokens that the tokenizer of {self.where} accepts"):
            library.add_tokens([AddedToken(token["content"], **_flags(token)) for token in wanted])
            added = json.loads(library.to_str())["added_tokens"]
        return json.dumps({**data, "added_tokens": added}, ensure_ascii=False)

    def _wanted(self, own: list[Any]) -> Iterator[Token]:
        """The tokens that AutoTokenizer adds to those of tokenizer.json, in its order."""
        special, added = {token["content"] for token in self.named.values()}, dict(self._added)
        if DECODER not in self.config:
            listed = [*(token for name, token in self.named.items() if name in TOKENS), *self._extra(late=False)]
            contents = {token["content"] for token in listed}
            for number, token in added.items():
                known = token["content"] in contents
                added[number] = {**token, "special": known, "normalized": not known}
            added |= {token["id"]: token for token in own}
        held = {token["content"] for token in own}
        for _, token in sorted(added.items()):
            yield {**token, "special": token.get("special", False) or token["content"] in special}
            held.add(token["content"])
        further: list[Token] = []
        for token in (*self.named.values(), *self._extra()):
            if token["content"] not in held and token not in further:
                further.append(token)
        yield from further

    def _named(self) -> Iterator[tuple[str, Token]]:
        """Named special tokens: those of every tokenizer first."""
        extra = [place[EXTRA] for place in (self.config, self._map) if isinstance(place.get(EXTRA), dict)]
        own = {name: value for named in extra for name, value in named.items()}
        config = {**self.config, **self._map, **own}
        names = [name for name in config if name.endswith("_token") or name in own]
        for name in sorted(names, key=lambda name: TOKENS.index(name) if name in TOKENS else len(TOKENS)):
            value = config[name]
            if isinstance(value, str) or (isinstance(value, dict) and isinstance(value.get("content"), str)):
                yield name, {**self._token(value), "special": True}

    def _extra(self, late: bool = True) -> list[Token]:
        """Further special tokens, without names. Args: late: also those that are read after added_tokens.json."""
        config, over = self.config, self._map
        config = {key: value for key, value in config.items() if key != EXTRA or not isinstance(value, dict)}
        given = config.get(EXTRA) or config.get(OLDER_EXTRA)
        named = {EXTRA, OLDER_EXTRA} & config.keys() or EXTRA in over
        lists = [given, over.get(EXTRA)] if named else [over.get(OLDER_EXTRA) if late else None]
        return [{"special": True, **self._token(value)} for one in lists if isinstance(one, list) for value in one]

    def _token(self, value: Any) -> Token:
        token = {"content": value} if isinstance(value, str) else value
        known = isinstance(token, dict) and isinstance(token.get("content"), str)
        if not known or not all(isinstance(token.get(flag, False), bool) for flag in FLAGS):
            raise UserError(
                f"tokens with a text and flags in the tokenizer's files of {self.where}", shown(value), DOWNLOAD
            )
        return {name: token[name] for name in ("content", *FLAGS) if name in token}

    def _number(self, value: Any) -> int:
        if isinstance(value, bool) or not str(value).isdecimal() or len(str(value)) > 10:
            raise UserError(f"numbers of tokens in the tokenizer's files of {self.where}", shown(value), DOWNLOAD)
        return int(value)


def _flags(token: Token) -> dict[str, bool]:
    """All flags of a token; by default special ones are not normalized, and others are."""
    special = bool(token.get("special", False))
    return {**dict.fromkeys(FLAGS, False), "normalized": not special, **{k: token[k] for k in FLAGS if k in token}}
