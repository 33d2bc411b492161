"""Config of a draft head: layers behind a trunk that predict the token after the next one."""

from __future__ import annotations

from dataclasses import dataclass

from t2r_export.config.model import ModelConfig
from t2r_export.config.norm import NormConfig


@dataclass(frozen=True, kw_only=True)
class DraftHeadConfig(ModelConfig):
    """A decoder whose layers read W [norm(e), norm(h)], with e a token's embedding and h a vector of its width.

    h is what the trunk's head read before the token, or this decoder's own (`t2r_export.model.draft_head`).
    """

    hidden_norm: NormConfig  # of both norms
