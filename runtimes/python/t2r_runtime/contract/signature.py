"""Names and metadata keys of graphs, as runtimes/CONTRACT.md defines them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from t2r_runtime.checks import require_int, require_kind
from t2r_runtime.contract.chat import is_chat_template
from t2r_runtime.contract.options import is_generation
from t2r_runtime.contract.source import Source
from t2r_runtime.contract.state_spec import (
    ADAPTER,
    BATCH,
    HIDDEN_STATE,
    MAX_STATE_BYTES,
    StateSpec,
    require_bounded,
)
from t2r_runtime.errors import UserError, did_you_mean, printable, shown
from t2r_runtime.files import is_file_name

CONTRACT_VERSION = 1
STEP = "step"  # role of graphs that read one token of each sequence
PREFILL = "prefill"  # many tokens of each sequence
ENCODER = "encoder"  # encodes sources
DRAFT_CHECK = "draft_check"  # reads several tokens, gives logits after each, and keeps the first ones
COMPANIONS = (PREFILL, ENCODER, DRAFT_CHECK)
ROLES = {  # for messages
    STEP: "step graph",
    PREFILL: "prefill graph",
    ENCODER: "encoder graph",
    DRAFT_CHECK: "draft-check graph",
}
INPUT_IDS = "input_ids"  # int64 (B,); (B, N) in prefill and draft-check graphs
INPUTS_EMBEDS = "inputs_embeds"  # float32 (B, input_size) or (B, N, input_size), of graphs that read vectors
KEEP = "keep"  # int64 (B,), of a draft-check graph: number of tokens to keep
MOST_CHECKED = 32  # maximum tokens per run of a draft-check graph
LOGITS = "logits"  # float32 (B, vocabulary)
TOP_LOGITS = "top_logits"  # float32 (B, top_k): the largest logits, descending
TOP_TOKENS = "top_tokens"  # int64 (B, top_k): their tokens
HIDDEN = "hidden"  # float32 (B, hidden_size): what the head reads
LOG_SUM = "log_sum"  # float32 (B,): log-sum-exp of the logits, of translators with top-k outputs
SOURCE_IDS = "source_ids"  # int64 (B, M), of an encoder graph
SOURCE_LENGTHS = "source_lengths"  # int64 (B,): length of each row, at least 1

PAST_ENDS = "refuse, clamp or wrap:N"  # behaviours of a step past the last position
_WRAP = re.compile("wrap:([1-9][0-9]{0,8})")  # positions are int32

PREFIX = "t2r."  # of metadata keys
# keys left out if None
OPTIONAL = ("chat_template", "generation", "input_size", "hidden_size", "untrained", "adapters")
OF_STEPS = ("tokenizer", "chat_template", "generation", "untrained")  # keys that are absent or null in companions
SOURCE_STATES = "source_states"  # key of translators, as are the fields of Source
LISTS = ("states", "eos_tokens", "layers", "adapters", SOURCE_STATES, "start_states", "start_tokens", "banned_tokens")
MAX_METADATA_BYTES = 1 << 26  # of all keys and values
MAX_VOCABULARY = 1 << 24  # bounds the size of logits
MOST_ADAPTERS = 1024
ADAPTER_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
MAX_INITIAL = 1 << 53  # largest initial value of an integer state, exact in a double
BATCH_STATES = 8  # states of a batch may take this many times MAX_STATE_BYTES


def is_past_end(value: object) -> bool:
    """Whether `value` is one of `PAST_ENDS`."""
    return isinstance(value, str) and (value in ("refuse", "clamp") or wrap_length(value) is not None)


def wrap_length(past_end: str) -> int | None:
    """N of wrap:N, the modulus of absolute positions; otherwise None."""
    found = _WRAP.fullmatch(past_end)
    return None if found is None else int(found[1])


def untrained_note(parts: int) -> tuple[str, ...]:
    """A line on untrained parts, if there are any."""
    do = "train it with t2r finetune and export it again"
    return (f"{parts} converted parts of this model are untrained, so its output is noise: {do}",) if parts else ()


@dataclass(frozen=True)
class Signature:
    """The metadata of a graph."""

    states: tuple[StateSpec, ...]
    vocab_size: int
    bos_token: int | None
    eos_tokens: tuple[int, ...]
    batch: int | None  # None: any batch size
    max_positions: int | None  # None: unlimited
    past_end: str  # refuse | clamp | wrap:N
    state_layout: str  # layers | packed
    layers: tuple[Mapping[str, Any], ...]  # one mixer config per layer: kind, feature map and size, guard, folded, …
    target: str  # portable | fused | standard | npu
    quantization: str  # none, or the scheme's name
    checkpoint_sha256: str
    producer: str  # package and version that wrote the graph
    tokenizer: str | None  # the text of a tokenizer.json
    top_k: int | None  # number of logits in top-k outputs; None: no such outputs
    role: str  # of ROLES
    graphs: Mapping[str, str]  # role → file name of a companion in the same folder
    chat_template: Mapping[str, Any] | None = None  # see t2r_runtime.contract.chat
    generation: Mapping[str, Any] | None = None  # default generation options
    input_size: int | None = None  # elements of the vectors that the graph reads; None: it reads token ids
    hidden_size: int | None = None  # elements of the output `hidden`; None: there is none
    untrained: int | None = None  # parts that a conversion made and no training has trained
    adapters: tuple[str, ...] | None = None  # names of low-rank adapters; the state ADAPTER chooses one by its number
    source: Source | None = None  # of translators

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user of the graph should know before its first token, one line each."""
        return untrained_note(self.untrained or 0)

    @property
    def constant(self) -> tuple[StateSpec, ...]:
        """The constant states, computed by the encoder."""
        return tuple(spec for spec in self.states if spec.constant)

    @property
    def chained(self) -> tuple[StateSpec, ...]:
        """The states that steps change."""
        return tuple(spec for spec in self.states if not spec.constant)

    @property
    def hidden_state(self) -> StateSpec | None:
        """Of a draft head: the state to write what the model's head reads to."""
        return next((spec for spec in self.states if spec.name == HIDDEN_STATE), None)

    def adapter(self, name: str | None) -> int:
        """The number of an adapter, 0 for None. Raises UserError if the graph has none of this name."""
        if name is None:
            return 0
        known = self.adapters or ()
        if name not in known:
            do = did_you_mean(name, known, "use one of those") if known else "export it with --adapter NAME=PATH"
            expected = f"an adapter of this graph: {', '.join(known)}" if known else "a graph with adapters"
            raise UserError(printable(expected, 400), shown(name), do, "argument")
        return known.index(name) + 1

    @property
    def has_log_sum(self) -> bool:
        """Whether log-sum-exp is an output, which turns top-k logits into log-probabilities."""
        return self.source is not None and self.top_k is not None

    @property
    def reach(self) -> int | None:
        """Maximum number of tokens of a text; None if unlimited."""
        return self.max_positions if self.past_end == "refuse" else None

    def companion(self, role: str) -> Signature:
        """The signature of the companion with this role, without graphs, tokenizer, chat template and options.

        An encoder's graph has no output `hidden`.
        """
        require_kind(role, str, "a role", "graph")
        hidden_size = None if role == ENCODER else self.hidden_size
        source = None if self.source is None else replace(self.source, source_tokenizer=None)
        nothing: dict[str, Any] = dict.fromkeys(OF_STEPS)
        return replace(self, role=role, graphs={}, hidden_size=hidden_size, source=source, **nothing)

    def input_dims(self, *tokens: int | str) -> tuple[int | str, ...]:
        """Shape of a run's input: `tokens`, such as (B, N), then `input_size` if the graph reads vectors."""
        return tokens if self.input_size is None else (*tokens, self.input_size)

    @property
    def input_name(self) -> str:
        """Name of a run's input."""
        return INPUT_IDS if self.input_size is None else INPUTS_EMBEDS

    @property
    def input_dtype(self) -> str:
        """Dtype of a run's input."""
        return "int64" if self.input_size is None else "float32"

    def require_tokens(self) -> None:
        """Raise UserError if the graph reads vectors."""
        if self.input_size is not None:
            received = f"one that reads vectors of {self.input_size} elements ({INPUTS_EMBEDS})"
            do = "read vectors with Decoder.step and Decoder.prefill, or export a graph of tokens"
            raise UserError("a graph that reads token ids", received, do, "graph")

    def require_batch(self, batch: int) -> None:
        """Raise UserError if a batch size is less than 1 or other than the graph's fixed batch."""
        require_int(batch, "a batch", 1, "batch")
        if batch != (self.batch or batch):
            expected, do = f"a batch of {self.batch}, fixed at export", "export the model without a fixed batch"
            raise UserError(expected, str(batch), do, "batch")

    def require_memory(self, batch: int, most: int = MAX_STATE_BYTES, source: int = 1) -> None:
        """Raise UserError if states and logits of a batch exceed BATCH_STATES times `most` bytes.

        Args:
            source: length of the longest source.
        """
        for number, what in ((batch, "sequences"), (most, "bytes")):
            require_kind(number, int, f"a number of {what}", "batch")
        size = batch * 4 * self.vocab_size + sum(spec.bytes(batch, source=source) for spec in self.states)
        if size > BATCH_STATES * most:
            do = "choose a smaller batch (fewer rows)" + (" or shorter sources" if source > 1 else "")
            raise UserError(f"states of at most {BATCH_STATES * most} bytes", f"{size} bytes", do, "batch")

    def require_constant(self, purpose: str) -> None:
        """Raise UserError if states grow.

        Args:
            purpose: what requires constant size, such as "for target npu".
        """
        growing = [spec.name for spec in self.states if spec.grows]
        if growing:
            names = ", ".join(growing[:4]) + (", …" if growing[4:] else "")
            received = f"a model whose {names} grow with every token"
            do = "export with --context, or convert all layers"
            raise UserError(f"states of constant size {purpose}", received, do, "batch")

    def to_metadata(self) -> dict[str, str]:
        """The metadata as keys and JSON texts, for metadata_props."""
        values: dict[str, Any] = {"contract": CONTRACT_VERSION}
        for name in self.__dataclass_fields__:
            values[name] = getattr(self, name)
        values["states"] = [asdict(s) for s in self.chained]
        if (source := values.pop("source")) is not None:
            values |= {**asdict(source), SOURCE_STATES: [asdict(s) for s in self.constant]}
        values["layers"] = [dict(layer) for layer in self.layers]
        values["graphs"] = dict(self.graphs)
        values["adapters"] = None if self.adapters is None else list(self.adapters)
        left_out = [key for key in OPTIONAL if values[key] is None]
        return {PREFIX + key: json.dumps(value, sort_keys=True) for key, value in values.items() if key not in left_out}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], max_state_bytes: int = MAX_STATE_BYTES) -> Signature:
        """Inverse of `to_metadata`.

        Args:
            max_state_bytes: maximum size of all states at batch 1.

        Raises:
            UserError: no t2r metadata, another contract version, missing keys, malformed values, or larger states.
        """
        if not isinstance(metadata, Mapping) or PREFIX + "contract" not in metadata:
            received, do = f"a graph without the key {PREFIX}contract", "export the model with t2r-export"
            raise UserError("a step graph with t2r metadata", received, do, "metadata")
        size = sum(len(str(text).encode(errors="replace")) for entry in metadata.items() for text in entry)
        if size > MAX_METADATA_BYTES:
            expected = f"metadata of at most {MAX_METADATA_BYTES:,} bytes"
            raise UserError(expected, f"{size:,}", "export the model again", "metadata")
        contract = _read(metadata, "contract")
        if type(contract) is not int or contract != CONTRACT_VERSION:
            do = "export the model again, or use the runtime of that version"
            raise UserError(f"contract version {CONTRACT_VERSION}", f"version {contract}", do, "version")
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
            if any(s.keys() != StateSpec.__dataclass_fields__.keys() for s in listed):
                raise _bad_metadata("a state with other keys than " + ", ".join(StateSpec.__dataclass_fields__))
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
        raise UserError(f"the metadata key {name}", "a graph without it", "export the model again", "metadata")
    try:
        return json.loads(metadata[name])
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"JSON in the metadata key {name}", str(error), "export the model again", "metadata") from error


def _bad_metadata(problem: str) -> UserError:
    return UserError("metadata as the contract defines it", problem, "export the model again", "metadata")


def _malformed(signature: Signature) -> list[str]:
    """Describe the invalid values of untrusted metadata that has all keys."""

    def count(value: Any) -> bool:
        return type(value) is int and value > 0

    def token(value: Any) -> bool:
        return type(value) is int and 0 <= value < signature.vocab_size

    def initial(spec: StateSpec) -> bool:
        import numpy as np  # not needed for --help

        if type(spec.initial) not in (int, float):
            return False
        kind = np.dtype(spec.dtype)
        if kind.kind == "f":
            return abs(spec.initial) <= float(np.finfo(kind).max)
        return spec.initial == int(spec.initial) and abs(spec.initial) <= min(MAX_INITIAL, np.iinfo(kind).max)

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
        **{
            name: size is None or (count(size) and size <= MAX_VOCABULARY)
            for name, size in (
                ("input_size", signature.input_size),
                ("hidden_size", signature.hidden_size),
                ("untrained", signature.untrained),
            )
        },
        "role": isinstance(signature.role, str) and signature.role in ROLES,
        "graphs": isinstance(signature.graphs, Mapping)
        and all(map(is_file_name, signature.graphs.values()))
        and (signature.role == STEP or not signature.graphs),
        "layers": all(isinstance(layer, Mapping) for layer in signature.layers),
        "adapters": signature.adapters is None
        or (
            0 < len(signature.adapters) <= MOST_ADAPTERS
            and all(isinstance(name, str) and ADAPTER_NAME.fullmatch(name) for name in signature.adapters)
            and len(set(signature.adapters)) == len(signature.adapters)
            and StateSpec(ADAPTER, "int32", (BATCH,)) in signature.states
        ),
    }
    problems = [f"a bad value of {key}" for key, good in checks.items() if not good]
    if not problems and not all(token(t) for t in (*signature.eos_tokens, signature.bos_token or 0)):
        problems = ["a bad value of bos_token or eos_tokens"]
    if not problems and signature.source is not None:
        chained = [spec.name for spec in signature.chained]
        problems = signature.source.problems(signature.vocab_size, chained, MAX_VOCABULARY)
    elif not problems and (signature.constant or signature.role == ENCODER):
        problems = ["states or role of a translator, without its keys"]
    return problems
