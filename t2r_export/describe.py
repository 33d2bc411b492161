"""Describe a checkpoint or an exported graph without running it: `t2r inspect`.

A model and its exported graph have the same description.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from t2r_export.config.finetune import FAR_SHARES
from t2r_export.config.layer import LayerConfig, described
from t2r_export.config.layer_numbers import ranges
from t2r_export.config.model import EncoderConfig
from t2r_export.config.parts import PartConfig
from t2r_export.config.plain import from_plain
from t2r_export.config.validation import MAX_LAYERS
from t2r_export.graph.contents import contents
from t2r_export.paths import resolved
from t2r_runtime.contract.signature import PREFIX, Signature, wrap_length
from t2r_runtime.contract.source import Source
from t2r_runtime.contract.state_spec import StateSpec
from t2r_runtime.errors import UserError
from t2r_runtime.outputs import GRAPHS

if TYPE_CHECKING:
    from t2r_export.model.parts.base import Part

CACHE_BYTES = 4  # per value of the float32 key/value cache that states are compared with


@dataclass(frozen=True)
class Description:
    """Output of `t2r inspect`."""

    file: str
    kind: str  # checkpoint | graph
    parameters: int
    active_parameters: int  # read per token
    layers: list[dict[str, Any]]  # configs; mixing parts have `fold`, their fold status
    states: list[StateSpec]
    state_bytes: int  # per sequence, at the start
    growth_bytes: int  # per token
    break_even: int | None  # tokens from which a key/value cache would be larger; None if no layer was converted
    max_positions: int | None
    named_positions: int | None  # max_position_embeddings of an imported rotary model
    past_end: str | None
    vocab_size: int
    special_tokens: dict[str, Any]
    details: dict[str, Any]  # of a graph: opset, operators, metadata; of a checkpoint: provenance
    notes: tuple[str, ...] = ()  # parts of an imported folder that were not used

    @property
    def memory(self) -> str:
        """`constant`, or `grows` with every token."""
        return "grows" if self.growth_bytes else "constant"

    @property
    def memory_reason(self) -> str:
        """The layers whose states grow with every token, by kind."""
        grown: dict[str, list[int]] = {}
        for number, layer in enumerate(self.layers):
            for part in _read(layer).mixers:
                if part.grows and part.group == "layers":
                    grown.setdefault(part.label, []).append(number)
        found = (f"layer{'s' * bool(n[1:])} {ranges(n)} ({kind})" for kind, n in grown.items())
        return ", ".join(found) if grown else "all states have a fixed size"

    @property
    def reach(self) -> str:
        """Range of positions."""
        wrap = wrap_length(self.past_end or "refuse")
        if wrap is not None:
            return f"no end, absolute positions modulo {wrap}"
        if self.max_positions is None:
            return "no end" + (
                f"; its config.json names {self.named_positions} positions" if self.named_positions else ""
            )
        clamped = self.past_end == "clamp"
        return f"{self.max_positions} positions" + (", then its last one" if clamped else "")

    @property
    def rows(self) -> list[tuple[tuple[str, ...], int]]:
        """Per mixer: kind, options, feed-forward and fold status; layer number."""
        return [(row, number) for number, layer in enumerate(self.layers) for row in _rows(layer, "layers")]

    @property
    def sources(self) -> list[tuple[tuple[str, ...], int]]:
        """Per cross-attention of a translator: kind, options and fold status; layer number."""
        rows = [(row, number) for number, layer in enumerate(self.layers) for row in _rows(layer, "crosses")]
        return [(row[:2] + row[3:], number) for row, number in rows]

    def to_dict(self) -> dict[str, Any]:
        states = [
            {**asdict(s), "bytes": s.bytes(), "bytes_per_token": s.bytes(length=1) - s.bytes()} for s in self.states
        ]
        summary = {"memory": self.memory, "memory_reason": self.memory_reason, "reach": self.reach}
        return {**vars(self), "states": states, **summary}


def describe(path: str | Path, base: str | Path | None = None) -> Description:
    """Describe a model.pt, a Hugging Face folder, a .gguf, a model `hf:OWNER/NAME` or an exported graph; or an .adapter
    with its `base`.

    Raises:
        UserError: another kind of file, a damaged file, or a graph without t2r metadata.
    """
    path = resolved(path)
    return _graph(path) if path.suffix in GRAPHS and not path.is_dir() else _checkpoint(path, base)


def _named_positions(path: Path) -> int | None:
    """`max_position_embeddings` of a folder; imports of rotary models ignore it."""
    if not path.is_dir():
        return None
    found = json.loads((path / "config.json").read_text(encoding="utf-8")).get("max_position_embeddings")
    return found if isinstance(found, int) else None


def _checkpoint(path: Path, base: str | Path | None) -> Description:
    from t2r_export.checkpoints import checkpoint  # imports torch, which graphs do not need
    from t2r_export.model.parts.base import active_parameters

    loaded = checkpoint.load(path, base=base)
    model, config = loaded.model, loaded.config
    layers = [described(block.config, {n: _fold(block.parts[n]) for n in block.mixing}) for block in model.layers]
    states = model.state_spec()
    return Description(
        file=str(path),
        kind="checkpoint",
        parameters=sum(p.numel() for p in model.parameters()),
        active_parameters=active_parameters(model),
        layers=layers,
        states=states,
        **_memory(layers, states),
        max_positions=config.max_positions,
        named_positions=_named_positions(path) if config.rotates else None,
        past_end=None,
        vocab_size=config.vocab_size,
        special_tokens={"bos": config.bos_token, "eos": list(config.eos_tokens)},
        details={
            **({} if config.encoder is None else {"encoder": _encoder(config.encoder)}),
            **_reads(config.input_size),
            "positions": config.positions_summary,
            "generation": None if config.generation is None else config.generation.to_dict(),
            "tokenizer": loaded.tokenizer is not None,
            "sha256": loaded.sha256,
            **({} if base is None else {"adapter": _beside(path, loaded.files)}),
            **_shares(loaded.provenance),
            "provenance": loaded.provenance,
        },
        notes=loaded.warnings,
    )


def _beside(path: Path, files: Mapping[str, str]) -> str:
    """An adapter's size and base."""
    return f"{path.stat().st_size:,} bytes beside {', '.join(name for name in files if name != path.name)}"


def _shares(provenance: dict[str, Any]) -> dict[str, str]:
    """Entry for students with hybrid layers: shares after the last training, from untrusted provenance."""
    runs = provenance.get("finetune")
    last = runs[-1] if isinstance(runs, list) and runs and isinstance(runs[-1], dict) else {}
    rows = last.get(FAR_SHARES)
    if not isinstance(rows, list) or not rows or not all(map(_is_share, rows)):
        return {}
    found = ", ".join(f"layer {n} {ours:.2f}/{theirs:.2f}" for n, ours, theirs in rows)
    return {"attention in the sums / the teacher's beyond the window": found}


def _is_share(row: Any) -> bool:
    """Whether this is [layer, share, share]."""
    numbers = isinstance(row, list) and len(row) == 3 and all(type(x) in (int, float) for x in row)
    return numbers and type(row[0]) is int and 0 <= row[0] < MAX_LAYERS and all(0 <= x <= 1 for x in row[1:])


def _graph(path: Path) -> Description:
    content = contents(path)
    signature = Signature.from_metadata(content.metadata)
    layers = [_checked(dict(layer)) for layer in signature.layers]
    tokenizer = signature.tokenizer is not None
    fields = replace(signature, tokenizer=None, chat_template=None).to_metadata()
    short = {key: value for key, value in fields.items() if key != PREFIX + "tokenizer"}
    return Description(
        file=str(path),
        kind="graph",
        parameters=content.parameters,
        active_parameters=content.active,
        layers=layers,
        states=list(signature.states),
        **_memory(layers, signature.states),
        max_positions=signature.max_positions,
        named_positions=None,
        past_end=signature.past_end,
        vocab_size=signature.vocab_size,
        special_tokens={"bos": signature.bos_token, "eos": list(signature.eos_tokens)},
        details={
            "opset": content.opsets,
            "ir_version": content.ir_version,
            **({} if content.release is None else {"onnxruntime": f"{content.release} or later"}),
            "operators": dict(content.operators.most_common()),
            **_reads(signature.input_size),
            **({} if signature.source is None else _source(signature.source)),
            "batch": signature.batch or "any",
            "tokenizer": tokenizer,
            "chat_template": signature.chat_template is not None,
            "generation": signature.generation,
            "target": signature.target,
            "quantization": signature.quantization,
            "companions": sorted(signature.graphs),
            "producer": signature.producer,
            "metadata": short,
        },
        notes=signature.warnings,
    )


def _checked(layer: dict[str, Any]) -> dict[str, Any]:
    """A layer of untrusted metadata. Raises UserError unless it can be described."""
    parts = layer.get("parts") if isinstance(layer, dict) else None
    known = isinstance(parts, list) and all(isinstance(part, dict) for part in parts)
    if not known or not all(isinstance(part.get("fold", ""), str) for part in parts or []):
        expected = f"layers of parts in the metadata key {PREFIX}layers"
        raise UserError(expected, ascii(layer)[:200], "export the model again")
    _read(layer)
    return layer


def _read(layer: dict[str, Any]) -> LayerConfig:
    """The config of a described layer, without fold status."""
    parts = [{name: value for name, value in part.items() if name != "fold"} for part in layer["parts"]]
    return from_plain(LayerConfig, {**layer, "parts": parts}, "layer")


def _rows(layer: dict[str, Any], group: str) -> list[tuple[str, ...]]:
    """Per mixing part of the group: kind, options, feed-forwards of the layer, fold status."""
    config = _read(layer)
    after = [part for part in config.parts if not part.mixes]
    feed_forward = "; ".join(", ".join(filter(None, (part.kind, part.summary()))) for part in after) or "none"
    parts = [(part, plain.get("fold", "-")) for part, plain in zip(config.parts, layer["parts"], strict=True)]
    if not config.mixers and group == "layers":
        return [("none", "-", feed_forward, "-")]
    return [
        (part.label, part.summary() or "-", feed_forward, fold)
        for part, fold in parts
        if part.mixes and part.group == group
    ]


def _fold(part: Part) -> str:
    if part.config.folded:
        return "folded"
    obstacle = part.why_not_foldable()
    return f"not folded: {obstacle}" if obstacle else "not folded yet: export folds it"


def _encoder(encoder: EncoderConfig) -> str:
    """Summary of an encoder's layers."""
    parts: list[PartConfig] = [part for layer in encoder.layers for part in layer.mixers]
    kinds = Counter(", ".join(filter(None, (part.label, part.summary()))) for part in parts)
    return "; ".join(f"{count} layers of {kind}" for kind, count in kinds.items())


def _reads(input_size: int | None) -> dict[str, str]:
    """Entry for models and graphs that read vectors, not tokens."""
    return {} if input_size is None else {"reads": f"vectors of {input_size} elements"}


def _source(source: Source) -> dict[str, Any]:
    """The source interface of a graph."""
    return {
        "source": {
            "vocabulary": source.source_vocab_size,
            "longest": source.max_source or "no end",
            "start tokens": list(source.start_tokens),
            "banned tokens": list(source.banned_tokens),
        }
    }


def _memory(layers: Sequence[dict[str, Any]], states: Sequence[StateSpec]) -> dict[str, Any]:
    """Bytes of all states, and the text length from which key/value caches in their place would be larger.

    A kv head has K(V + 1) state values; a cache has 2V per token.
    """
    start = sum(s.bytes() for s in states)
    growth = sum(s.bytes(length=1) - s.bytes() for s in states)
    parts = [part for layer in layers for part in _read(layer).parts]
    cache = sum(part.cache_size * CACHE_BYTES for part in parts if not part.grows)
    return {
        "state_bytes": start,
        "growth_bytes": growth,
        "break_even": math.floor(start / cache) + 1 if cache else None,
    }
