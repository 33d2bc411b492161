"""Output forms of `t2r save`, and their options. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from t2r_export.config.options import check_values, option

PRECISIONS = ("float32", "float16")
WEIGHTS = "Weight precision; float16 halves the size."
CARD = "Output of `t2r {} --json`, for the model card."


@dataclass(frozen=True, kw_only=True)
class TransformersForm:
    """A folder that transformers loads."""

    weights: str = option(WEIGHTS, "float32", PRECISIONS)
    verify: Path | None = option(CARD.format("verify MODEL GRAPH"), None)
    evaluate: Path | None = option(CARD.format("evaluate MODEL TEXT"), None)
    bench: Path | None = option(CARD.format("bench GRAPH"), None)

    def __post_init__(self) -> None:
        check_values(self)


@dataclass(frozen=True, kw_only=True)
class CheckpointForm:
    """A model.pt."""

    weights: str = option(WEIGHTS, "float32", PRECISIONS)

    def __post_init__(self) -> None:
        check_values(self)


@dataclass(frozen=True, kw_only=True)
class WebForm:
    """A folder for a web server, with sizes and hashes."""

    page: Path | None = option("Folder of a web page to copy.", None)
    peer: Path | None = option("Second graph for the page to run.", None)


@dataclass(frozen=True)
class PlainForm:
    """A form without options."""


TRANSFORMERS, MARIAN, PEGASUS, OURS = "transformers", "marian", "pegasus", "t2r"
ADAPTER, WEB, COMPILED = "adapter", "web", "compiled"
FORMS: dict[str, type] = {
    TRANSFORMERS: TransformersForm,
    MARIAN: PlainForm,
    PEGASUS: PlainForm,
    OURS: CheckpointForm,
    ADAPTER: PlainForm,
    WEB: WebForm,
    COMPILED: PlainForm,
}
