"""Layers: sequences of parts, sequential or parallel. Imports without torch."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from t2r_export.config.mixers import MixerConfig
from t2r_export.config.options import check_values
from t2r_export.config.parts import PARTS, InsideConfig, PartConfig
from t2r_export.config.plain import to_plain
from t2r_export.config.positions import RotaryConfig
from t2r_export.config.validation import need

MAX_PARTS = 16


@dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """The parts of a layer in order of computation.

    With `rk2` the layer is a block of the ODE Transformer, a Runge-Kutta step of second order (Li et al. 2022, arXiv
    2203.09176): for f(x) = x + F(x) of the parts it gives x + (F(x) + F(x + F(x))) / 2 = (x + f(f(x))) / 2. Its
    parts run twice, each time with separate states.
    """

    parts: tuple[PartConfig, ...]
    rk2: bool = False

    def __post_init__(self) -> None:
        check_values(self)
        parts = self.parts
        need(
            1 <= len(parts) <= MAX_PARTS and all(isinstance(part, PartConfig) for part in parts),
            f"1 to {MAX_PARTS} parts in a layer",
            len(parts),
            "correct the layer",
        )
        need(not parts[0].beside, "a first part that is not beside another", parts[0].kind, "correct the layer")
        pairs = [pair for pair in itertools.pairwise(parts) if pair[1].beside]
        others = ("norm_sum", "residual_gate")
        named = [name for pair in pairs for part in pair for name in others if getattr(part, name) is not None]
        named += ["no residual" for pair in pairs for part in pair if not part.residual]
        expected = "parallel parts with residual sums and without norm_sum"
        need(not named, expected, "".join(named[:1]), "correct the config")
        last = parts[-1].aside or any(first.aside and second.beside for first, second in itertools.pairwise(parts))
        need(not last, "a part that reads the stream behind a part aside", "none", "correct the layer")
        if self.rk2:
            twice = next((p for p in parts if p.reads_source or p.borrows or not p.residual or p.norm_sum), None)
            expected = "parts with a residual, without norm_sum, a source or another layer's weights in an rk2 layer"
            need(twice is None, expected, "" if twice is None else twice.label, "leave out rk2")

    @property
    def mixers(self) -> tuple[PartConfig, ...]:
        """The parts in which tokens interact."""
        return tuple(part for part in self.parts if part.mixes)

    def replaced(self, old: PartConfig, new: PartConfig | None) -> LayerConfig:
        """A copy with `old` replaced, or removed if `new` is None."""
        parts = [new if part is old else part for part in self.parts]
        return dataclasses.replace(self, parts=tuple(part for part in parts if part is not None))

    def for_length(self, length: int | None) -> LayerConfig:
        """A copy with the rotary positions for texts of this length; see `ScalingConfig.for_length`."""
        turned = [
            dataclasses.replace(part, positions=own.for_length(length))  # type: ignore[call-arg]
            if isinstance(own := getattr(part, "positions", None), RotaryConfig)
            else part
            for part in self.parts
        ]
        return dataclasses.replace(self, parts=tuple(turned))

    def with_mixer(self, mixer: MixerConfig | PartConfig, group: str = "layers") -> LayerConfig:
        """A copy with another mixer in the first mixing part of the group `layers` or `crosses`.

        A `MixerConfig` replaces the mixer inside attention; a `PartConfig` replaces the part but keeps its norms.
        """
        old = next(part for part in self.parts if part.group == group and part.mixes)
        return self.replaced(old, mixed(old, mixer))


def mixed(part: PartConfig, mixer: MixerConfig | PartConfig) -> PartConfig:
    """`part` with another mixer inside, or another part with the norms of `part`."""
    if isinstance(mixer, MixerConfig):
        assert isinstance(part, InsideConfig), "only attention has a mixer inside"
        return dataclasses.replace(part, inside=mixer)
    kept = {field.name: getattr(part, field.name) for field in dataclasses.fields(PartConfig)}
    return dataclasses.replace(mixer, **kept)


def mixer_of(part: PartConfig) -> MixerConfig | PartConfig:
    """The mixer that users select: the one inside attention, or the part itself."""
    return part.inside if isinstance(part, InsideConfig) else part


def check_borrowed(layers: Sequence[LayerConfig]) -> None:
    """Raise UserError if a part borrows what the layers below do not have."""
    passed: list[PartConfig] = []
    for number, layer in enumerate(layers):
        for part in layer.parts:
            part.check_below(passed, number)
            passed.append(part)
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
            same = f"equal numbers of heads in {what}s that share attention weights"
            need(heads[0] == heads[1], same, heads, "correct the heads")


def mapped(layers: Sequence[LayerConfig], change: Callable[[int, LayerConfig], LayerConfig]) -> tuple[LayerConfig, ...]:
    """Apply `change` to the number and config of each layer."""
    return tuple(change(number, layer) for number, layer in enumerate(layers))


def described(layer: LayerConfig, folds: Mapping[int, str]) -> dict[str, Any]:
    """A layer as plain data for graph metadata and reports.

    Args:
        folds: fold status by part number.
    """
    data: dict[str, Any] = to_plain(layer, short=True)
    for number, fold in folds.items():
        data["parts"][number]["fold"] = fold
    return data


def kinds_of(layer: Mapping[str, Any]) -> list[str]:
    """The kinds of a described layer's self-attention mixers. Parts of other versions may have unknown options.

    Raises:
        UserError: no parts, or a part of unknown kind.
    """
    parts = layer.get("parts")
    known = isinstance(parts, list) and all(isinstance(part, Mapping) and part.get("kind") in PARTS for part in parts)
    need(known, "a described layer with parts of known kinds", str(parts)[:80], "export the graph again")
    assert isinstance(parts, list)
    mixing = [part for part in parts if (kind := PARTS[part["kind"]].config).mixes and kind.group == "layers"]
    return [str(part.get("inside", part)["kind"]) for part in mixing]
