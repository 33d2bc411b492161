"""Draft heads of checkpoints, imported as models of their own: the tensors `mtp.*` behind the model's.

They are a layer, a last norm, and what joins a token's embedding with a vector; embedding and head are the model's.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection

from t2r_export.checkpoints.importers.base import Fields, Importer
from t2r_export.checkpoints.importers.stored import Stored
from t2r_export.config.draft_head import DraftHeadConfig
from t2r_export.config.model import ModelConfig
from t2r_runtime.errors import UserError

MTP = ("mtp.", "model.mtp.")
SHARED = ("embed_tokens.weight", "lm_head.weight")
AS_THE_MODELS = ("layers.", "norm.")
# ours -> theirs
NAMES = {
    "joined": "model.mtp.fc",
    "token_norm": "model.mtp.pre_fc_norm_embedding",
    "hidden_norm": "model.mtp.pre_fc_norm_hidden",
}
NOTHING = re.compile(r"(?!)")


def of_head(trunk: Importer, family: str) -> Importer:
    """The importer of a family's draft heads. Raises UserError if it reads none."""
    keys = trunk.draft_head
    if keys is None:
        raise _absent("a family with draft heads that can be read (Qwen3.5, Qwen3-Next)", family)

    def config(fields: Fields) -> ModelConfig:
        fields.data |= keys
        model = trunk.config(fields)
        assert model.last_norm is not None
        same = {field.name: getattr(model, field.name) for field in dataclasses.fields(model)}
        return DraftHeadConfig(**same, hidden_norm=model.last_norm)

    return dataclasses.replace(trunk, config=config, buffers=NOTHING)


def head_tensors(stored: Collection[dict[str, Stored]], where: str) -> list[dict[str, Stored]]:
    """The tensors of a draft head, by the names that a model of its layers alone would have.

    Raises:
        UserError: there are none.
    """
    found = [{_renamed(name): tensor for name, tensor in one.items() if name.startswith(MTP)} for one in stored]
    if not any(found):
        raise _absent(f"a draft head (tensors {MTP[0]}*) in {where}", "none")
    shared = [{name: tensor for name, tensor in one.items() if name.endswith(SHARED)} for one in stored]
    return [*found, *shared]


def _renamed(name: str) -> str:
    rest = name.removeprefix("model.").removeprefix("mtp.")
    return f"model.{rest}" if rest.startswith(AS_THE_MODELS) else f"model.mtp.{rest}"


def _absent(expected: str, received: str) -> UserError:
    return UserError(expected, received, "leave out --draft-head, or use a model with one")
