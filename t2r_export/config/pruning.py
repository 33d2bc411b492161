"""Options of `t2r prune`: the share to remove of each kind. Imports without torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from t2r_export.config.options import check_values, option
from t2r_export.config.validation import need


def _share(help: str, versions: str) -> float | None:
    """A share between 0 and 1. Args: versions: "module:function" under t2r_export.pruning that offers smaller parts."""
    made: float | None = option(help, None, between=(0, 1), versions=f"t2r_export.pruning.{versions}")
    return made


@dataclass(frozen=True)
class PruneConfig:
    """Minimum share of the bytes to remove, by kind. Kinds are pruned in the order of the fields."""

    layers: float | None = _share("Share of the layers, by their weights.", "layers:versions")
    heads: float | None = _share("Share of the heads of attention, with their keys and values.", "parts:heads")
    ffn: float | None = _share("Share of the features of dense feed-forwards.", "parts:ffn")
    state: float | None = _share("Share of the channels of linear states: of the features of q and k.", "parts:state")
    rank: float | None = _share("Share of dense feed-forwards, whose matrices become products.", "factors:versions")

    def __post_init__(self) -> None:
        check_values(self)
        need(bool(self.shares), f"a share of {', '.join(KINDS)}", "none", "name at least one, such as ffn=0.25")

    @property
    def shares(self) -> dict[str, float]:
        """The shares that were given, by kind."""
        given = {name: getattr(self, name) for name in KINDS}
        return {name: share for name, share in given.items() if share is not None}


KINDS: dict[str, str] = {  # kind -> "module:function"
    field.name: field.metadata["versions"] for field in dataclasses.fields(PruneConfig)
}
