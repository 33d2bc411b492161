"""Generation settings of a folder, from the file that transformers 5.23 uses: generation_config.json if there is one,
else config.json. A null key counts as absent.

Settings that runtimes support become the model's special tokens and options (GenerationOptions). Other settings that
would change the text of transformers are noted by name. generation_keys.py has the tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from t2r_export.checkpoints.importers.base import Fields, spelt
from t2r_export.checkpoints.importers.generation_keys import (
    CHOICE,
    DECODERS,
    KEYS,
    NOTED,
    SAMPLED,
    SAMPLING_DEFAULTS,
    SEARCH,
    TRANSLATORS,
)
from t2r_export.config.generation import GenerationOptions
from t2r_export.config.model import ModelConfig
from t2r_runtime.contract.options import PENALTIES, is_generation
from t2r_runtime.errors import printable


def with_generation(config: ModelConfig, fields: Fields, own: Fields | None) -> tuple[dict[str, Any], list[str]]:
    """The generation settings of a model.

    Args:
        fields: config.json. own: generation_config.json, if there is one.

    Returns:
        Fields of `config`, and notes, a line each.

    Raises:
        UserError: invalid tokens.
    """
    return _Reader(config, fields, own).read()


class _Reader:
    """Reads one folder's settings for the model of `config`."""

    def __init__(self, config: ModelConfig, fields: Fields, own: Fields | None) -> None:
        data = fields.data if own is None else own.data
        self.config, self.fields = config, fields
        self.settings = Fields({key: value for key, value in data.items() if value is not None}, (own or fields).where)
        self.notes: list[str] = []
        self.translates = config.encoder is not None
        keys = ("bos_token_id", "eos_token_id", *(["decoder_start_token_id"] if self.translates else []))
        self.of_config = {key: [t for t in fields.tokens(key) if 0 <= t < config.vocab_size] for key in keys}
        if own is None and self.settings.data.get("force_bos_token_to_be_generated"):
            self.settings.data["forced_bos_token_id"] = self.settings.data.get("bos_token_id")

    def read(self) -> tuple[dict[str, Any], list[str]]:
        bos, ends = self._known("bos_token_id") or self.of_config["bos_token_id"], self._known("eos_token_id")
        if self.fields.data.get("eos_token_id") is not None and not self.settings.tokens("eos_token_id"):
            self.notes.append(f"{self.settings.where} names no eos_token_id, so no token ends a text")
        made: dict[str, Any] = {"bos_token": next(iter(bos), None), "eos_tokens": ends}
        options: dict[str, Any] = {}
        if self.translates:
            made, options = self._translator(made)
        elif self._states(CHOICE):
            options = self._decoder()
        options = dict(self._in_range(options))
        self._note()
        return {**made, "generation": GenerationOptions(**options) if options else None}, self.notes

    def _decoder(self) -> dict[str, Any]:
        """Options as transformers applies them: greedy without do_sample."""
        settings = self.settings.data
        if settings.get("do_sample") is not True:
            return {"temperature": ("temperature", 0), **self._penalties()}
        return {name: (key, settings.get(key, SAMPLING_DEFAULTS.get(name))) for name, key in KEYS.items()}

    def _translator(self, made: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Special tokens, and options: name → source key and value."""
        settings = self.settings.data
        start = self._known("decoder_start_token_id") or self._known("bos_token_id")
        start = start or (*self.of_config["decoder_start_token_id"], *self.of_config["bos_token_id"])
        if not start:
            raise self.fields.wrong("decoder_start_token_id", "a token", settings.get("decoder_start_token_id"))
        ends, forced, suppressed = made["eos_tokens"], *map(self._known, ("forced_bos_token_id", "suppress_tokens"))
        if forced[1:] or not {*ends, *suppressed}.isdisjoint(forced):  # a forced end would end every text
            self._not_carried("forced_bos_token_id")
            forced = ()
        last = self._known("forced_eos_token_id")
        if last and (last[0] not in ends or last[1:] or last[0] in suppressed):
            self._not_carried("forced_eos_token_id")
            last = ()
        if last:
            ends = (*last, *(token for token in ends if token not in last))  # the first end is forced
        tokens = {
            "eos_tokens": ends,
            "start_tokens": (*start[:1], *forced),
            "banned_tokens": tuple(sorted({*suppressed, *self._bad_words(ends)})),
        }
        options: dict[str, Any] = {} if last or not ends else {"forced_end": ("forced_eos_token_id", False)}
        if self._states(CHOICE | SEARCH):
            options |= {"forced_end": ("forced_eos_token_id", bool(last)), **self._lengths(len(forced))}
            options["width"] = ("num_beams", settings.get("num_beams", 1))
            options |= {name: (name, settings.get(name)) for name in ("length_penalty", "early_stopping")}
            options |= self._penalties()
        return {**made, **tokens}, options

    def _lengths(self, forced: int) -> dict[str, Any]:
        """transformers' max_length and min_length count the start token, max_new_tokens and min_new_tokens do not."""
        settings, found = self.settings.data, {}
        for name, new, whole in (
            ("max_tokens", "max_new_tokens", "max_length"),
            ("min_tokens", "min_new_tokens", "min_length"),
        ):
            key = new if new in settings else whole
            value = settings.get(key)
            if type(value) is int and key == whole:
                value -= 1 if name == "max_tokens" or value else 0
            found[name] = (key, value)
        key, most = found["max_tokens"]
        if type(most) is int and most <= forced:
            self._not_carried(key)
            del found["max_tokens"]
        return found

    def _penalties(self) -> dict[str, Any]:
        return {name: (KEYS[name], self.settings.data.get(KEYS[name])) for name in PENALTIES}

    def _in_range(self, options: Mapping[str, tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """The options that runtimes support; others are noted."""
        for name, (key, value) in options.items():
            if value is not None and is_generation({name: value}, self.translates):
                yield name, value
            elif value is not None:
                self._not_carried(key)

    def _note(self) -> None:
        """Add a note per key that runtimes lack."""
        settings = self.settings.data
        lacking = {**NOTED, **(TRANSLATORS if self.translates else DECODERS)}
        for key, neutral in sorted(lacking.items()):
            acts = settings.get("do_sample") is True or key not in SAMPLED
            if key in settings and acts and settings[key] not in neutral:
                self._not_carried(key)

    def _not_carried(self, key: str) -> None:
        value = printable(spelt(self.settings.data.get(key)), 60)
        self.notes.append(
            f"{key} {value} in {self.settings.where} changes the text of transformers, and is not carried"
        )

    def _states(self, keys: frozenset[str]) -> bool:
        """Whether the folder sets any of these keys."""
        return not keys.isdisjoint(self.settings.data)

    def _known(self, key: str) -> tuple[int, ...]:
        """Tokens of a key; tokens outside the vocabulary are skipped with a note."""
        tokens = self.settings.tokens(key)
        if self._outside(key):
            size = self.config.vocab_size
            note = f"{key} in {self.settings.where} is not among the {size} tokens and is passed over"
            self.notes += [] if note in self.notes else [note]
        return tuple(token for token in tokens if 0 <= token < self.config.vocab_size)

    def _outside(self, key: str) -> bool:
        return not all(0 <= token < self.config.vocab_size for token in self.settings.tokens(key))

    def _bad_words(self, ends: tuple[int, ...]) -> list[int]:
        """Banned tokens, except end tokens. Longer words are skipped with a note."""
        words = self.settings.get("bad_words_ids", [])
        if not isinstance(words, list) or not all(isinstance(word, list) for word in words):
            raise self.settings.wrong("bad_words_ids", "a list of lists of tokens", words)
        single = [word[0] for word in words if len(word) == 1]
        banned = [token for token in single if type(token) is int and 0 <= token < self.config.vocab_size]
        if more := len(words) - len(banned):
            where = self.settings.where
            self.notes.append(f"{more} of bad_words_ids in {where} are not one token of the model and are passed over")
        return [token for token in banned if token not in ends]
