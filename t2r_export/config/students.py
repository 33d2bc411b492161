"""The mixer of a student: the options that somebody chose, and defaults for the rest. Imports without torch.

The command line, the Python API and recipes all take their mixers from here, so that the same options make
the same student everywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from t2r_export.config.mixers import LinearConfig, MixerConfig
from t2r_export.config.mixers.linear import usual_guard
from t2r_export.config.model import ModelConfig
from t2r_export.config.options import written
from t2r_export.config.parts import PartConfig
from t2r_export.config.uniform import MIXERS, mixer_from_dict
from t2r_export.config.validation import entry
from t2r_runtime.errors import UserError, did_you_mean

GATE = {"update_rule": "gated", "gate": "data"}
MEASURED = {"feature_map": "relu", "normalizer": "z"}  # with features that rotate


def student_mixer(
    kind: str, given: Mapping[str, Any], model: ModelConfig | None = None
) -> tuple[MixerConfig | PartConfig, dict[str, Any]]:
    """The config of a mixer, and what of it the defaults for this model chose (see `suited`).

    Args:
        kind: a name in MIXERS. given: options that somebody chose; a guard is a mapping with `kind`, `eps` or both.
        model: the model that is converted; None: a decoder without rotary positions.

    Raises:
        UserError: an unknown kind, an option that the kind does not have, or one that is missing or impossible.
    """
    cls = entry("a mixer", kind, MIXERS).config
    of_layer = {field.name for field in dataclasses.fields(PartConfig)}  # norms and residual stay the layer's
    options = {field.name: field for field in dataclasses.fields(cls) if field.name not in of_layer}
    stray = [name for name in given if name not in options]
    if stray:
        known = ", ".join(options) or "none"
        do = did_you_mean(stray[0], options, "leave it out")
        raise UserError(f"options of the mixer {kind} ({known})", ", ".join(stray), do)
    usual = {
        name: field.metadata.get("usual")
        for name, field in options.items()
        if name not in given and field.default is dataclasses.MISSING
    }
    missing = [name for name, value in usual.items() if value is dataclasses.MISSING]
    if missing:
        raise UserError(f"{', '.join(missing)} for the mixer {kind}", "none", f"name {' and '.join(missing)}")
    chosen = suited(kind, given, model)
    values = {**usual, **chosen, **given}
    if isinstance(values.get("guard"), Mapping):
        values["guard"] = {"eps": usual_guard(values.get("positions")).eps, **values["guard"]}
    return mixer_from_dict({"kind": kind, **values}), chosen


def suited(kind: str, given: Mapping[str, Any], model: ModelConfig | None = None) -> dict[str, Any]:
    """Defaults that depend on the model and on the other options.

    Linear attention forgets by a gate that each token sets: without one it predicts worse at the length of the
    training texts, and is lost past it (docs/quality.md). A rotary model's features rotate behind the map, which
    folds. Exceptions:

    - a persistent memory, which goes with plain sums alone;
    - translators: their texts are sentences, and without a gate the student is 0.5 BLEU from its teacher. Merged layers
      would also have to keep the source's sums apart;
    - hybrid layers: beside a softmax window the gate changed nothing measurable at the training length;
    - rotations behind other maps or normalizers than those that were measured.

    Args:
        kind, given, model: as in `student_mixer`.
    """
    if kind != LinearConfig.kind or (model is not None and model.encoder is not None):
        return {}
    rule, gate = given.get("update_rule", "gated"), given.get("gate", "data")
    gated = "gated" in str(rule) and gate != "none" and not given.get("memory")
    chosen = {name: value for name, value in GATE.items() if gated and name not in given}
    if not gated or rule != "gated" or model is None or not model.rotates or "positions" in given:
        return chosen
    size = given.get("feature_size", LinearConfig.__dataclass_fields__["feature_size"].metadata["usual"])
    if (
        not isinstance(size, int)
        or size < 2
        or any(given.get(name, value) != value for name, value in MEASURED.items())
    ):
        return chosen
    odd = size % 2 and "rotary_size" not in given  # features rotate in pairs
    return {**chosen, "positions": "after", **({"rotary_size": size - 1} if odd else {})}


def reason(chosen: Mapping[str, Any]) -> str:
    """One line for a person: the defaults that were chosen, and why."""
    why = ["without a gate, linear attention is less accurate and fails on texts longer than those of training"]
    why = why * ("update_rule" in chosen or "gate" in chosen)
    why += ["features that rotate behind the map can be folded"] * ("positions" in chosen)
    return f"default options: {written(chosen)} ({'; '.join(why)}; see docs/mixers.md)"
