"""The base of the kinds of positions. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.tagged import Kind
from t2r_export.config.validation import MAX_TURNED, need


@dataclass(frozen=True)
class PositionConfig(Kind):
    """Where a sense of order comes from: vectors added to the embeddings, rotations of q and k, or distances in scores.

    A kind is a config, a class in t2r_export.model.positions with the hook of its place, and a line in `POSITIONS`.
    """

    TABLE: ClassVar[str] = "t2r_export.config.positions:POSITIONS"
    embeds: ClassVar[bool] = False  # it is a stack's; the others are attention's
    rotates: ClassVar[bool] = False
    biases: ClassVar[bool] = False  # it changes scores
    adds: ClassVar[bool] = False  # what it adds to scores depends on the distance alone

    @property
    def end(self) -> int | None:
        """The number of positions; None where they do not end."""
        return None

    def check(self, width: int) -> None:
        """Refuse with a UserError a width of rows, or a size of heads, that the positions cannot have."""


def check_rotated(name: str, value: int, kind: str) -> None:
    """Half as many angles as `value`, in a table that is there before any weight is."""
    need(
        isinstance(value, int) and value > 0 and value % 2 == 0 and value <= MAX_TURNED,
        f"an even {name} of at most {MAX_TURNED} for {kind} positions",
        value,
        f"correct {name}",
    )
