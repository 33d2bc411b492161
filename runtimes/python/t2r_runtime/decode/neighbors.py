"""Nearest neighbours of a decoder's hidden states: kNN-LM (Khandelwal et al. 2019, arXiv 1911.00172).

decoder = Decoder("model.onnx")  # exported with --output-hidden
store = Datastore.of_text(decoder, tokenizer.encode(text))
retrieving = Retrieving(decoder, store)
ids = retrieving.generate(tokenizer.encode("Once upon a time"), max_tokens=100)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, Self
from zipfile import ZipFile

import numpy as np
from numpy.typing import ArrayLike, NDArray

import t2r_runtime.decode.generate as generate
from t2r_runtime.checks import is_number, numbers_of, range_of, require_int, require_kind, require_value
from t2r_runtime.contract.sampling import Sampling
from t2r_runtime.contract.signature import Signature
from t2r_runtime.decode.gate import START, Gate
from t2r_runtime.decode.reader import Reader
from t2r_runtime.decode.score import log_probabilities, require_text
from t2r_runtime.errors import UserError, printable
from t2r_runtime.files import existing_file
from t2r_runtime.session import archive
from t2r_runtime.session.stepper import Inputs, inputs_of, require_room, token_ids

AT_ONCE = 1 << 22  # elements of keys compared at a time
VERSION = 1


class Index(Protocol):
    """An approximate index of the keys of a datastore, in their order; faiss.IndexHNSWFlat is one."""

    def search(self, queries: NDArray[np.float32], k: int, /) -> tuple[NDArray[Any], NDArray[Any]]:
        """Queries (B, D) → squared distances and key indices (B, k), nearest first; index -1 means none."""
        ...


class Datastore:
    """Hidden states of a text, and the token that follows each.

    Args:
        keys: (N, D), N of at least 1.
        tokens: integers (N,).
        checkpoint_sha256: of the model whose states the keys are.
        index: finds neighbours faster than the exact search, which compares a query with every key.
        gate: sets the share of neighbours at each position.
    """

    def __init__(
        self,
        keys: ArrayLike,
        tokens: ArrayLike,
        checkpoint_sha256: str,
        index: Index | None = None,
        gate: Gate | None = None,
    ) -> None:
        require_kind(checkpoint_sha256, str, "a string as checkpoint_sha256", "argument")
        self.keys = numbers_of(keys, "keys").astype(np.float32, order="C", copy=False)
        self.tokens = numbers_of(tokens, "tokens", "iu").astype(np.int64, order="C", copy=False)
        self.checkpoint_sha256, self.index, self.gate = checkpoint_sha256, index, gate
        if self.keys.ndim != 2 or not self.keys.size or self.tokens.shape != self.keys.shape[:1]:
            received = f"{self.keys.shape} and {self.tokens.shape}"
            raise UserError("keys (N, D) and tokens (N,)", received, "pass a token for each key", "argument")

    @classmethod
    def of_text(cls, decoder: Reader, ids: ArrayLike, index: Index | None = None) -> Self:
        """Read a text (T,), T of at least 2, from the start. Its T - 1 entries are in the order of the text.

        Raises:
            UserError: invalid tokens, more than the model has positions, or a graph without the output `hidden`.
        """
        decoder.reset(batch=1)
        text = token_ids(ids, decoder.signature, 1).array[0]
        if text.size < 2:
            raise UserError("a text of at least 2 tokens", f"{text.size}", "pass more", "token")
        require_room(decoder, text.size - 1)
        keys = [decoder.with_hidden(text[place : place + 1])[1][0] for place in range(text.size - 1)]
        return cls(np.stack(keys), text[1:], decoder.signature.checkpoint_sha256, index)

    def __add__(self, other: Datastore) -> Datastore:
        """The entries of both, searched exactly, without a gate."""
        require_kind(other, Datastore, "a Datastore", "argument")
        if other.checkpoint_sha256 != self.checkpoint_sha256:
            raise UserError("datastores of one model", "another model's", "read the text again", "argument")
        keys, tokens = np.concatenate([self.keys, other.keys]), np.concatenate([self.tokens, other.tokens])
        return Datastore(keys, tokens, self.checkpoint_sha256)

    def save(self, path: str | Path) -> None:
        """Write a .npz file atomically, without the index. Only another datastore is replaced."""
        head = {"datastore": VERSION, "checkpoint_sha256": self.checkpoint_sha256}
        gate = {} if self.gate is None else {"gate": np.append(self.gate.weight, self.gate.bias)}
        archive.write(path, head, {"keys": self.keys, "tokens": self.tokens, **gate}, "datastore")

    @classmethod
    def load(cls, path: str | Path, index: Index | None = None) -> Self:
        """Read a file of `save`. Raises UserError for other or damaged files."""
        path = existing_file(path, "a datastore written by save")
        try:
            with ZipFile(path) as opened:
                found = archive.Archive(opened)
                dtypes = {name: dtype for name, (dtype, _) in found.forms.items()}
                gated = {"gate": "float64"} if "gate" in dtypes else {}
                if found.head.get("datastore") != VERSION or dtypes != {"keys": "float32", "tokens": "int64", **gated}:
                    raise ValueError("another file")
                keys, tokens, *numbers = (found.array(name) for name in ("keys", "tokens", *gated))
                gate = Gate(numbers[0][:-1], float(numbers[0][-1])) if gated else None
                return cls(keys, tokens, found.head["checkpoint_sha256"], index, gate)
        except Exception as error:  # a damaged file can raise any exception
            raise UserError(f"a datastore at {path}", printable(error), "write it with save()", "file") from error

    def search(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The k nearest keys of queries (B, D): squared distances and their tokens (B, k), nearest first.

        Of equal distances the earlier entry comes first. Entries that an index does not find have infinite distance.
        """
        k = min(k, len(self.keys))
        if self.index is not None:
            distances, places = self.index.search(queries, k)
            far = np.where(places < 0, np.inf, distances.astype(np.float64))
            return far, self.tokens[np.maximum(places, 0)]
        distances = np.stack([self._distances(query) for query in queries])
        places = np.argsort(distances, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(distances, places, 1), self.tokens[places]

    def _distances(self, query: NDArray[np.float32]) -> NDArray[np.float64]:
        """Squared distances (N,) of all keys, without a matrix product, which would lose digits by cancellation."""
        count = max(AT_ONCE // self.keys.shape[1], 1)
        parts = (self.keys[start : start + count] - query for start in range(0, len(self.keys), count))
        return np.concatenate([np.einsum("nd,nd->n", part, part, dtype=np.float64) for part in parts])


class Retrieving:
    """A Stepper whose logits are log(λ p_kNN + (1 - λ) p_LM) (eq. 3), for `score` and all sampling options.

    p_kNN(y) is the share of y in Σ exp(-d / temperature) over the k nearest entries, d their squared distance (eq. 2).

    Args:
        decoder: its graph has the output `hidden`. Its states are used.
        store: of the same checkpoint.
        k: number of neighbours.
        share: λ, from 0 to less than 1, or a gate that sets it at each position. Default: the store's gate, or 0.25.
        temperature: above 0; 1 in the paper.
    """

    def __init__(
        self,
        decoder: Reader,
        store: Datastore,
        k: int = 1024,
        share: float | Gate | None = None,
        temperature: float = 1.0,
    ) -> None:
        require_kind(decoder, Reader, "a Decoder", "argument")
        require_kind(store, Datastore, "a Datastore", "argument")
        require_int(k, "k", 1, "argument")
        share = (START if store.gate is None else store.gate) if share is None else share
        if not isinstance(share, Gate):
            require_value(is_number(share) and 0 <= share < 1, "a share from 0 to less than 1", share, "argument")
        require_value(is_number(temperature) and temperature > 0, "a temperature above 0", temperature, "argument")
        signature, size = decoder.signature, store.keys.shape[1]
        if store.checkpoint_sha256 != signature.checkpoint_sha256 or size != signature.hidden_size:
            received = "another model's, or a graph without the output hidden"
            raise UserError("a datastore of this graph's model", received, "read the text again", "argument")
        if isinstance(share, Gate) and share.weight.size != size:
            received = f"one of {share.weight.size}"
            raise UserError(f"a gate of {size} numbers", received, "train it with this model", "argument")
        if store.tokens.min() < 0 or store.tokens.max() >= signature.vocab_size:
            received = range_of(store.tokens.min(), store.tokens.max())
            raise UserError(f"tokens in 0 … {signature.vocab_size - 1}", received, "read the text again", "argument")
        self.decoder, self.store, self.k, self.share, self.temperature = decoder, store, k, share, temperature

    @property
    def signature(self) -> Signature:
        """The graph's metadata."""
        return self.decoder.signature

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return self.decoder.batch

    @property
    def position(self) -> int:
        """Number of tokens read since the start."""
        return self.decoder.position

    def history(self, row: int = 0) -> NDArray[np.int64]:
        """The latest tokens that a sequence has read."""
        return self.decoder.history(row)

    def reset(self, batch: int | None = None) -> None:
        """Restart at the beginning of a text."""
        self.decoder.reset(batch)

    def state(self) -> dict[str, NDArray[Any]]:
        """Copy all states."""
        return self.decoder.state()

    def set_state(self, states: Mapping[str, ArrayLike], position: int = 0) -> None:
        """Continue from a copy of `states`."""
        self.decoder.set_state(states, position)

    def step(self, ids: Inputs) -> NDArray[np.float32]:
        """Read one token of each sequence (B,) → log-probabilities of the mixture, float32 (B, vocabulary)."""
        return self.prefill(inputs_of(ids, self.signature, self.batch, "(B,)"))

    def prefill(self, ids: Inputs) -> NDArray[np.float32]:
        """Read a prompt (B, T) → log-probabilities of the mixture after its last token, float32 (B, vocabulary)."""
        logits, hidden = self.decoder.with_hidden(ids)
        distances, tokens = self.store.search(hidden, self.k)
        shares = np.stack(self._log_shares(hidden), 1)
        rows = [self._mixed(*each) for each in zip(logits, distances, tokens, shares, strict=True)]
        return np.stack(rows).astype(np.float32)

    def fit_gate(self, ids: ArrayLike, steps: int = 300, penalty: float = 1.0) -> Gate:
        """Train a gate on a text (T,) for this datastore, k and temperature; options as for `Gate.fit`.

        Use another text than the datastore's, in which each position is a neighbour of itself.

        Raises:
            UserError: invalid tokens, fewer than two, or more than the model has positions.
        """
        self.decoder.reset(batch=1)
        text = token_ids(ids, self.signature, 1).array[0]
        require_text(text.size)
        require_room(self, text.size - 1)
        states, found = [], np.empty((text.size - 1, 2))
        for place, following in enumerate(text[1:]):
            logits, hidden = self.decoder.with_hidden(text[place : place + 1])
            distances, tokens = self.store.search(hidden, self.k)
            near = self._near(distances[0], tokens[0])
            found[place] = log_probabilities(logits[0])[following], -np.inf if near is None else near[following]
            states.append(hidden[0])
        return Gate.fit(np.stack(states), found[:, 0], found[:, 1], steps, penalty)

    def top_k(self, ids: Inputs) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """`prefill`, but return the `signature.top_k` largest log-probabilities and their tokens."""
        count = self.signature.top_k
        if count is None:
            raise UserError("a graph with top-k outputs", "one without", "export with --top-k", "graph")
        mixed = self.prefill(ids)
        places = np.argsort(-mixed, axis=1, kind="stable")[:, :count]
        return np.take_along_axis(mixed, places, 1), places

    def generate(self, ids: ArrayLike, max_tokens: int, sampling: Sampling = Sampling()) -> list[int]:
        """Read `ids` (T,) and generate up to `max_tokens` tokens, as `Decoder.generate` without its companions."""
        return list(generate.tokens(self, generate.checked(self, ids, max_tokens, sampling)))

    def _log_shares(self, hidden: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """log λ and log(1 - λ) (B,) of hidden states (B, D)."""
        if isinstance(self.share, Gate):
            return self.share.log_shares(hidden)
        with np.errstate(divide="ignore"):
            return np.full(len(hidden), np.log(self.share)), np.full(len(hidden), np.log1p(-self.share))

    def _near(self, distances: NDArray[np.float64], tokens: NDArray[np.int64]) -> NDArray[np.float64] | None:
        """log p_kNN (vocabulary,) of neighbours with distances and tokens (k,); None if there are no neighbours."""
        if not np.isfinite(distances).any():
            return None
        weights = np.exp((distances.min() - distances) / self.temperature)
        with np.errstate(divide="ignore"):  # log 0 for tokens of no neighbour
            near: NDArray[np.float64] = np.log(
                np.bincount(tokens, weights, minlength=self.signature.vocab_size) / weights.sum()
            )
        return near

    def _mixed(
        self,
        logits: NDArray[np.float32],
        distances: NDArray[np.float64],
        tokens: NDArray[np.int64],
        shares: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Log-probabilities (vocabulary,) of a row: its neighbours' distances and tokens (k,), log λ, log(1 - λ)."""
        own, near = log_probabilities(logits), self._near(distances, tokens)
        if near is None:
            return own
        mixed: NDArray[np.float64] = np.logaddexp(shares[1] + own, shares[0] + near)
        return mixed
