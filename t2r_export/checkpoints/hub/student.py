"""The config.json of a model without a native transformers class, which modeling_t2r.py beside it computes.

`COVERED` lists what that file computes; anything else is refused by name, also a field that a config gets later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from t2r_export.checkpoints.checkpoint import Checkpoint
from t2r_export.checkpoints.hub.code import CODE
from t2r_export.checkpoints.importers.t2r import MODEL_TYPE, RECORD
from t2r_export.config.model import VERSION, ModelConfig
from t2r_export.config.parts import PartConfig
from t2r_export.config.plain import to_plain
from t2r_export.model.positions.rotary import rotary_frequencies
from t2r_export.model.stack import rotations
from t2r_runtime.errors import UserError, shown

CLASS = "T2RForCausalLM"
PART = "norm norm_after norm_sum multiplier residual beside"
SUMS = "feature_size guard gate rotary_size frequency_scale positions"
# kind -> fields that modeling_t2r.py computes with any value; the others must have their defaults
COVERED = {
    "attention": f"""{PART} heads kv_heads head_size qkv_bias output_bias norm_eps inside qk_norm qk_norm_wide
        qk_norm_after gate gate_per_head scale position_scale sink softcap positions""",
    "dense": f"{PART} size activation gated bias",
    "short_conv": f"{PART} taps bias",
    "softmax": "",
    "window": "window sinks dilation local",
    "linear": f"""{SUMS} shared_features query_scale normalizer update_rule moving_average conv output_gate
        map_init""",
    "hybrid": f"{SUMS} window sinks merge map_scale output_gate",
    "rotary": "theta scaling size",
    "learned": "max_positions",
    "sinusoidal": "",
}
MAPS = ("relu", "relu2", "elu", "hedgehog", "dpfp")
# fields that it computes with these values
LIMITED: dict[tuple[str, str], tuple[Any, ...]] = {
    ("linear", "feature_map"): MAPS,
    ("hybrid", "feature_map"): MAPS,
    ("hybrid", "update_rule"): ("linear", "gated"),
}
LAYER = "parts"
MODEL = """layers positions embedding_scale embedding_norm last_norm vocab_size width tied_head head_bias logit_scale
    logit_softcap generation bos_token eos_tokens"""


def not_covered(config: ModelConfig) -> list[str]:
    """Features that modeling_t2r.py does not compute, each once."""
    data = to_plain(config, short=True)
    found = [*_others("model", data, MODEL), *_kind(data.get("positions"))]
    for layer in data["layers"]:
        found += _others("layer", layer, LAYER)
        for part in layer["parts"]:
            found += _kind(part)
            found += [*_kind(part.get("inside")), *_kind(part.get("positions"))] if part["kind"] in COVERED else []
    ends = [rotary.end for rotary, _ in rotations(config) if rotary.end is not None]
    found += [f"rotary with other frequencies beyond {end} tokens" for end in ends]
    return list(dict.fromkeys(found))


def _kind(data: Any) -> Iterator[str]:
    """The features of a config with a kind; none if it is not a config."""
    if not isinstance(data, Mapping):
        return
    kind = data["kind"]
    if kind in COVERED:
        yield from _others(kind, data, COVERED[kind])
    else:
        yield kind


def _others(where: str, data: Mapping[str, Any], covered: str) -> Iterator[str]:
    """The fields of `data`, which has no defaults, that are neither covered nor have a value of `LIMITED`."""
    for name, value in data.items():
        if name != "kind" and name not in covered.split() and value not in LIMITED.get((where, name), ()):
            yield f"{where} with {name} {shown(value)}"


def student_config(loaded: Checkpoint) -> dict[str, Any]:
    """Keys of config.json.

    Raises:
        UserError: names what modeling_t2r.py does not compute.
    """
    config = loaded.config
    if others := not_covered(config):
        raise UserError(
            "parts that modeling_t2r.py computes: " + ", ".join(COVERED),
            "; ".join(others)[:300],
            "export a graph, which computes all parts",
        )
    record = {"version": VERSION, "config": config.to_dict(), "rotations": _rotations(config)}
    return {
        "model_type": MODEL_TYPE,
        "architectures": [CLASS],
        "auto_map": {"AutoConfig": f"{CODE.stem}.T2RConfig", "AutoModelForCausalLM": f"{CODE.stem}.{CLASS}"},
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": len(config.layers),
        "tie_word_embeddings": config.tied_head,
        RECORD: {**record, "provenance": _without_template(loaded.provenance)},
    }


def _without_template(provenance: dict[str, Any]) -> dict[str, Any]:
    """Omit the chat template, which has its own file in the folder."""
    origin = provenance.get("origin")
    if not isinstance(origin, dict) or "chat_template" not in origin:
        return provenance
    return {**provenance, "origin": {key: value for key, value in origin.items() if key != "chat_template"}}


def _rotations(config: ModelConfig) -> dict[str, Any]:
    """The frequencies of every rotation, and each part's indices for q and k and for features: 0 for none, then from 1.

    Frequencies are stored as numbers, so that modeling_t2r.py implements no scaling.
    """
    known = rotations(config)
    tables = [
        {
            "frequencies": rotary_frequencies(rotary, size).tolist(),
            "magnitude": 1.0 if rotary.scaling is None else rotary.scaling.magnitude,
        }
        for rotary, size in known
    ]

    def numbers(part: PartConfig) -> list[int]:
        return [*(known.index(one) + 1 for one in part.rotations()), 0, 0][:2]

    return {"tables": tables, "layers": [[numbers(part) for part in layer.parts] for layer in config.layers]}
