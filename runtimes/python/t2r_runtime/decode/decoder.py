"""Decoder: generates text with a step graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from pathlib import Path

from numpy.typing import ArrayLike

import t2r_runtime.decode.generate as generate
from t2r_runtime.checks import require_value
from t2r_runtime.contract.sampling import Sampling
from t2r_runtime.contract.signature import COMPANIONS
from t2r_runtime.contract.state_spec import MAX_STATE_BYTES
from t2r_runtime.decode.generate import Request
from t2r_runtime.decode.reader import Reader
from t2r_runtime.session.session import open_graph
from t2r_runtime.session.threads import alone


class Decoder(Reader):
    """Decodes text with a step graph, from the start of a text.

    Args:
        path: the .onnx file.
        provider: execution provider, a key of t2r_runtime.PROVIDERS.
        threads: intra-op threads. None is 1 for graphs of a few megabytes, else one per usable physical core
            (t2r_runtime.session.tuning).
        provider_options: options of the provider.
        allow_fallback: let the CPU run nodes that the provider does not support, see `placement`; otherwise they raise
            an error that names them.
        companions: roles of the companion graphs to use, if the graph names them. Each is opened on first use, with
            memory for its session. "prefill" reads many prompt tokens per run, and "draft_check" checks draft tokens.
            A translator's "encoder" is for t2r_runtime.Translator.
        max_state_bytes: maximum size of the states of one sequence, since a graph may be untrusted.
        prefill_from: minimum length of prompts that the prefill graph reads. Opening it takes as long as some dozens of
            steps, which a process that reads one short prompt can save.
        adapter: the low-rank adapter of every text, one of `signature.adapters`; `adapt` chooses others.
        session_config: session configuration entries of ONNX Runtime, compared by benchmarks/session_options.py.

    Raises:
        UserError: see t2r_runtime.session.session.open_graph, or a `prefill_from` below 1.

    A decoder has one state: call `reset` between texts. Concurrent use by two threads raises UserError; give each
    thread a `fork`.
    """

    def __init__(
        self,
        path: str | Path,
        provider: str = "cpu",
        threads: int | None = None,
        provider_options: Mapping[str, str] | None = None,
        allow_fallback: bool = False,
        companions: Collection[str] = COMPANIONS,
        max_state_bytes: int = MAX_STATE_BYTES,
        prefill_from: int = 1,
        session_config: Mapping[str, str] | None = None,
        adapter: str | None = None,
    ) -> None:
        opening = provider, threads, provider_options, allow_fallback, session_config, companions, max_state_bytes
        super().__init__(open_graph(path, *opening), prefill_from, adapter)

    @alone
    def save_state(self, path: str | Path, token: int | None = None) -> None:
        """Save the states to a file; see t2r_runtime.session.snapshot.

        Args:
            token: a token that has been chosen but not read, such as the last of `generate`.
        """
        import t2r_runtime.session.snapshot as snapshot

        snapshot.save(path, self.signature, self.state(), self.position, token)

    @alone
    def load_state(self, path: str | Path) -> int | None:
        """Continue from a file of `save_state`.

        Returns:
            The saved token, to be read next; None if there was none.

        Raises:
            UserError: not a snapshot, a damaged one, or one of another model. The states are unchanged then.
        """
        import t2r_runtime.session.snapshot as snapshot

        states, position, token = snapshot.load(path, self.signature)
        self.set_state(states, position)
        return token

    def stream(
        self, ids: ArrayLike, max_tokens: int, sampling: Sampling = Sampling(), draft: object = None
    ) -> Iterator[int]:
        """Like `generate`, but yield each token as it is chosen. Arguments are checked immediately.

        With drafts, a run may yield several tokens; until its last one is yielded or the stream is closed, the decoder
        has not read all of the earlier ones.
        """
        request = generate.checked(self, ids, max_tokens, sampling)
        return generate.tokens(self, request) if draft is None else self._speculate(request, draft)

    @alone
    def generate(
        self,
        ids: ArrayLike,
        max_tokens: int,
        sampling: Sampling = Sampling(),
        callback: Callable[[int], object] | None = None,
        draft: object = None,
    ) -> list[int]:
        """Read `ids` and generate up to `max_tokens` tokens, from the current state (`reset` starts a new text).

        Args:
            ids: the prompt (T,), T of at least 1, such as the BOS token.
            max_tokens: at least 1.
            sampling: sampling options and stop tokens.
            callback: called with each token; returning False ends the text.
            draft: for speculative decoding, "lookup" (what followed the latest tokens earlier in this text) or a
                Decoder of a smaller model with the same tokens, or of this model's draft head, which is reset. A
                draft-check graph checks several draft tokens per run. The text is the same except for rounding, as in
                `prefill`; few drafts are made if they do not pay off.

        Returns:
            The new tokens, including a stop token. The decoder has read all but the last one: pass it to the next call
            to continue.

        Raises:
            UserError: a batch other than 1, a value out of range, or too few positions left.
        """
        request = generate.checked(self, ids, max_tokens, sampling)
        valid = callback is None or callable(callback)
        require_value(valid, "a function of one token as callback", callback, "sampling")
        tokens = []
        written = generate.tokens(self, request) if draft is None else self._speculate(request, draft)
        with contextlib.closing(written):
            for token in written:
                tokens.append(token)
                if callback is not None and callback(token) is False:
                    break
        return tokens

    def _speculate(self, request: Request, draft: object) -> Generator[int]:
        import t2r_runtime.decode.speculation as speculation

        self.open_draft_check()
        return speculation.tokens(self, request, speculation.drafter_of(self, draft))
