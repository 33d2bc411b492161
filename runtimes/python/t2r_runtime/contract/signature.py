"""The graph's interface as data: the one place that spells the names and metadata keys of the contract.

The exporter imports this module to write a graph's metadata, every runtime's Python code to read it. What each key
means to someone who writes a runtime in another language stands in runtimes/CONTRACT.md.
"""

from __future__ import annotations

import json
import math
import numbers
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from t2r_runtime.checks import require_kind
from t2r_runtime.contract.chat import is_chat_template
from t2r_runtime.contract.options import is_generation
from t2r_runtime.contract.source import Source
from t2r_runtime.errors import UserError, printable, shown

CONTRACT_VERSION = 1
STEP = "step"  # the role of a graph that reads one token of each sequence
PREFILL = "prefill"  # of one that reads many at once
GENERATE = "generate"  # of one that chooses tokens and reads them by itself
ENCODER = "encoder"  # of one that reads a source, and gives what a translation of it needs
DRAFT_CHECK = "draft_check"  # of one that reads a few at once, with logits behind each, and keeps the first of them
COMPANIONS = (PREFILL, GENERATE, ENCODER, DRAFT_CHECK)
ROLES = {  # as messages call them
    STEP: "step graph",
    PREFILL: "prefill graph",
    GENERATE: "generation graph",
    ENCODER: "encoder graph",
    DRAFT_CHECK: "draft-check graph",
}
INPUT_IDS = "input_ids"  # int64 (B,): one token per sequence; (B, N) in a prefill graph
KEEP = "keep"  # int64 (B,), of a draft-check graph: the states after it are those after so many of its tokens
MOST_CHECKED = 32  # tokens in one of its runs
LOGITS = "logits"  # float32 (B, vocabulary)
TOP_LOGITS = "top_logits"  # float32 (B, top_k): the largest of them, largest first
TOP_TOKENS = "top_tokens"  # int64 (B, top_k): their tokens
LOG_SUM = "log_sum"  # float32 (B,): the logarithm of the sum of exp(logits), of a translator beside those two
PAST = "past_"
PRESENT = "present_"
SOURCE = "source_"  # with which the name of a state begins that no step changes
SOURCE_IDS = "source_ids"  # int64 (B, M), of an encoder graph
SOURCE_LENGTHS = "source_lengths"  # int64 (B,): tokens of each row of them, at least 1
SOURCE_LENGTH_STATE = "source_length"  # the constant state that says how long each source is, int32 (B,)
POSITION = "position"  # the state that counts the tokens read so far, int32 (B,)

BATCH = "B"  # a dimension given by the caller, constant over a run
GROWING = "T"  # a dimension that is 0 at the start and 1 longer after each step
TOKENS = "N"  # a dimension given by the caller, anew in each run
SOURCE_LENGTH = "M"  # the length of the longest source

PAST_ENDS = "refuse, clamp or wrap:N"  # what a step past the end of the positions may do
_WRAP = re.compile("wrap:([1-9][0-9]{0,8})")  # positions are int32

PREFIX = "t2r."  # of every metadata key
OPTIONAL = ("chat_template", "generation")  # keys that are there only where they say something
SOURCE_STATES = "source_states"  # a translator's key, as are the fields of Source
LISTS = ("states", "eos_tokens", "layers", SOURCE_STATES, "start_states", "start_tokens", "banned_tokens")
DTYPES = ("float32", "float16", "int32", "int64")
MAX_STATE_BYTES = 1 << 31  # of all states at batch 1: what a stranger's graph may make us allocate, unless we say more
MAX_METADATA_BYTES = 1 << 26  # of all keys and values
MAX_VOCABULARY = 1 << 24  # so that logits are bounded too
BATCH_STATES = 8  # times that, of all sequences side by side


def is_past_end(value: object) -> bool:
    """Whether it is one of `PAST_ENDS`, with a number as N."""
    return isinstance(value, str) and (value in ("refuse", "clamp") or wrap_length(value) is not None)


def wrap_length(past_end: str) -> int | None:
    """N of wrap:N, under which absolute positions are counted modulo N; None where they are not."""
    found = _WRAP.fullmatch(past_end)
    return None if found is None else int(found[1])


@dataclass(frozen=True)
class StateSpec:
    """One recurrent state: graph input `past_<name>` and output `present_<name>`.

    `shape` holds integers, "B" (batch) and at most one "T" (a cache that grows by one per step). `initial` is the value
    that every element has before the first token. A `constant` state stays the same for a whole text, so that a graph
    reads it and does not give it back: what an encoder has made of the source of a translation. Its name, which begins
    with "source_", is the graph's input, and instead of "T" it may have one "M", the source's length.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    initial: float = 0.0
    constant: bool = False

    def __post_init__(self) -> None:
        shape = self.shape if isinstance(self.shape, tuple) else (None,)
        free, prefix = (SOURCE_LENGTH, SOURCE) if self.constant is True else (GROWING, "")
        dims_ok = all(d in (BATCH, free) if isinstance(d, str) else type(d) is int and 0 < d for d in shape)
        named = isinstance(self.name, str) and self.name.startswith(prefix) and self.name
        typed = isinstance(self.dtype, str) and self.dtype in DTYPES and isinstance(self.constant, bool)
        if not (named and typed and dims_ok and shape.count(free) <= 1):
            raise UserError(
                f"a state of a name, a dtype of {', '.join(DTYPES)}, and dimensions that are positive, B or one T (of "
                "a constant state: a name that begins with source_, and one M instead of the T)",
                shown(self),
                "export the graph again",
                "metadata",
            )

    @property
    def past(self) -> str:
        """Name of the graph's input."""
        return self.name if self.constant else PAST + self.name

    @property
    def present(self) -> str:
        """Name of the graph's output; a constant state has none."""
        assert not self.constant, self.name
        return PRESENT + self.name

    @property
    def grows(self) -> bool:
        """Whether it is a cache, one token longer after each step."""
        return GROWING in self.shape

    def dims(self, batch: int, length: int = 0, source: int = 1) -> tuple[int, ...]:
        """The shape with its letters replaced by numbers."""
        letters = {BATCH: batch, GROWING: length, SOURCE_LENGTH: source}
        return tuple(letters[d] if isinstance(d, str) else d for d in self.shape)

    def source_length(self, shape: tuple[int, ...]) -> int:
        """M of a state of that shape; 1 where it has none."""
        return shape[self.shape.index(SOURCE_LENGTH)] if SOURCE_LENGTH in self.shape else 1

    def bytes(self, batch: int = 1, length: int = 0, source: int = 1) -> int:
        """Memory of its numbers, for a cache of `length` tokens and a source of `source`."""
        for name, value in (("batch", batch), ("length", length), ("source", source)):
            require_kind(value, numbers.Integral, f"an integer as {name}", "batch")
        size = {"float32": 4, "float16": 2, "int32": 4, "int64": 8}[self.dtype]
        return size * math.prod(self.dims(batch, length, source))


def require_bounded(states: Iterable[StateSpec], most: int = MAX_STATE_BYTES) -> None:
    """Refuse states that take more than `most` bytes at batch 1, caches with one token in them.

    Raises:
        UserError: with the largest of them.
    """
    sizes = {spec.name: spec.bytes(batch=1, length=1) for spec in states}
    if (total := sum(sizes.values())) > most:
        name = max(sizes, key=sizes.__getitem__)
        raise UserError(
            f"states of at most {most:,} bytes a sequence",
            f"{total:,} bytes, {printable(name, 50)} alone {sizes[name]:,}",
            "check where this file is from, or raise max_state_bytes in Python",
            "metadata",
        )


@dataclass(frozen=True)
class Signature:
    """All that a runtime needs to know of a step graph, read from its metadata."""

    states: tuple[StateSpec, ...]
    vocab_size: int
    bos_token: int | None
    eos_tokens: tuple[int, ...]
    batch: int | None  # None: any batch size
    max_positions: int | None  # None: runs on without end
    past_end: str  # refuse | clamp | wrap:N: what a step past max_positions does
    state_layout: str  # layers | packed
    layers: tuple[Mapping[str, Any], ...]  # one mixer config per layer: kind, feature map and size, guard, folded, …
    target: str  # portable | fused | standard | npu
    quantization: str  # none, or the scheme's name
    checkpoint_sha256: str
    producer: str  # package and version that wrote the graph
    tokenizer: str | None  # the text of a tokenizer.json
    top_k: int | None  # how many of the largest logits the graph gives apart; None: it has no such outputs
    role: str  # of ROLES: what the graph does
    graphs: Mapping[str, str]  # role → file name of the step graph's companions, which lie beside it
    chat_template: Mapping[str, Any] | None = None  # see t2r_runtime.contract.chat; graphs without the key have none
    generation: Mapping[str, Any] | None = None  # options that hold where a caller gives none; as the template
    source: Source | None = None  # of a translator: what stands in keys that a decoder alone does not have

    @property
    def constant(self) -> tuple[StateSpec, ...]:
        """The states that no step changes: what the encoder has made of the source."""
        return tuple(spec for spec in self.states if spec.constant)

    @property
    def chained(self) -> tuple[StateSpec, ...]:
        """The states that each step changes: all but the constant ones."""
        return tuple(spec for spec in self.states if not spec.constant)

    @property
    def has_log_sum(self) -> bool:
        """Whether the logarithm of Σ exp(logits) stands beside the largest logits: it makes them log-probabilities."""
        return self.source is not None and self.top_k is not None

    @property
    def reach(self) -> int | None:
        """The most tokens that a text can have; None where there is no end."""
        return self.max_positions if self.past_end == "refuse" else None

    def companion(self, role: str) -> Signature:
        """The signature of the step graph's companion of that role.

        The same but for the role; it names no graphs, and has no tokenizer, chat template or options, which the step
        graph has. A generation graph has no `top_k` outputs, and states of a batch of 1.
        """
        require_kind(role, str, "a role", "graph")
        top_k = None if role == GENERATE else self.top_k
        source = None if self.source is None else replace(self.source, source_tokenizer=None)
        nothing: dict[str, Any] = dict.fromkeys(("tokenizer", *OPTIONAL))
        return replace(self, role=role, graphs={}, top_k=top_k, source=source, **nothing)

    def require_batch(self, batch: int) -> None:
        """Refuse a number of sequences that is less than 1, or another than the graph was exported for.

        Raises:
            UserError: it is.
        """
        if type(batch) is not int or batch < 1 or batch != (self.batch or batch):
            any_size = self.batch is None
            raise UserError(
                "a batch of at least 1" if any_size else f"a batch of {self.batch}, for which the graph was exported",
                shown(batch),
                "choose another" if any_size else "export the model without a fixed batch",
                "batch",
            )

    def require_memory(self, batch: int, most: int = MAX_STATE_BYTES, source: int = 1) -> None:
        """Refuse a number of sequences whose states and logits together take more than BATCH_STATES times `most` bytes.

        Args:
            source: the length of the longest source.

        Raises:
            UserError: they do.
        """
        require_kind(batch, int, "a number of sequences", "batch")
        size = batch * 4 * self.vocab_size + sum(spec.bytes(batch, source=source) for spec in self.states)
        if size > BATCH_STATES * most:
            do = "choose a smaller batch" + (" or shorter sources" if source > 1 else "")
            raise UserError(f"states of at most {BATCH_STATES * most} bytes", f"{size} bytes", do, "batch")

    def require_constant(self, purpose: str) -> None:
        """Refuse states that grow.

        Args:
            purpose: what needs states of constant size, as in "for a generation graph".

        Raises:
            UserError: with the names of the first four that grow.
        """
        growing = [spec.name for spec in self.states if spec.grows]
        if growing:
            names = ", ".join(growing[:4]) + (", …" if growing[4:] else "")
            raise UserError(
                f"states of constant size {purpose}",
                f"a model whose {names} grow with every token",
                "convert all its layers, or do without",
                "batch",
            )

    def to_metadata(self) -> dict[str, str]:
        """Keys and JSON texts for the graph's metadata_props."""
        values: dict[str, Any] = {"contract": CONTRACT_VERSION}
        for name in self.__dataclass_fields__:
            values[name] = getattr(self, name)
        values["states"] = [asdict(s) for s in self.chained]
        if (source := values.pop("source")) is not None:
            values |= {**asdict(source), SOURCE_STATES: [asdict(s) for s in self.constant]}
        values["layers"] = [dict(layer) for layer in self.layers]
        values["graphs"] = dict(self.graphs)
        left_out = [key for key in OPTIONAL if values[key] is None]
        return {PREFIX + key: json.dumps(value, sort_keys=True) for key, value in values.items() if key not in left_out}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], max_state_bytes: int = MAX_STATE_BYTES) -> Signature:
        """Inverse of `to_metadata`.

        Args:
            max_state_bytes: the most that all states may take at batch 1.

        Raises:
            UserError: not a graph of ours, another contract version, a missing key (named), a malformed value, or
                larger states.
        """
        if not isinstance(metadata, Mapping) or PREFIX + "contract" not in metadata:
            raise UserError(
                "a step graph with t2r metadata",
                f"a graph without the key {PREFIX}contract",
                "export the model with t2r-export",
                "metadata",
            )
        if (
            size := sum(len(str(text).encode(errors="replace")) for entry in metadata.items() for text in entry)
        ) > MAX_METADATA_BYTES:
            raise UserError(
                f"metadata of at most {MAX_METADATA_BYTES:,} bytes", f"{size:,}", "export the model again", "metadata"
            )
        contract = _read(metadata, "contract")
        if type(contract) is not int or contract != CONTRACT_VERSION:
            raise UserError(
                f"contract version {CONTRACT_VERSION}",
                f"version {contract}",
                "export the model again, or use the runtime of that version",
                "version",
            )
        left_out = [key for key in OPTIONAL if PREFIX + key not in metadata]
        values = {key: _read(metadata, key) for key in cls.__dataclass_fields__ if key not in (*left_out, "source")}
        if translates := PREFIX + SOURCE_STATES in metadata:
            values |= {key: _read(metadata, key) for key in (SOURCE_STATES, *Source.__dataclass_fields__)}
        lists = [key for key in values if key in LISTS]
        no_lists = [key for key in lists if not isinstance(values[key], list)]
        if no_lists:
            raise _bad_metadata(f"no list as {', '.join(no_lists)}")
        try:
            values |= {key: tuple(values[key]) for key in lists}
            listed = [*values["states"], *values.pop(SOURCE_STATES, ())]
            values["states"] = tuple(StateSpec(**{**s, "shape": tuple(s["shape"])}) for s in listed)
            if translates:
                values["source"] = Source(**{key: values.pop(key) for key in Source.__dataclass_fields__})
            signature = cls(**values)
            problems = _malformed(signature)
        except UserError:
            raise
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise _bad_metadata(printable(error)) from error
        if problems:
            raise _bad_metadata(printable("; ".join(problems)))
        require_bounded(signature.states, max_state_bytes)
        return signature


def _read(metadata: Mapping[str, str], key: str) -> Any:
    name = PREFIX + key
    if name not in metadata:
        raise UserError(
            f"the metadata key {name}", "a graph without it", "export the model again with t2r-export", "metadata"
        )
    try:
        return json.loads(metadata[name])
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"JSON in the metadata key {name}", str(error), "export the model again", "metadata") from error


def _bad_metadata(problem: str) -> UserError:
    return UserError("metadata of the contract's form", problem, "export the model again", "metadata")


def _malformed(signature: Signature) -> list[str]:
    """What is wrong with the values of metadata that has all its keys; JSON from a stranger can hold anything."""

    def count(value: Any) -> bool:
        return type(value) is int and value > 0

    def token(value: Any) -> bool:
        return type(value) is int and 0 <= value < signature.vocab_size

    def initial(spec: StateSpec) -> bool:
        import numpy as np  # which `--help` does without

        kind = np.dtype(spec.dtype)
        most = float((np.finfo if kind.kind == "f" else np.iinfo)(kind).max)
        return type(spec.initial) in (int, float) and abs(spec.initial) <= most

    names = [spec.name for spec in signature.states]
    strings = (signature.checkpoint_sha256, signature.producer, signature.target, signature.quantization)
    checks = {
        "vocab_size": count(signature.vocab_size) and signature.vocab_size <= MAX_VOCABULARY,
        "batch": signature.batch is None or count(signature.batch),
        "max_positions": signature.max_positions is None or count(signature.max_positions),
        "past_end": is_past_end(signature.past_end),
        "states": all(isinstance(name, str) for name in names)
        and len(set(names)) == len(names)
        and all(initial(spec) and type(spec.constant) is bool for spec in signature.states)
        and all(type(d) in (int, str) for spec in signature.states for d in spec.shape),
        "checkpoint_sha256, producer, target, quantization": all(isinstance(text, str) for text in strings),
        "tokenizer": signature.tokenizer is None or isinstance(signature.tokenizer, str),
        "chat_template": signature.chat_template is None or is_chat_template(signature.chat_template),
        "generation": signature.generation is None
        or is_generation(signature.generation, translates=signature.source is not None),
        "top_k": signature.top_k is None or (count(signature.top_k) and signature.top_k <= signature.vocab_size),
        "role": isinstance(signature.role, str) and signature.role in ROLES,
        "graphs": isinstance(signature.graphs, Mapping)
        and all(map(_is_file_name, signature.graphs.values()))
        and (signature.role == STEP or not signature.graphs),
        "layers": all(isinstance(layer, Mapping) for layer in signature.layers),
    }
    problems = [f"a bad value of {key}" for key, good in checks.items() if not good]
    if not problems and not all(token(t) for t in (*signature.eos_tokens, signature.bos_token or 0)):
        problems = ["a bad value of bos_token or eos_tokens"]
    if not problems and signature.source is not None:
        chained = [spec.name for spec in signature.chained]
        problems = signature.source.problems(signature.vocab_size, chained, MAX_VOCABULARY)
    elif not problems and (signature.constant or signature.role == ENCODER):
        problems = ["a translator's states or role, without its keys"]
    return problems


def _is_file_name(name: Any) -> bool:
    """Whether this names a file in a graph's own folder: a stranger's graph must not lead anywhere else."""
    return isinstance(name, str) and name.isprintable() and name not in ("", ".", "..") and not set(name) & set("/\\:")
