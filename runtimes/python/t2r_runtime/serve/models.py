"""The graphs that are served, and the limits of requests."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from t2r_runtime.contract.signature import Signature
from t2r_runtime.errors import UserError, did_you_mean, printable
from t2r_runtime.serve.access import Access
from t2r_runtime.serve.encoders import Encoders
from t2r_runtime.serve.engine import Engine
from t2r_runtime.serve.errors import ApiError
from t2r_runtime.serve.fields import shown
from t2r_runtime.serve.grammars import Grammars
from t2r_runtime.serve.log import Log
from t2r_runtime.serve.metrics import Metrics
from t2r_runtime.serve.prefixes import Prefixes
from t2r_runtime.serve.tools.base import Format
from t2r_runtime.serve.translations import Translations
from t2r_runtime.text.tokenizer import Tokenizer

MAX_BODY = 4 << 20  # bytes
BODY_SECONDS = 20.0  # time limit for receiving a body
MAX_CHOICES = 128  # of one request
MAX_PROMPT = 1 << 18  # tokens of all prompts of one request


@dataclass(frozen=True)
class Limits:
    """Limits of requests.

    Args:
        rows: texts side by side, per model.
        queue: waiting texts, per model.
        max_tokens: new tokens per text.
        seconds: time per request.
    """

    rows: int = 64
    queue: int = 256
    max_tokens: int = 4096
    seconds: float = 600.0


@dataclass(frozen=True)
class Model:
    """A graph: of a decoder, with an engine, or of a translator, with translations; maybe with an adapter."""

    name: str
    signature: Signature
    tokenizer: Tokenizer | None  # for prompts and sources
    key: bytes = b""  # what its states depend on besides tokens
    engine: Engine | None = None
    translations: Translations | None = None
    grammars: Grammars | None = None  # of a decoder with a tokenizer
    written: Tokenizer | None = None  # for a translator's output
    tool_format: Format | None = None  # of the calls that a chat model writes
    adapter: str | None = None  # of its texts
    created: int = field(default_factory=lambda: int(time.time()))

    def decoder(self) -> Engine:
        """The engine. Raises ApiError for a translator."""
        if self.engine is None:
            raise ApiError(400, f"expected a language model; received {self.name}, a translator; use /v1/translate")
        return self.engine

    def translator(self) -> Translations:
        """The translations. Raises ApiError for a language model."""
        if self.translations is None:
            raise ApiError(400, f"expected a translator; received {self.name}, a language model; use /v1/completions")
        return self.translations

    @property
    def most_tokens(self) -> int | None:
        """Maximum number of tokens of a prompt or a source; None if a prompt may have any number."""
        return self.signature.reach if self.translations is None else self.translations.translator.most_source

    @property
    def ends(self) -> list[int]:
        """Tokens that end a text or a message."""
        turn = None if self.tokenizer is None else self.tokenizer.end_of_turn
        return [*self.signature.eos_tokens, *([] if turn is None else [turn])]

    def target(self) -> Tokenizer:
        """The tokenizer of a translator's output."""
        assert self.written is not None
        return self.written

    def text(self) -> Tokenizer:
        """The tokenizer. Raises ApiError if there is none."""
        if self.tokenizer is None:
            message = f"expected a model with a tokenizer; received {self.name}; pass token ids"
            raise ApiError(400, message, code="tokenizer")
        return self.tokenizer


@dataclass(frozen=True)
class Served:
    """The shared data of all endpoints."""

    models: dict[str, Model]
    prefixes: Prefixes
    metrics: Metrics
    limits: Limits
    encoders: Encoders
    access: Access
    log: Log

    def model(self, name: str | None) -> Model:
        """The model of a request, which may omit the name if there is only one, adapters aside.

        Raises:
            ApiError: an unknown name, or several models.
        """
        whole = [model for model in self.models.values() if model.adapter is None]
        if name is None and len(whole) == 1:
            return whole[0]
        found = self.models.get(name or "")
        if found is None:
            do = did_you_mean(name, self.models, f"use one of {', '.join(self.models)}")
            received = "none" if name is None else shown(name)
            message = printable(f"expected a model of this server; received {received}; {do}", 600)
            raise ApiError(404, message, "model", "model_not_found")
        return found


def name_of(graph: str, adapter: str | None) -> str:
    """The name of a graph with an adapter, GRAPH:ADAPTER."""
    return graph if adapter is None else f"{graph}:{adapter}"


def names_of(graphs: Sequence[Path]) -> list[str]:
    """A name for each graph, its file without the suffix. Raises UserError if two are equal."""
    names = [graph.stem for graph in graphs]
    for name in names:
        if names.count(name) > 1:
            raise UserError("graphs of different file names", f"two named {name}", "rename one", "file")
    return names
