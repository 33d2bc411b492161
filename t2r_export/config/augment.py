"""What is changed of pairs while a translator is trained on them, as a text: `numbers=0.5,join=0.2`. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from t2r_export.config.options import check_values, made, option, read_options

FORM = "NAME=SHARE,NAME=SHARE"


@dataclass(frozen=True, kw_only=True)
class AugmentConfig:
    """Shares of pairs, or of batches, from 0 to 1. What each does says t2r_export.data.augment."""

    numbers: float = option("Pairs whose numbers, dates, amounts and times are others.", 0.0, bounds=(0, 1))
    names: float = option("Pairs whose names are others.", 0.0, bounds=(0, 1))
    join: float = option("Batches whose pairs are joined, two to four in a line.", 0.0, bounds=(0, 1))
    stop: float = option("Pairs without their final stop.", 0.0, bounds=(0, 1))
    capitals: float = option("Pairs in capitals.", 0.0, bounds=(0, 1))
    small: float = option("Pairs whose source has no capitals.", 0.0, bounds=(0, 1))

    def __post_init__(self) -> None:
        check_values(self)


def read_augment(text: str) -> AugmentConfig:
    """The config that a text says; of an empty text the one that changes nothing.

    Raises:
        UserError: another form, an unknown name, or a share that cannot be.
    """
    return made(AugmentConfig, read_options(text, FORM), "shares")
