"""File sizes of a translator in each precision: the table "Bytes" of docs/translation.md.

    python benchmarks/translator_bytes.py [MODEL.pt]

The default MODEL is models/translator-de-en/model.pt.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import t2r_export
from t2r_export.cli.output import table
from t2r_export.config.quantize import QuantizeConfig

MODEL = Path(__file__).parents[1] / "models" / "translator-de-en" / "model.pt"
FORMS = {
    "int8": QuantizeConfig(scheme="int8"),
    "w8": QuantizeConfig(scheme="w8"),
    "w4": QuantizeConfig(scheme="w4"),
    "w4, head bits 4": QuantizeConfig(scheme="w4", head_bits=4),
    "w8, a second table": QuantizeConfig(scheme="w8", embedding_bits=8),
    "w4, a second table": QuantizeConfig(scheme="w4", embedding_bits=8),
    "w4, head bits 4, a second table": QuantizeConfig(scheme="w4", head_bits=4, embedding_bits=8),
}


def megabytes(model: t2r_export.Model, form: QuantizeConfig) -> float:
    """Size of step graph, encoder graph and weights in MB."""
    with tempfile.TemporaryDirectory() as folder:
        model.export(Path(folder) / "model.onnx", form)
        return sum(file.stat().st_size for file in Path(folder).iterdir()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=MODEL)
    model = t2r_export.load(parser.parse_args().model)
    count = sum(weight.numel() for weight in model.checkpoint.model.parameters())
    rows = [[form, f"{megabytes(model, how):.2f}"] for form, how in FORMS.items()]
    print(table([["parameters, millions", f"{count / 1e6:.1f}"], *rows], ["", "MB"], markdown=True))


if __name__ == "__main__":
    main()
