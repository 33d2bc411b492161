"""Runners: one class per engine, created inside the measured process.

A runner imports only its own library. Runners read random prompts and decode greedily; choosing the token is part of a
step. They can return to where they were placed, so every turn is measured at the same length.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

CHUNK = 512  # tokens that torch reads at once
FEW = 5  # tokens read before states are scaled
START_PROMPT, START_TOKENS = 16, 64  # of a process that `start` measures


def scaled(states: Mapping[str, NDArray[Any]], read: int, context: int) -> dict[str, NDArray[Any]]:
    """States after `read` tokens scaled to the size expected after `context` tokens: S and z are sums over tokens.

    Reaches position 100,000 without reading it. Gated sums would be smaller, at the same speed. Wide integers are
    positions, those of 8 bits are keys and values of a window, all of whose rows are read in any case.
    """
    return {
        name: value * np.float32(context / read)
        if value.dtype.kind == "f"
        else np.full_like(value, context)
        if value.dtype.itemsize > 1
        else value
        for name, value in states.items()
    }


class Runner(Protocol):
    """Interface of the runners."""

    def place(self, context: int) -> None:
        """Set the state to that after `context` random tokens."""

    def back(self) -> None:
        """Return to the state set by `place`."""

    def token(self) -> int:
        """Read the last token; choose and return the next one."""

    def read(self, tokens: int) -> None:
        """Read a random prompt from the initial state, up to its logits."""

    def go_on(self, tokens: int) -> int:
        """Read random tokens from the current state, as a chat message, and choose the next one."""


def random_ids(count: int, vocabulary: int) -> NDArray[np.int64]:
    """Random token ids from 3; lower ones may be special."""
    return np.random.default_rng(0).integers(3, vocabulary, count)


class T2R:
    """A t2r graph in t2r_runtime."""

    def __init__(self, path: Path, threads: int, capacity: int, options: dict[str, Any]) -> None:
        from t2r_runtime import Decoder
        from t2r_runtime.session.tuning import PREFILL_FROM

        self._decoder = Decoder(path, options.get("provider", "cpu"), threads, prefill_from=PREFILL_FROM)
        self._batch = int(options.get("batch", 1))
        self._vocabulary = self._decoder.signature.vocab_size
        self._decoder.reset(self._batch)
        self._ids = random_ids(self._batch, self._vocabulary)

    def place(self, context: int) -> None:
        grows = any(spec.grows for spec in self._decoder.signature.states)
        few = context if grows else min(FEW, context)
        self.read(few)
        self._place = scaled(self._decoder.state(), few, context)
        self._context = context
        self.back()

    def back(self) -> None:
        self._decoder.set_state(self._place, self._context)

    def go_on(self, tokens: int) -> int:
        ids = self._prompt(tokens)
        if self._decoder.signature.top_k is None:
            self._ids = self._decoder.prefill(ids).argmax(-1)
        else:
            self._ids = self._decoder.top_k(ids)[1][:, 0]
        return int(self._ids[0])

    def token(self) -> int:
        if self._decoder.signature.top_k is None:
            self._ids = self._decoder.step(self._ids).argmax(-1)
        else:
            self._ids = self._decoder.top_k(self._ids[:, np.newaxis])[1][:, 0]
        return int(self._ids[0])

    def read(self, tokens: int) -> None:
        self._decoder.reset()
        self._decoder.prefill(self._prompt(tokens))

    def _prompt(self, tokens: int) -> NDArray[np.int64]:
        return random_ids(self._batch * tokens, self._vocabulary).reshape(self._batch, tokens)


class GenAI:
    """onnxruntime-genai: its own search chooses the token."""

    def __init__(self, path: Path, threads: int, capacity: int, options: dict[str, Any]) -> None:
        import onnxruntime_genai

        self._library, self._capacity = onnxruntime_genai, capacity
        config = onnxruntime_genai.Config(str(path))
        config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}))
        self._model = onnxruntime_genai.Model(config)
        self._vocabulary = int(options["vocabulary"])
        self._generator: Any = None

    def place(self, context: int) -> None:
        self.read(context)
        self._context = context

    def back(self) -> None:
        # after a rewind it needs a token to continue
        self._generator.rewind_to(self._context - 1)
        self._generator.append_tokens(self._last)

    def go_on(self, tokens: int) -> int:
        self._generator.append_tokens(random_ids(tokens, self._vocabulary).astype(np.int32))
        return self.token()

    def token(self) -> int:
        self._generator.generate_next_token()
        return int(self._generator.get_next_tokens()[0])

    def read(self, tokens: int) -> None:
        parameters = self._library.GeneratorParams(self._model)
        # min_length: random weights may choose the end token
        parameters.set_search_options(max_length=self._capacity, min_length=self._capacity, do_sample=False)
        self._generator = self._library.Generator(self._model, parameters)
        ids = random_ids(tokens, self._vocabulary).astype(np.int32)
        self._last = ids[-1:]
        self._generator.append_tokens(ids)


class LlamaCpp:
    """llama.cpp through llama-cpp-python; the token is chosen from its logits."""

    def __init__(self, path: Path, threads: int, capacity: int, options: dict[str, Any]) -> None:
        import llama_cpp

        self._library = llama_cpp
        self._llama = llama_cpp.Llama(
            str(path),
            n_ctx=capacity,
            n_threads=threads,
            n_threads_batch=threads,
            flash_attn=options.get("flash", "on") == "on",
            verbose=False,
        )
        self._vocabulary = self._llama.n_vocab()
        self._last = self._context = 0
        self._place: Any = None

    def place(self, context: int) -> None:
        self.read(context)
        self._context = context
        model = self._llama.model
        if self._library.llama_model_is_hybrid(model) or self._library.llama_model_is_recurrent(model):
            self._place = self._llama.save_state()  # its states cannot be truncated

    def back(self) -> None:
        if self._place is not None:
            self._llama.load_state(self._place)
        self._llama.n_tokens = self._context  # `eval` truncates the cache

    def go_on(self, tokens: int) -> int:
        *ids, self._last = random_ids(tokens, self._vocabulary).tolist()
        self._llama.eval([*ids, self._last])
        return self._chosen()

    def token(self) -> int:
        self._llama.eval([self._last])
        return self._chosen()

    def _chosen(self) -> int:
        pointer = self._library.llama_get_logits_ith(self._llama.ctx, -1)
        self._last = int(np.ctypeslib.as_array(pointer, (self._vocabulary,)).argmax())
        return self._last

    def read(self, tokens: int) -> None:
        self._llama.reset()
        ids = random_ids(tokens, self._vocabulary).tolist()
        self._llama.eval(ids)
        self._last = ids[-1]


class Torch:
    """The eager model, softmax with a growing cache or T2R; computes all logits of a prompt."""

    def __init__(self, path: Path, threads: int, capacity: int, options: dict[str, Any]) -> None:
        import torch

        from t2r_export.checkpoints import checkpoint

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self._torch = torch
        self._model = checkpoint.load(path).model
        self._states = self._place = self._model.init_state(1)
        self._last = torch.zeros(1, dtype=torch.int64)

    def place(self, context: int) -> None:
        grows = any(spec.grows for spec in self._model.state_spec())
        few = context if grows else min(FEW, context)
        self.read(few)
        if not grows:
            states = scaled({name: value.numpy() for name, value in self._states.items()}, few, context)
            self._states = {name: self._torch.from_numpy(value) for name, value in states.items()}
        self._place = self._states

    def back(self) -> None:
        self._states = self._place

    def token(self) -> int:
        logits, self._states = self._model.step(self._last, self._states)
        self._last = logits.argmax(-1)
        return int(self._last)

    def go_on(self, tokens: int) -> int:
        self._last = self._more(tokens)[:, -1].argmax(-1)
        return int(self._last)

    def read(self, tokens: int) -> None:
        self._states = self._model.init_state(1)
        self._more(tokens)

    def _more(self, tokens: int) -> Any:
        """Read random tokens; returns the logits of the last chunk."""
        ids = self._torch.from_numpy(random_ids(tokens, self._model.config.vocab_size))[None]
        for part in ids.split(CHUNK, dim=1):
            logits, self._states = self._model.prefill(part, self._states)
        self._last = ids[:, -1]
        return logits


RUNNERS: dict[str, type[Runner]] = {"t2r": T2R, "genai": GenAI, "llama.cpp": LlamaCpp, "torch": Torch}


def start(engine: str, path: str, threads: str, options: str) -> None:
    """Print when (time.perf_counter) this process has its first token, and its peak resident bytes after the last.

    Run this file alone for it (python -P), so that the process loads no other engine.
    """
    runner = RUNNERS[engine](Path(path), int(threads), START_PROMPT + START_TOKENS, json.loads(options))  # type: ignore[call-arg]
    runner.read(START_PROMPT)
    runner.token()
    first = time.perf_counter()
    for _ in range(START_TOKENS - 1):
        runner.token()
    peak = Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
    print(json.dumps([first, 1024 * int(peak)]))


if __name__ == "__main__":
    start(*sys.argv[1:])
