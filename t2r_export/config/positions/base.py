"""The base of the kinds of positions. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from t2r_export.config.tagged import Kind
from t2r_export.config.validation import MAX_TURNED, need


@dataclass(frozen=True)
class PositionConfig(Kind):
    """A position encoding: vectors added to the embeddings, rotations of q and k, or distance terms in scores.

    A kind is a config, a class in t2r_export.model.positions with the hook of its place, and a line in `POSITIONS`.
    """

    TABLE: ClassVar[str] = "t2r_export.config.positions:POSITIONS"
    embeds: ClassVar[bool] = False  # belongs to a stack; other kinds belong to attention
    rotates: ClassVar[bool] = False
    biases: ClassVar[bool] = False  # changes scores
    adds: ClassVar[bool] = False  # the term added to scores depends on the distance only

    @property
    def end(self) -> int | None:
        """The number of positions; None: unlimited."""
        return None

    def check(self, width: int) -> None:
        """Raise UserError if the positions do not support this width of rows or size of heads."""


def check_rotated(name: str, value: int, kind: str) -> None:
    """Raise UserError unless `value` is even and bounded: a table of its angles is allocated before any weights."""
    need(
        isinstance(value, int) and value > 0 and value % 2 == 0 and value <= MAX_TURNED,
        f"an even {name} of at most {MAX_TURNED} for {kind} positions",
        value,
        f"correct {name}",
    )
