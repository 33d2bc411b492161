"""Data augmentation of sentence pairs, spelled `numbers=0.5,join=0.2`. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from t2r_export.config.options import check_values, made, option, read_options

FORM = "NAME=SHARE,NAME=SHARE"


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Probability of each augmentation. t2r_export.batches.augment implements them."""

    numbers: float = option("Replace the numbers, dates, amounts and times of a pair.", 0.0, bounds=(0, 1))
    names: float = option("Replace the names of a pair.", 0.0, bounds=(0, 1))
    titles: float = option("Replace a name of a pair by a title and a surname.", 0.0, bounds=(0, 1))
    join: float = option("Concatenate the pairs of a batch, two to four each.", 0.0, bounds=(0, 1))
    stop: float = option("Remove the final full stop of a pair.", 0.0, bounds=(0, 1))
    capitals: float = option("Uppercase a pair.", 0.0, bounds=(0, 1))
    small: float = option("Lowercase the source of a pair.", 0.0, bounds=(0, 1))

    def __post_init__(self) -> None:
        check_values(self)


def read_augment(text: str) -> AugmentConfig:
    """Parse a spelled config; an empty text disables all augmentation.

    Raises:
        UserError: malformed text, unknown names or invalid probabilities.
    """
    return made(AugmentConfig, read_options(text, FORM), "shares")
