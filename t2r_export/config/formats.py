"""Formats of `--format`, and the export options that each allows. Imports without torch."""

from __future__ import annotations

from dataclasses import dataclass, fields

from t2r_export.config.export import ExportConfig
from t2r_export.config.options import within
from t2r_export.config.quantize import QuantizeConfig, scheme
from t2r_runtime.errors import UserError

TARGETS = ("portable", "fused")


@dataclass(frozen=True)
class Format:
    """A folder for another program.

    Attributes:
        exporter: module:function that takes a checkpoint, the folder, an ExportConfig and a QuantizeConfig or None.
        about: what the folder is, for help.
        options: the fields of ExportConfig that may be set; `target` only to those of TARGETS.
    """

    exporter: str
    about: str
    options: tuple[str, ...]


GRAPH = "graph"
FORMATS = {
    "genai": Format(
        "t2r_export.providers.genai:export_genai", "a folder OUT for onnxruntime-genai", ("past_end", "target")
    ),
    "triton": Format(
        "t2r_export.providers.triton:export_triton",
        "a model OUT of a Triton model repository",
        ("past_end", "target", "top_k", "prefill", "context"),
    ),
}


def check_format(form: str, config: ExportConfig, how: QuantizeConfig | None) -> None:
    """Refuse export options that a format does not support. Quantization must round each batch row separately.

    Raises:
        UserError: names the option.
    """
    usual, allowed = ExportConfig(), FORMATS[form].options
    fixed = [field.name for field in fields(ExportConfig) if field.name not in allowed]
    given = [name for name in fixed if getattr(config, name) != getattr(usual, name)]
    given += ["target"] if config.target not in TARGETS else []
    if how is not None:
        given += ["quantize"] if not scheme(how.scheme).row_wise else ["budget"] if how.budget is not None else []
    if given:
        others = ", ".join(f"--{name.replace('_', '-')}" for name in allowed if name != "target")
        raise UserError(
            f"only {others}, --target portable or fused, and --quantize fp16, w8, w4 or keep with --format {form}",
            within(ExportConfig).get(given[-1], f"--{given[-1].replace('_', '-')}"),
            "leave it out",
        )
