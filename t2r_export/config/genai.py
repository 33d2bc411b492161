"""Checks of export options for onnxruntime-genai. Imports without torch."""

from __future__ import annotations

from dataclasses import fields

from t2r_export.config.export import ExportConfig
from t2r_export.config.options import within
from t2r_export.config.quantize import QuantizeConfig, scheme
from t2r_runtime.errors import UserError

FORMATS = ("graph", "genai")  # of --format
TARGETS = ("portable", "fused")
OPTIONS = ("past_end", "target")  # of ExportConfig


def check_genai(config: ExportConfig, how: QuantizeConfig | None) -> None:
    """Refuse export options that genai does not support.

    Raises:
        UserError: names the option.
    """
    usual = ExportConfig()
    fixed = [field.name for field in fields(ExportConfig) if field.name not in OPTIONS]
    given = [name for name in fixed if getattr(config, name) != getattr(usual, name)]
    given += ["target"] if config.target not in TARGETS else []
    if how is not None:  # prompts are read in one run
        given += ["quantize"] if not scheme(how.scheme).row_wise else ["budget"] if how.budget is not None else []
    if given:
        raise UserError(
            "only --past-end, --target portable or fused, and --quantize fp16, w8 or w4 with --format genai",
            within(ExportConfig).get(given[-1], f"--{given[-1].replace('_', '-')}"),
            "leave it out",
        )
