"""A layer as one value: its parts, one after the other or beside each other. Imports without torch."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t2r_export.config.mixers import MixerConfig
from t2r_export.config.parts import PARTS, InsideConfig, PartConfig
from t2r_export.config.plain import to_plain
from t2r_export.config.validation import need

MAX_PARTS = 16


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """The parts of a layer, in the order in which they are computed."""

    parts: tuple[PartConfig, ...]

    def __post_init__(self) -> None:
        parts = self.parts
        need(
            1 <= len(parts) <= MAX_PARTS and all(isinstance(part, PartConfig) for part in parts),
            f"1 to {MAX_PARTS} parts in a layer",
            len(parts),
            "correct the layer",
        )
        need(not parts[0].beside, "a first part that stands beside no other", parts[0].kind, "correct the layer")
        pairs = [pair for pair in itertools.pairwise(parts) if pair[1].beside]
        wrong = next((part for pair in pairs for part in pair if part.norm_sum or not part.residual), None)
        need(
            wrong is None,
            "a residual and no norm behind the sum where parts stand beside each other",
            "a norm behind it" if wrong is not None and wrong.norm_sum else "no residual",
            "correct the config",
        )

    @property
    def mixers(self) -> tuple[PartConfig, ...]:
        """The parts through which tokens see each other."""
        return tuple(part for part in self.parts if part.mixes)

    def replaced(self, old: PartConfig, new: PartConfig | None) -> LayerConfig:
        """This layer with another part in the place of `old`, or with none."""
        parts = [new if part is old else part for part in self.parts]
        return dataclasses.replace(self, parts=tuple(part for part in parts if part is not None))

    def with_mixer(self, mixer: MixerConfig | PartConfig, group: str = "layers") -> LayerConfig:
        """This layer with another mixer in its first part of the group `layers` or `crosses`.

        A `MixerConfig` takes the place of what is inside attention; a part takes the place of the part, with its norms.
        """
        old = next(part for part in self.parts if part.group == group and part.mixes)
        return self.replaced(old, mixed(old, mixer))


def mixed(part: PartConfig, mixer: MixerConfig | PartConfig) -> PartConfig:
    """A part with another mixer inside, or another part with this one's norms."""
    if isinstance(mixer, MixerConfig):
        assert isinstance(part, InsideConfig), "only attention has a mixer inside"
        return dataclasses.replace(part, inside=mixer)
    kept = {field.name: getattr(part, field.name) for field in dataclasses.fields(PartConfig)}
    return dataclasses.replace(mixer, **kept)


def mixer_of(part: PartConfig) -> MixerConfig | PartConfig:
    """What a person chooses of a part: what is inside attention, or the part itself."""
    return part.inside if isinstance(part, InsideConfig) else part


def check_borrowed(layers: Sequence[LayerConfig]) -> None:
    """Refuse with a UserError attention that shares weights which the layer below does not have."""
    for number, layer in enumerate(layers):
        for part in layer.parts:
            if not part.borrows:
                continue
            assert isinstance(part, InsideConfig)
            below = [other for other in layers[number - 1].parts if other.group == part.group] if number else []
            lender = next((other for other in below if other.lends and isinstance(other, InsideConfig)), None)
            mixing = [other for other in below if other.mixes]
            received = ", ".join(", ".join(filter(None, (other.label, other.summary()))) for other in mixing)
            what = "layer" if part.group == "layers" else "cross layer"
            need(
                lender is not None,
                f"a softmax layer without memory below {what} {number}, which shares its attention weights",
                received or "none",
                "choose another layer",
            )
            assert lender is not None
            heads = [(one.heads, one.kv_heads) for one in (lender, part)]
            same = f"as many heads in {what}s that share attention weights"
            need(heads[0] == heads[1], same, heads, "correct the heads")


def mapped(layers: Sequence[LayerConfig], change: Callable[[int, LayerConfig], LayerConfig]) -> tuple[LayerConfig, ...]:
    """The layers with `change` of each one's number and config in its place."""
    return tuple(change(number, layer) for number, layer in enumerate(layers))


def described(layer: LayerConfig, folds: Mapping[int, str]) -> dict[str, Any]:
    """A layer for a graph's metadata and for a person: its parts, and what became of those that mix.

    Args:
        folds: what became of the part of that number, or can.
    """
    data: dict[str, Any] = to_plain(layer, short=True)
    for number, fold in folds.items():
        data["parts"][number]["fold"] = fold
    return data


def kinds_of(layer: Mapping[str, Any]) -> list[str]:
    """The kinds of the mixers in a described layer that read the text, as a person chooses them: of any graph, whose
    parts may have other options than today's.

    Raises:
        UserError: a layer without parts, or a part of no known kind.
    """
    parts = layer.get("parts")
    known = isinstance(parts, list) and all(isinstance(part, Mapping) and part.get("kind") in PARTS for part in parts)
    need(known, "a described layer with parts of known kinds", str(parts)[:80], "export the graph again")
    assert isinstance(parts, list)
    mixing = [part for part in parts if (kind := PARTS[part["kind"]].config).mixes and kind.group == "layers"]
    return [str(part.get("inside", part)["kind"]) for part in mixing]
