"""Sample conversations from a chat model, of a checkpoint or an exported graph, by its chat template."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from t2r_export.checkpoints import checkpoint
from t2r_export.model.conversations import Read, Turns, sample_conversations
from t2r_export.model.device import choose_device
from t2r_export.model.sample import check_sizes
from t2r_export.model.transformer import Transformer
from t2r_export.paths import existing_model
from t2r_runtime import Decoder, Tokenizer
from t2r_runtime.errors import UserError

MESSAGES = ("first-question", "first-answer", "second-question", "second-answer")  # found again in the rendered text


@dataclass(frozen=True)
class ChatModel:
    """A model that writes conversations."""

    turns: Turns
    start: Callable[[int], Read]  # see sample_conversations
    reach: int | None  # the last position
    notes: tuple[str, ...] = ()

    def sample(
        self, count: int, length: int, temperature: float, seed: int, on_progress: Callable[[int], object]
    ) -> tuple[npt.NDArray[np.int32], int]:
        """As `sample_conversations`. Raises UserError also for a length beyond the last position."""
        check_sizes(count, length, self.reach, temperature)
        return sample_conversations(self.start, self.turns, count, length, temperature, seed, on_progress)


def open_chat_model(model: Path | Decoder) -> ChatModel:
    """Open a checkpoint, or take an opened graph, to sample conversations from.

    Raises:
        UserError: a model that cannot be read, or has no tokenizer or no fitting chat template.
    """
    if isinstance(model, Decoder):
        model.signature.require_tokens()
        turns = chat_turns(Tokenizer.of(model.signature), model.signature.eos_tokens)
        return ChatModel(turns, lambda batch: _by_graph(model, batch), model.signature.reach)
    loaded = checkpoint.load(existing_model(model))
    loaded.model.require_decoder("to sample conversations from", "pass it sources to translate")
    if loaded.tokenizer is None:
        raise UserError("a model with a tokenizer", "one without", "sample without --chats")
    turns = chat_turns(Tokenizer(loaded.tokenizer, chat_template=loaded.chat_template), loaded.config.eos_tokens)
    found = loaded.model.to(choose_device("auto"))
    return ChatModel(turns, lambda batch: _eagerly(found, batch), found.reach, loaded.warnings)


def _by_graph(decoder: Decoder, batch: int) -> Read:
    decoder.reset(batch)
    return lambda ids: torch.from_numpy(decoder.step(ids.numpy()))


def _eagerly(model: Transformer, batch: int) -> Read:
    states, device = model.init_state(batch), model.embedding.weight.device

    def read(ids: Tensor) -> Tensor:
        nonlocal states
        logits, states = model.step(ids.to(device), states)
        return logits

    return read


def chat_turns(tokenizer: Tokenizer, ends: Iterable[int]) -> Turns:
    """Find the tokens that the chat template puts before and between the messages of a conversation.

    Args:
        ends: tokens that end a text, and so a message too.

    Raises:
        UserError: no chat template, one that rejects or changes messages, or one that ends messages without a special
            token, so that the end of a sampled message cannot be seen.
    """
    roles = ("user", "assistant", "user", "assistant")
    chat = [{"role": role, "content": text} for role, text in zip(roles, MESSAGES, strict=True)]
    rest, parts = tokenizer.chat(chat, add_generation_prompt=False), []
    for message in MESSAGES:
        part, found, rest = rest.partition(message)
        if not found:
            raise UserError("a chat template that keeps messages", "another", "sample without --chats")
        parts.append(tuple(tokenizer.encode(part, special_tokens=False)) if part else ())
    opening, after_user, after_answer, _ = parts
    special = frozenset(tokenizer.special_tokens)
    if not opening or any(not part or part[0] not in special for part in (after_user, after_answer)):
        expected = "a chat template with a special token after every message"
        raise UserError(expected, "one without", "sample without --chats")
    return Turns(opening, (after_user, after_answer), frozenset(ends), special)
