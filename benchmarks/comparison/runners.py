"""A decoder as the benchmark drives it: one class an engine, made inside the process that is measured.

Each imports its own library when it is made and nothing else, so that a process holds one engine and what it needs. All
read random prompts and go on greedily; choosing the most likely token is part of a step. A runner can be put back to
where it was placed, so that every turn is measured at the same length.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

CHUNK = 512  # tokens that torch reads at once
FEW = 5  # tokens read before a state is scaled up


def scaled(states: Mapping[str, NDArray[Any]], read: int, context: int) -> dict[str, NDArray[Any]]:
    """States after `read` tokens as they would be in size after `context`: S and z are sums over the tokens.

    So position 100,000 is reached without reading that many. Sums that a gate lets fade are smaller in truth, which
    costs the same. Whole numbers are positions.
    """
    return {
        name: value * np.float32(context / read) if value.dtype.kind == "f" else np.full_like(value, context)
        for name, value in states.items()
    }


class Runner(Protocol):
    """What the worker calls."""

    def place(self, context: int) -> None:
        """Stand behind `context` random tokens."""

    def back(self) -> None:
        """Stand there again, whatever was decoded since."""

    def token(self) -> int:
        """Read the last token, choose the next one and return it."""

    def read(self, tokens: int) -> None:
        """Read a random prompt from the start, up to the logits that follow it."""

    def go_on(self, tokens: int) -> int:
        """Read so many random tokens more, and choose the one that follows them: a chat's next message."""


def random_ids(count: int, vocabulary: int) -> NDArray[np.int64]:
    """Without 0 to 2, which may be special."""
    return np.random.default_rng(0).integers(3, vocabulary, count)


class T2R:
    """Our graph in our runtime."""

    def __init__(self, path: Path, threads: int, capacity: int, options: dict[str, Any]) -> None:
        from t2r_runtime import Decoder
        from t2r_runtime.session.tuning import PREFILL_FROM

        self._decoder = Decoder(path, threads=threads, prefill_from=PREFILL_FROM)
        self._batch = int(options.get("batch", 1))
        self._vocabulary = self._decoder.signature.vocab_size
        self._decoder.reset(self._batch)
        self._ids = random_ids(self._batch, self._vocabulary)

    def place(self, context: int) -> None:
        few = min(FEW, context)
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
        # after a rewind it wants a token to go on from
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
        # no end before the measurement's: random weights may choose the token that stands for it
        parameters.set_search_options(max_length=self._capacity, min_length=self._capacity, do_sample=False)
        self._generator = self._library.Generator(self._model, parameters)
        ids = random_ids(tokens, self._vocabulary).astype(np.int32)
        self._last = ids[-1:]
        self._generator.append_tokens(ids)


class LlamaCpp:
    """llama.cpp through llama-cpp-python; the token is chosen here, from its logits."""

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

    def place(self, context: int) -> None:
        self.read(context)
        self._context = context

    def back(self) -> None:
        self._llama.n_tokens = self._context  # `eval` removes what lies behind from the cache

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
    """This project's eager model, softmax with a growing cache or T2R; a prompt's logits are all computed."""

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
        """Read random tokens; the logits of the last part of them."""
        ids = self._torch.from_numpy(random_ids(tokens, self._model.config.vocab_size))[None]
        for part in ids.split(CHUNK, dim=1):
            logits, self._states = self._model.prefill(part, self._states)
        self._last = ids[:, -1]
        return logits


RUNNERS: dict[str, type[Runner]] = {"t2r": T2R, "genai": GenAI, "llama.cpp": LlamaCpp, "torch": Torch}
