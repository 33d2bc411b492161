"""Mixer configs of students: given options, and defaults for the rest. Imports without torch.

Used by the command line, the Python API and recipes, so that equal options give equal students.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from t2r_export.config.mixers import HybridConfig, LinearConfig, MixerConfig
from t2r_export.config.mixers.linear import usual_guard
from t2r_export.config.model import ModelConfig
from t2r_export.config.options import written
from t2r_export.config.parts import PartConfig
from t2r_export.config.uniform import MIXERS, mixer_from_dict
from t2r_export.config.validation import advice, entry
from t2r_runtime.errors import UserError

GATE = {"update_rule": "gated", "gate": "data"}
MEASURED = {"feature_map": ("relu", "relu2"), "normalizer": ("z",)}  # with rotated features, defaults first
QUIET, QUIET_NEEDS = {"map_scale": 0.02}, {"merge": "sum", "feature_map": "relu"}  # of hybrid layers


def student_mixer(
    kind: str, given: Mapping[str, Any], model: ModelConfig | None = None
) -> tuple[MixerConfig | PartConfig, dict[str, Any]]:
    """The config of a student's mixer, and the defaults that `suited` selected.

    Args:
        kind: a name in MIXERS.
        given: user options; a guard is a mapping with `kind`, `eps` or both.
        model: the teacher; None: a decoder without rotary positions.

    Raises:
        UserError: an unknown kind, or an unknown, missing or invalid option.
    """
    cls = entry("a mixer", kind, MIXERS).config
    of_layer = {field.name for field in dataclasses.fields(PartConfig)}  # norms and residual are those of the layer
    options = {field.name: field for field in dataclasses.fields(cls) if field.name not in of_layer}
    stray = [name for name in given if name not in options]
    if stray:
        known = ", ".join(options) or "none"
        do = advice(stray[0], options, "leave it out")
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
    """Default options that depend on the model and on the given options. Arguments as in `student_mixer`.

    Linear attention gets a data-dependent gate: without one it is less accurate at the training length and fails beyond
    (docs/quality.md). In rotary models the features rotate after the map, which folds, and each pair of features that
    rotates together has its own gate. Exceptions:

    - persistent memory, which requires ungated sums;
    - translators: sentences are short, and ungated students are within 0.5 BLEU of the teacher; merged layers with a
      gate would also need separate sums of the source;
    - rotated features with feature maps or normalizers that were not measured.

    A hybrid layer starts as its window alone, and has the same gates and rotation in rotary models; elsewhere a gate
    beside a window made no measurable difference.
    """
    if model is not None and model.encoder is not None:
        return {}
    turns = model is not None and model.rotates
    if kind == LinearConfig.kind:
        return _gated(given, turns)
    if kind != HybridConfig.kind:
        return {}
    loud = "map_scale" in given or any(given.get(name, value) != value for name, value in QUIET_NEEDS.items())
    return {**(_gated(given, turns) if turns else {}), **({} if loud else QUIET)}


def _gated(given: Mapping[str, Any], turns: bool) -> dict[str, Any]:
    """The options of a gate; with `turns` also those of rotated features."""
    rule, gate = given.get("update_rule", "gated"), given.get("gate", "data")
    gated = "gated" in str(rule) and gate != "none" and not given.get("memory")
    chosen: dict[str, Any] = {name: value for name, value in GATE.items() if gated and name not in given}
    size = given.get("feature_size", LinearConfig.__dataclass_fields__["feature_size"].metadata["usual"])
    measured = all(given.get(name, values[0]) in values for name, values in MEASURED.items())
    if not gated or rule != "gated" or not turns or not measured:
        return chosen
    if "positions" not in given and isinstance(size, int) and size > 1:
        odd = size % 2 and "rotary_size" not in given  # features rotate in pairs
        chosen.update({"positions": "after", **({"rotary_size": size - 1} if odd else {})})
    all_options = {**given, **chosen}
    whole = all_options.get("positions") == "after" and "rotary_size" not in all_options
    pairs = whole and "gate" in chosen and not given.get("moving_average")
    return {**chosen, "gate": "pair"} if pairs else chosen


def reason(chosen: Mapping[str, Any]) -> str:
    """Describe the selected defaults and their reasons in one line."""
    why = ["without a gate, linear attention is less accurate and fails on texts longer than those of training"]
    why = why * ("update_rule" in chosen or "gate" in chosen)
    why += ["rotation after the feature map lets export merge the map into the projections"] * ("positions" in chosen)
    why += ["a gate for every two features was more accurate than one for every head"] * (chosen.get("gate") == "pair")
    why += ["a hybrid layer starts as its window alone"] * ("map_scale" in chosen)
    return f"default options: {written(chosen)} ({'; '.join(why)}; see 'linear: the defaults' in docs/mixers.md)"
