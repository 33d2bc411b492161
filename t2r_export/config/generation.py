"""Default generation options of a model, stored in the graph's metadata (`t2r.generation`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from t2r_export.config.validation import fields, need
from t2r_runtime.contract.options import is_generation


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """Defaults for t2r_runtime.Sampling (decoder) or t2r_runtime.Beam (translator); None: unset."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    width: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    forced_end: bool | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram: int | None = None

    def check(self, translates: bool) -> None:
        """Raise UserError for values out of range, and for options of the other kind of model."""
        values = self.to_dict()
        need(is_generation(values, translates), "generation options within their ranges", values, "correct generation")

    def to_dict(self) -> dict[str, Any]:
        """The options that are set, by name."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> GenerationOptions:
        """Inverse of `to_dict`. Raises UserError for an unknown option."""
        return cls(**fields(cls, data, "generation"))
